"""Memory before allocation: what the compiler plans, for other batches too; budgets; windows chosen by memory."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import etrax

B, I, H = 4, 3, 8


def step(params, h, x):
    h = 0.9 * h + jnp.tanh(x @ params["w"] + h @ params["u"])
    return h, h


def learner_of(rule="d_rtrl", batch=B, **options):
    params = {"w": jnp.ones((I, H)), "u": jnp.ones((H, H))}
    return etrax.compile(step, rule, jnp.ones((batch, I)), params=params, hidden=jnp.zeros((batch, H)), **options)


def measured(learner, window, steps):
    """Planned by the compiler for the function that users call."""
    run = jax.jit(learner.value_and_grad(lambda o, t: (o**2).mean(), window=window))
    x = jnp.ones((steps, *learner.facts.step.ins[-1].aval.shape))
    found = run.lower(learner.params, learner.init(), x).compile().memory_analysis()
    return found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes


@pytest.mark.parametrize("rule", ["tbptt", "d_rtrl", "rtrl"])
def test_peak_is_that_of_the_compiled_program(rule):
    learner = learner_of(rule)
    found = learner.memory(window=5, steps=20)
    assert found.peak == pytest.approx(measured(learner, 5, 20), rel=0.1)
    assert found.trace == learner.report.memory[rule]
    assert found.inputs == 20 * B * I * 8


def test_only_inputs_grow_with_the_sequence():
    short, long = (learner_of().memory(window=5, steps=n) for n in (20, 200))
    assert (short.trace, short.window) == (long.trace, long.window)
    assert long.peak - short.peak == long.inputs - short.inputs


def test_another_batch():
    assert learner_of().memory(window=4, batch=16) == learner_of(batch=16).memory(window=4)


@pytest.mark.parametrize("options", [{"check_finite": True}, {"trace_dtype": jnp.float32}, {"memory_budget": "1 MB"}])
def test_another_batch_keeps_the_options(options):
    asked, want = (learner_of(batch=n, **options) for n in (B, 16))
    assert asked.memory(window=4, batch=16) == want.memory(window=4)
    assert asked.with_rule("pp_prop").memory(window=4, batch=16) == want.with_rule("pp_prop").memory(window=4)


def test_another_batch_is_no_learner_that_the_budget_refuses():
    """The question is how much it would take."""
    small = learner_of(memory_budget="10 kB")
    assert small.memory(window=4, batch=4096).trace > 10_000


def test_another_batch_needs_a_batch_axis():
    learner = etrax.compile(
        lambda p, h, x: (h + x @ p, h), "d_rtrl", jnp.ones(I), params=jnp.ones((I, H)), hidden=jnp.zeros(H)
    )
    with pytest.raises(ValueError, match="the batch as their first axis"):
        learner.memory(window=4, batch=16)


def test_budget_names_what_fits():
    with pytest.raises(ValueError, match=r"the trace of d_rtrl\(\) takes 2.82 kB, more than .*would fit: .*pp_prop"):
        learner_of(memory_budget=2000)
    learner_of(memory_budget="1 MB")
    with pytest.raises(ValueError, match="expected a number of bytes"):
        learner_of(memory_budget="plenty")


@pytest.mark.parametrize("rule", ["d_rtrl", "rtrl", etrax.ottt(0.9), etrax.rflo(0.9)])
def test_budget_counts_the_asked_type(rule):
    """What is refused in float64 fits at half of its size in float32."""
    whole = learner_of(rule).memory(window=2).trace
    half = learner_of(rule, trace_dtype=jnp.float32, memory_budget=0.6 * whole)
    assert 2 * half.memory(window=2).trace == whole == 2 * half.report.memory[half.rule.name]
    with pytest.raises(ValueError, match="more than `memory_budget`"):
        learner_of(rule, memory_budget=0.6 * whole)


def test_window_by_memory():
    loss = lambda o, t: (o**2).mean()
    wide = learner_of(memory_budget="1 GB").value_and_grad(loss, window="auto")
    assert wide.window == 64
    tight = learner_of().memory(window=16)
    learner = learner_of(memory_budget=tight.peak - tight.inputs)
    run = learner.value_and_grad(loss, window="auto")
    assert 8 <= run.window <= 16
    (value, _), _ = run(learner.params, learner.init(), jnp.ones((10, B, I)))
    assert np.isfinite(value)
    with pytest.raises(ValueError, match="finds no window within 3 kB"):
        learner_of(memory_budget=3000).value_and_grad(loss, window="auto")


def test_a_donated_state_is_moved_in_its_place():
    learner, loss = learner_of(), lambda o, t: (o**2).mean()
    x = jnp.ones((10, B, I))
    kept, used = (learner.value_and_grad(loss, window=5, donate=d) for d in (False, True))
    state = learner.init()
    expected, after = kept(learner.params, state, x)
    found, again = used(learner.params, state, x)
    for a, b in zip(jax.tree.leaves((expected, after)), jax.tree.leaves((found, again)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert all(a.is_deleted() for a in jax.tree.leaves(state.trace))
    whole, less = (learner.memory(window=5, steps=20, donate=d) for d in (False, True))
    assert whole.peak - less.peak >= learner.memory(window=5).trace


def test_a_stream_leaves_the_given_state_alone():
    learner = learner_of()
    state = learner.init()
    for _ in range(2):
        stream = learner.online(optax.sgd(0.1), lambda o, t: ((o - t) ** 2).mean(), window=2, state=state)
        for _ in range(4):
            stream.feed(jnp.ones((B, I)), jnp.ones((B, H)))
    assert not any(a.is_deleted() for a in jax.tree.leaves(state))


def test_memory_of_another_rule_at_another_batch():
    assert learner_of("tbptt").with_rule("d_rtrl").memory(window=4, batch=16) == learner_of(batch=16).memory(window=4)
