"""Two processes, one learner: the batch is split over the devices of both, and gradients are summed over the network.

    python examples/two_processes.py                        # starts both on this machine
    srun --ntasks=2 python examples/two_processes.py        # on a cluster: Slurm says who is who

Every process runs the same program. Each reads only its own samples; the first alone shows progress and holds the lock
of the checkpoints, which all of them write. The same command goes on from the last epoch, also with other numbers of
processes and devices. If a process dies, JAX ends the others within its heartbeat.
"""

import os
import subprocess
import sys
import tempfile

PROCESSES, DEVICES = 2, 2


def train(directory):
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax.sharding import AxisType, Mesh

    import etrax

    batch, units, steps, samples = 8, 16, 20, 64
    rng = np.random.default_rng(0)
    xs = rng.standard_normal((steps, samples, 2)).astype(np.float32)
    ys = (xs.sum((0, 2)) > 0).astype(np.int32)

    def step(params, h, x):
        h = 0.95 * h + jnp.tanh(x @ params["w"] + h @ params["u"])
        return h, h @ params["out"]

    shapes = {"w": (2, units), "u": (units, units), "out": (units, 2)}
    params = {k: jnp.asarray(0.2 * rng.standard_normal(s), jnp.float32) for k, s in shapes.items()}
    mesh = Mesh(np.array(jax.devices()), ("batch",), axis_types=(AxisType.Auto,))
    learner = etrax.compile(
        step, "d_rtrl", xs[0, :batch], params=params, hidden=jnp.zeros((batch, units)), mesh=mesh, shard="batch"
    )

    def loss(output, label):
        return optax.softmax_cross_entropy_with_integer_labels(output, label).mean()

    trainer = etrax.train.Trainer(learner, optax.adam(0.01), loss, window=5, update="sequence")
    data = etrax.train.Dataset.labelled(xs, ys)
    result = trainer.fit(data, epochs=int(os.environ.get("EPOCHS", 3)), checkpoint=directory, progress=False)
    if jax.process_index() == 0:
        losses = [float(epoch.metrics["loss"]) for epoch in result.history]
        print(f"{jax.process_count()} processes, {jax.device_count()} devices, losses", *(f"{x:.6f}" for x in losses))


def main():
    import jax

    if len(sys.argv) > 2:  # one of the processes that the command below has started
        address, number, directory = sys.argv[1:4]
        count = int(os.environ.get("PROCESSES", PROCESSES))
        if count > 1:
            jax.distributed.initialize(address, count, int(number), heartbeat_timeout_seconds=10)
        train(directory)
    elif "SLURM_PROCID" in os.environ:
        jax.distributed.initialize()
        train(sys.argv[1] if len(sys.argv) > 1 else "checkpoints")
    else:
        with tempfile.TemporaryDirectory() as directory:
            start(directory)


def start(directory, port=29_731, count=PROCESSES, devices=DEVICES):
    """Start all processes on this machine, and wait for them."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PROCESSES": str(count)}
    command = [sys.executable, __file__, f"localhost:{port}"]
    running = [subprocess.Popen([*command, str(n), directory], env=env) for n in range(count)]
    if any([p.wait() for p in running]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
