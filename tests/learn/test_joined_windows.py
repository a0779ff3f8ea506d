"""Windows whose gradients a sequence adds up in one product: the same gradient as window by window."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax
from etrax._machine import CPU, Machine, compiling_for
from etrax.learn._sequence import _joined_windows

I = H = 40
RNG = np.random.RandomState(0)


def normal(*shape):
    return jnp.asarray(0.3 * RNG.standard_normal(shape))


PARAMS = {"w": normal(I, H), "u": normal(H, H), "v": normal(H, H), "b": normal(H), "out": normal(H, 2)}


def step(p, h, x):
    h = 0.7 * h + 0.3 * jnp.tanh(x @ p["w"] + jnp.tanh(h @ p["u"]) @ p["v"] + p["b"])
    return h, h @ p["out"]


def loss(output, target):
    return ((output - target) ** 2).sum()


RULES = {
    "tbptt": "tbptt",
    "pp_prop": etrax.pp_prop(0.9),
    "pp_prop on states": etrax.pp_prop(0.9, credit="state"),
    "ottt on states": etrax.ottt(0.7, credit="state"),
    "d_rtrl": "d_rtrl",
    "e_prop": etrax.e_prop(0.8),
    "partition": etrax.partition({"w": etrax.pp_prop(0.8, credit="state"), "out": etrax.frozen()}, default="d_rtrl"),
}


def learner_of(rule, batch=2):
    return etrax.compile(step, RULES[rule], normal(batch, I), params=PARAMS, hidden=jnp.zeros((batch, H)))


EACH_STEP = {"pp_prop on states", "ottt on states", "partition"}  # for windows of one step
LENGTHS = [(8, 1), (7, 1), (18, 1), (9, 2), (3, 5)]


@pytest.mark.parametrize(
    ("rule", "steps", "window"),
    [(r, *sizes) for r in RULES for sizes in LENGTHS if sizes[1] == 1 or r not in EACH_STEP],
)
def test_gradient_is_that_of_each_window_by_itself(rule, steps, window):
    learner, inputs, targets = learner_of(rule), normal(steps, 2, I), normal(steps, 2, 2)
    mask = jnp.asarray(RNG.uniform(size=steps) < 0.7, jnp.float32).at[0].set(1)
    reset = jnp.zeros(steps, bool).at[min(4, steps - 1)].set(True)
    f = learner.value_and_grad(loss, window=window, reduction="sum")
    (value, grads), end = f(PARAMS, learner.init(), inputs, targets, mask, reset)
    state, total, summed = learner.init(), 0.0, jax.tree.map(jnp.zeros_like, PARAMS)
    for start in range(0, steps, window):
        part = slice(start, start + window)
        (one, own), state = f(PARAMS, state, *(a[part] for a in (inputs, targets, mask, reset)))
        total, summed = total + one, jax.tree.map(jnp.add, summed, own)
    for got, wanted in ((value, total), (end.hidden, state.hidden)):
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-13)
    for name, wanted in summed.items():
        scale = 1e-12 * max(float(jnp.abs(wanted).max()), 1e-6)
        np.testing.assert_allclose(grads[name], wanted, rtol=0, atol=scale, err_msg=name)


def test_which_windows():
    """Equal parts, of rows that are fewer numbers than the gradient; none of elementwise weights."""
    program = learner_of("tbptt").program
    facts, w = program.facts, program.with_kernels(program.params(PARAMS))
    with compiling_for(CPU):
        many = _joined_windows(facts, w, 32, 1)
        assert many.windows == 8
        assert {facts.params_of(j)[0].removeprefix("params.").strip("'[]") for j in many.by_rows} == {"w", "u", "v"}
        assert _joined_windows(facts, w, 18, 1).windows == 6
        assert _joined_windows(facts, w, 7, 1).windows == 7
        assert _joined_windows(facts, w, 11, 1) == (1, frozenset())
        assert _joined_windows(facts, w, 16, 4).windows == 2
        assert _joined_windows(facts, w, 16, 8) == (1, frozenset())  # as many rows as there are numbers in the gradient
    with compiling_for(Machine()):
        assert _joined_windows(facts, w, 32, 1) == (1, frozenset())
