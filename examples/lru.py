"""A linear recurrent unit learned online, exactly: its complex state is diagonal, and so is every trace.

    python examples/lru.py

The gradient of a stream that is learned step by step equals that of back-propagation through all of it.
"""

import jax
import jax.numpy as jnp

import etrax


def step(params, h, x):
    decay = jnp.exp(-jnp.exp(params["nu"]) + 1j * params["theta"])  # inside the unit circle, whatever nu is
    h = decay * h + jnp.exp(params["gamma"]) * (x @ (params["b_re"] + 1j * params["b_im"]))
    y = (h @ (params["c_re"] + 1j * params["c_im"])).real
    return h, jax.nn.gelu(y) @ params["out"]


def loss(output, target):
    return jnp.mean((output - target) ** 2)


def init(key, inputs, width, outputs):
    keys = jax.random.split(key, 7)

    def normal(k, *shape):
        return jax.random.normal(k, shape) / shape[0] ** 0.5

    radius = jax.random.uniform(keys[0], (width,), minval=0.9, maxval=0.999)
    return {
        "nu": jnp.log(-jnp.log(radius)),
        "theta": jax.random.uniform(keys[1], (width,), maxval=3.14),
        "gamma": jnp.log(jnp.sqrt(1 - radius**2)),
        "b_re": normal(keys[2], inputs, width),
        "b_im": normal(keys[3], inputs, width),
        "c_re": normal(keys[4], width, width),
        "c_im": normal(keys[5], width, width),
        "out": normal(keys[6], width, outputs),
    }


def main(steps=1000, batch=8, width=32, window=10, file="lru.png"):
    import matplotlib.pyplot as plt

    params = init(jax.random.key(0), 4, width, 2)
    xs = jax.random.normal(jax.random.key(1), (steps, batch, 4))
    ys = jax.random.normal(jax.random.key(2), (steps, batch, 2))
    kind = jnp.result_type(params["b_re"], 1j)
    learner = etrax.compile(step, "d_rtrl", xs[0], params=params, hidden=jnp.zeros((batch, width), kind))
    print(learner.report)
    print()
    print(f"gradients over {steps} steps in windows of {window}, against BPTT over all of them:")
    table = etrax.testing.compare(learner, loss, params, learner.hidden, xs, ys, window=window)
    print(table.check())
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.5), layout="constrained")
    decay = jnp.exp(-jnp.exp(params["nu"]) + 1j * params["theta"])
    left.add_patch(plt.Circle((0, 0), 1, fill=False, color="grey"))
    left.plot(decay.real, decay.imag, "o")
    left.set(title="eigenvalues", aspect="equal", xlim=(-1.1, 1.1), ylim=(-0.2, 1.1))
    right.barh([row.path[-1] for row in table.rows], [row.relative_error for row in table.rows])
    right.set(xscale="log", xlim=(1e-9, 1), xlabel="distance from BPTT, relative (float32)")
    figure.savefig(file, dpi=150)
    return table


if __name__ == "__main__":
    main()
