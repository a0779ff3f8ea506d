"""Traces of several states as one array, moved and read sample by sample, against the same one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.machines import set_machine

from etrax._machine import CPU
from etrax.compiler.ops import call_of, rule_for

PRODUCTS = {
    "x w": (lambda x, w: x @ w, (3, 4), (4, 5), 1),
    "w x": (lambda w, x: jnp.einsum("oi,bi->bo", w, x), (5, 4), (3, 4), 0),
    "two free axes": (lambda x, w: jnp.tensordot(x, w, 1), (3, 2, 4), (4, 5), 1),
    "heads": (lambda x, w: jnp.einsum("bhi,hio->bho", x, w), (3, 2, 4), (2, 4, 5), 1),
    "weight first": (lambda w, x: w @ x, (5, 4), (4, 3), 0),
}


@pytest.mark.parametrize("bound", [0, 2**40], ids=["by samples", "written out"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_stacks_move_as_their_traces_do(name, bound, monkeypatch):
    set_machine(monkeypatch, stack_bytes=0, long_stack_bytes=bound)
    f, left, right, weight = PRODUCTS[name]
    rng, n, k = np.random.RandomState(0), 3, 4
    eqn = next(e for e in jax.make_jaxpr(f)(np.ones(left), np.ones(right)).eqns if e.primitive.name == "dot_general")
    call = call_of(eqn, weight)
    rule, kernels = rule_for(call), rule_for(call).kernels
    data, shape, out = call.operands[1 - weight].shape, rule.trace_shape(call), call.out.shape
    assert kernels.stacks(call, n) and not kernels.stacks(call, 1)
    stack, block = rng.standard_normal((n, *shape)), rng.standard_normal((n, n, *out))
    u, c, g = rng.standard_normal((k, *data)), rng.standard_normal((n, k, *out)), rng.standard_normal((n, *out))
    want = []
    for s in range(n):
        kept = sum(rule.spread(call, (), jnp.asarray(block[s, t])) * stack[t] for t in range(n))
        want.append(kept + rule.outer(call, (), [jnp.asarray(u)], jnp.asarray(c[s])))
    found = kernels.move_stack(call, *map(jnp.asarray, (block, stack)), [jnp.asarray(u)], jnp.asarray(c))
    np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-13)
    credit = sum(np.asarray(rule.apply(call, (), jnp.asarray(stack[s]), jnp.asarray(g[s]))) for s in range(n))
    np.testing.assert_allclose(
        kernels.apply_stack(call, jnp.asarray(stack), jnp.asarray(g)), credit, rtol=1e-12, atol=1e-13
    )


@pytest.mark.parametrize("samples", [2, 5])
@pytest.mark.parametrize("name", ["x w", "w x", "two free axes"])
def test_a_trace_moved_by_sample_is_moved_as_in_one_pass(name, samples, monkeypatch):
    set_machine(monkeypatch, by_sample_bytes=0)
    f, left, right, weight = PRODUCTS[name]
    left, right = ((samples, *s[1:]) if number != weight else s for number, s in enumerate((left, right)))
    rng, k = np.random.RandomState(0), CPU.by_sample_steps
    eqn = next(e for e in jax.make_jaxpr(f)(np.ones(left), np.ones(right)).eqns if e.primitive.name == "dot_general")
    call = call_of(eqn, weight)
    rule, move = rule_for(call), rule_for(call).kernels.move_by_sample
    shape, out = rule.trace_shape(call), call.out.shape
    trace, data = rng.standard_normal(shape), rng.standard_normal((shape[0], *(1,) * (len(shape) - 1)))
    p = [rule.spread(call, (), jnp.asarray(rng.standard_normal(out))) for _ in range(2)]
    u, c = (jnp.asarray(rng.standard_normal((k, *s))) for s in (call.operands[1 - weight].shape, out))
    want = p[0] * trace + p[1] * data + rule.outer(call, (), [u], c)
    found = move(call, p, list(map(jnp.asarray, (trace, data))), 0, [u], c)
    np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-13)
    # What another whole trace is added to is moved in one pass, and so are few steps.
    assert move(call, p, [jnp.asarray(trace)] * 2, 0, [u], c) is None
    assert move(call, p, [jnp.asarray(trace)] * 2, 0, [u[:2]], c[:2]) is None
