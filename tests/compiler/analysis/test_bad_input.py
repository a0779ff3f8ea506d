"""What cannot be served raises before any training, or is reported; nothing is called exact that is not proved."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import etrax
from etrax._errors import CompilationError, NotSupportedError
from etrax.compiler.analysis import LostKind, analyse
from etrax.compiler.ir import Role, trace_step
from etrax.rules import Kind
from etrax.rules._verdicts import by_position_verdict, lost_paths, whole_influence_verdict

W, H, X = jnp.ones((3, 4)), jnp.ones((2, 4)), jnp.ones((2, 3))


def facts_of(new, params=W, hidden=H, x=X, output=lambda p, h: h, other=None):
    def fn(p, h, o, x):
        h = new(p, h, x)
        return h, o, output(p, h)

    return analyse(trace_step(fn, params, hidden, (x,), other))


def rule(f):
    g = jax.custom_vjp(lambda x: x)
    g.defvjp(lambda x: (x, None), lambda _, ct: (f(ct),))
    return g


def test_while_loop_on_the_gradient_path():
    loop = lambda y: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, 0.5 * c[1]), (0, y))[1]
    with pytest.raises(NotSupportedError) as error:
        step = lambda w, h, x: (0.9 * h + loop(x @ w), h)
        etrax.compile(step, "d_rtrl", jnp.ones((2, 3)), params=jnp.ones((3, 4)), hidden=jnp.zeros((2, 4)))
    for word in ("`while_loop`", "no reverse mode", "`lax.scan`", "stop_gradient"):
        assert word in str(error.value)


def test_while_loop_beside_the_gradient_path():
    loop = lambda y: lax.while_loop(lambda c: c.sum() > 1, lambda c: 0.5 * c, lax.stop_gradient(y))
    assert by_position_verdict(facts_of(lambda w, h, x: 0.9 * h + loop(jnp.abs(h)) * (x @ w)), 0).kind is Kind.EXACT


@pytest.mark.parametrize(
    ("f", "says"),
    [
        (lambda y: jax.pure_callback(np.sin, y, y), "JAX says"),
        (lambda y: lax.linalg.householder_product(y[:, :2], y[0, :2]) @ jnp.ones((2, 4)), "householder_product"),
    ],
)
def test_no_derivative_at_all(f, says):
    with pytest.raises(CompilationError, match="cannot be differentiated in reverse mode") as error:
        facts_of(lambda w, h, x: 0.9 * h + f(x @ w))
    assert "`jax.custom_vjp`" in str(error.value) and says in str(error.value)


def test_gradient_clipping_is_reported():
    clip = rule(lambda ct: jnp.clip(ct, -1, 1))
    facts = facts_of(lambda w, h, x: clip(0.9 * h + x @ w))
    verdict = by_position_verdict(facts, 0)
    assert verdict.kind is Kind.APPROXIMATE
    assert "derivative rule" in verdict.reason and "test_bad_input.py" in verdict.reason
    assert LostKind.NONLINEAR in {path.kind for path in lost_paths(facts, 0)}
    assert whole_influence_verdict(facts, 0).kind is Kind.APPROXIMATE


def test_unknown_primitive_on_the_path_is_reported():
    unknown = rule(lambda ct: jax.pure_callback(lambda a: np.asarray(a), ct, ct))
    facts = facts_of(lambda w, h, x: 0.9 * h + unknown(x * w), jnp.ones(()), jnp.ones(()), jnp.ones(()))
    verdict = by_position_verdict(facts, 0)
    assert verdict.kind is Kind.APPROXIMATE
    assert (
        "`pure_callback`" in verdict.reason and "not known" in verdict.reason and "test_bad_input.py" in verdict.reason
    )


def test_unknown_primitive_beside_the_path_is_not():
    unknown = rule(lambda ct: jax.pure_callback(lambda a: np.asarray(a), ct, ct))
    facts = facts_of(lambda w, h, x: 0.9 * h + x @ w, output=lambda w, h: unknown(h))
    assert by_position_verdict(facts, 0).kind is Kind.EXACT


def test_state_that_is_no_hidden_state_is_reported():
    def fn(w, h, o, x):
        return 0.9 * h, 0.5 * o + x @ w, h + o

    facts = analyse(trace_step(fn, W, H, (X,), H))
    verdict = by_position_verdict(facts, 0)
    assert verdict.kind is Kind.TRUNCATED
    assert "not a hidden state" in verdict.reason and "declare it as one" in verdict.reason


def test_integer_parameters_have_no_gradient():
    facts = facts_of(lambda p, h, x: 0.9 * h + x @ p["w"] * p["n"], {"w": W, "n": jnp.asarray(2)})
    verdicts = {leaf.path[0]: by_position_verdict(facts, i) for i, leaf in enumerate(facts.step.select(Role.PARAM))}
    assert verdicts["w"].kind is Kind.EXACT
    assert verdicts["n"].kind is Kind.UNUSED and "int64 numbers, which have no gradient" in verdicts["n"].reason


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_complex_cast_to_real():
    """The imaginary part is dropped: linear over the reals, and carried."""
    facts = facts_of(lambda w, h, x: 0.9 * h + lax.convert_element_type((x @ w) * (1 + 2j), float))
    assert by_position_verdict(facts, 0).kind is Kind.EXACT
    assert not facts.edges.problems
    assert [c.primitive for c in facts.casts] == ["convert_element_type"]
    assert "test_bad_input.py" in str(facts.casts[0])


def test_random_keys_and_counters_are_carried():
    def new(w, h, x):
        key, use = jax.random.split(h["key"])
        return {"key": key, "n": h["n"] + 1, "v": 0.9 * h["v"] + (x @ w) * jax.random.bernoulli(use, 0.5, (2, 4))}

    facts = facts_of(new, hidden={"key": jax.random.key(0), "n": jnp.asarray(0), "v": H}, output=lambda w, h: h["v"])
    assert by_position_verdict(facts, 0).kind is Kind.EXACT
    assert [g.leaves for g in facts.groups] == [(2,)]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32, jnp.complex64])
def test_low_precision(dtype):
    facts = facts_of(
        lambda w, h, x: (0.9 * h).astype(dtype) + x.astype(dtype) @ w,
        W.astype(dtype),
        H.astype(dtype),
        output=lambda w, h: h.real,
    )
    assert by_position_verdict(facts, 0).kind is Kind.EXACT
