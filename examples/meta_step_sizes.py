"""Step sizes that are learned: the optimizer is the model, weights are its hidden state, step sizes its parameters.

    python examples/meta_step_sizes.py

A linear unit predicts a number from 20 inputs. Five of them matter, by true weights that drift; the others are noise.
Online gradient descent on log step sizes finds out which: those of the five grow, the others shrink. `d_rtrl` carries
the influence of every step size on every weight and is exact here; for comparison there is `rflo`, whose trace
ignores the other weights and leaks at a fixed rate. The idea is that of Sutton's IDBD (1992).
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import etrax


def step(log_rates, w, x, y):
    """One update of the inner learner; the output is its error before the update."""
    error = w @ x - y
    return w - jnp.exp(log_rates) * error * x, error


def world(key, steps, inputs, relevant):
    """Inputs, and a target whose true weights wander."""
    keys = jax.random.split(key, 3)
    x = jax.random.normal(keys[0], (steps, inputs))
    drift = 0.1 * jax.random.normal(keys[1], (steps, relevant)).cumsum(0)
    y = (x[:, :relevant] * drift).sum(-1) + 0.1 * jax.random.normal(keys[2], (steps,))
    return x, y


def main(steps=20_000, inputs=20, relevant=5, file="meta_step_sizes.png"):
    import matplotlib.pyplot as plt

    x, y = world(jax.random.key(0), steps, inputs, relevant)
    log_rates, w = jnp.full(inputs, jnp.log(0.02)), jnp.zeros(inputs)
    loss, sgd = (lambda error, _: error**2), optax.adam(2e-3)
    found, figure = {}, plt.figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for place, rule in zip(axes, (etrax.d_rtrl(), etrax.rflo(0.98)), strict=True):
        learner = etrax.compile(step, rule, x[0], y[0], params=log_rates, hidden=w)
        train = learner.train(sgd, loss, window=1)
        params, opt_state, state, rates = log_rates, sgd.init(log_rates), learner.init(), []
        for part in np.array_split(np.arange(steps), 50):
            params, opt_state, state, _ = train(params, opt_state, state, (x[part], y[part]))
            rates.append(np.exp(params))
        rates = np.stack(rates)
        kind, ratio = learner.report.verdicts[()].kind, rates[-1, :relevant].mean() / rates[-1, relevant:].mean()
        place.semilogy(rates[:, relevant:], color="0.7", lw=0.8)
        place.semilogy(rates[:, :relevant], color="C0")
        place.set(title=f"{rule} ({kind})", xlabel="part of the stream")
        print(f"{rule} ({kind}): step sizes of what matters are {ratio:.1f} times the others")
        found[str(kind)] = ratio
    axes[0].set_ylabel("step size (blue: inputs that matter)")
    figure.savefig(file, dpi=150)
    return found


if __name__ == "__main__":
    main()
