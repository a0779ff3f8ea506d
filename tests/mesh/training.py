"""Trains on a mesh of the given shape (`8`, `2x2`; `1` is no mesh) up to an epoch, and prints JSON: losses, parameters.

With a third argument the process kills itself at that update.
"""

import json
import os
import signal
import sys

os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=8"

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

import optax  # noqa: E402

import etrax  # noqa: E402

sys.path.insert(0, os.path.dirname(__file__))
from models import B, I, O, gru  # noqa: E402


def main(shape, directory, epochs, killed_at=None):
    step, params, hidden = gru()
    rng = np.random.default_rng(5)
    data = etrax.train.Dataset(rng.standard_normal((4, 4 * B, I)), rng.standard_normal((4, 4 * B, O)))
    sizes = tuple(map(int, shape.split("x")))
    options = {}
    if sizes != (1,):
        mesh = jax.make_mesh(sizes, ("batch", "neuron")[: len(sizes)], devices=jax.devices()[: int(np.prod(sizes))])
        options = {"mesh": mesh, "shard": "batch+neuron" if len(sizes) == 2 else "batch"}
    learner = etrax.compile(step, "d_rtrl", data.inputs[0, :B], params=params, hidden=hidden, **options)
    trainer = etrax.train.Trainer(learner, optax.adam(0.01), lambda o, y: ((o - y) ** 2).mean(), window=2)
    updater, count = trainer._updater, iter(range(10**6))

    def counted(project):
        update = updater(project)

        def killed_or_updated(*args, **kwargs):
            if killed_at is not None and next(count) == int(killed_at):
                os.kill(os.getpid(), signal.SIGKILL)
            return update(*args, **kwargs)

        return killed_or_updated

    trainer._updater = counted
    result = trainer.fit(data, int(epochs), validation=data, checkpoint=directory, progress=False)
    losses = [epoch.metrics["val_loss"] for epoch in result.history]
    last = {name: np.asarray(a).tolist() for name, a in result.last_params.items()}
    print(json.dumps({"losses": losses, "params": last}))


if __name__ == "__main__":
    main(*sys.argv[1:])
