"""The learners by hand are exact, and Etrax learns the same as they do."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.by_hand import (
    RATE,
    dense_rtrl,
    gradient_of,
    lif,
    lif_shared_trace,
    lru_tight,
    mingru,
    online,
    rtu,
    trained,
)
from benchmarks.workload import PLAIN, loss

import etrax

STEPS = 12
LEARNERS = {
    "mingru W @ x": partial(mingru, 6, 4, True, 3),
    "mingru x @ W": partial(mingru, 6, 4, False, 3),
    "rtu W @ x": partial(rtu, 6, 4, True, 3),
    "rtu x @ W": partial(rtu, 6, 4, False, 3),
    "lru batch 1": partial(lru_tight, 1, 6, 4),
    "lru batch 3": partial(lru_tight, 3, 6, 4),
    "lif": partial(lif, 6, 4, 3),
    "lif shared trace": partial(lif_shared_trace, 6, 4, 3),
    "dense gru": partial(dense_rtrl, True, 1, 6, 4, 3),
    "dense rnn": partial(dense_rtrl, False, 2, 6, 4, 3),
}


def in_double(tree):
    return jax.tree.map(lambda a: a.astype(jnp.promote_types(a.dtype, jnp.float64)), tree)


def double(make):
    """A learner by hand in float64."""
    tight = make()
    workload = tight.workload._replace(params=in_double(tight.workload.params), hidden=in_double(tight.workload.hidden))
    return tight._replace(workload=workload, traces=in_double(tight.traces))


def by_bptt(workload, params, inputs, targets):
    """Reverse mode through a Python loop."""

    def total(params):
        hidden, losses = workload.hidden, []
        for x, y in zip(inputs, targets, strict=True):
            hidden, output = workload.step(PLAIN, params, hidden, x)
            losses.append(loss(output, y))
        return jnp.mean(jnp.stack(losses))

    return jax.jit(jax.grad(total))(params)


def close(values, wanted, tolerance):
    assert set(values) == set(wanted)
    for name, value in wanted.items():
        assert np.abs(value).max() > 0, name
        np.testing.assert_allclose(values[name], value, rtol=0, atol=tolerance * np.abs(value).max(), err_msg=name)


@pytest.mark.parametrize("name", LEARNERS)
def test_gradient_by_hand_is_bptt(name):
    tight = double(LEARNERS[name])
    data = in_double(tight.workload.data(STEPS))
    # Louder inputs, for which neurons fire.
    inputs, targets = 3 * data[0], data[1]
    grads = jax.jit(partial(gradient_of, tight))(tight.workload.params, inputs, targets)
    close(grads, by_bptt(tight.workload, tight.workload.params, inputs, targets), 1e-12)


@pytest.mark.parametrize("name", LEARNERS)
def test_gradient_of_etrax_is_bptt(name):
    tight = double(LEARNERS[name])
    workload = tight.workload
    inputs, targets = in_double(workload.data(STEPS))
    step = partial(workload.step, PLAIN)
    learner = etrax.compile(step, tight.rule, inputs[0], params=workload.params, hidden=workload.hidden)
    (_, grads), _ = learner.value_and_grad(loss, window=1)(workload.params, learner.init(), 3 * inputs, targets)
    close(grads, by_bptt(workload, workload.params, 3 * inputs, targets), 1e-12)


@pytest.mark.parametrize("name", [name for name in LEARNERS if name.startswith(("mingru", "lif"))])
def test_etrax_learns_the_same(name):
    """Of the others, traces of λ meet today's ∂λ/∂ν, and those by hand the ones of the past."""
    tight = double(LEARNERS[name])
    workload = tight.workload
    inputs, targets = in_double(workload.data(STEPS))
    ours = online().build(workload, inputs, targets).run()
    by_hand = trained(tight, workload.params, inputs, targets)
    moves = [{k: (new[k] - p) / RATE for k, p in workload.params.items()} for new in (ours, by_hand)]
    close(*moves, 1e-10)
