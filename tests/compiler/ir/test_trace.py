"""From a function to a `Step`, and what is said when that cannot be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive

from etrax._compat import INLINED, open_jaxpr
from etrax._errors import CompilationError, EtraxError
from etrax.compiler.ir import Role, Step, check_step, inline, source_of_eqn, trace_step

W, H, X = jnp.ones((3, 4)), jnp.zeros((2, 4)), jnp.ones((2, 3))


def step_of(step, params=W, hidden=H, inputs=(X,)):
    """Trace a plain `step(params, hidden, *inputs) -> (hidden, output)`."""

    def fn(params, hidden, other, *inputs):
        hidden, output = step(params, hidden, *inputs)
        return hidden, other, output

    return trace_step(fn, params, hidden, inputs)


def names(step):
    return [e.primitive.name for e in step.jaxpr.eqns]


def leaky(w, h, x):
    h = 0.9 * h + x @ w
    return h, h.sum()


def test_leaves_and_roles():
    def step(p, h, x, flag):
        return {"v": h["v"] + x @ p["w"], "n": h["n"] + 1}, (h["v"], flag)

    traced = step_of(step, {"w": W}, {"v": H, "n": jnp.zeros(2, int)}, (X, True))
    assert [(leaf.role, leaf.path) for leaf in traced.ins] == [
        (Role.PARAM, ("w",)),
        (Role.HIDDEN, ("n",)),
        (Role.HIDDEN, ("v",)),
        (Role.INPUT, (0,)),
        (Role.INPUT, (1,)),
    ]
    assert [(leaf.role, leaf.path) for leaf in traced.outs] == [
        (Role.HIDDEN, ("n",)),
        (Role.HIDDEN, ("v",)),
        (Role.OUTPUT, (0,)),
        (Role.OUTPUT, (1,)),
    ]
    assert len(traced.invars(Role.HIDDEN)) == len(traced.outvars(Role.HIDDEN)) == 2
    assert traced.trees[Role.HIDDEN] == jax.tree.structure({"v": 0, "n": 0})


def test_runs_like_the_function():
    h, o = leaky(W, H + 1, X)
    new, output = step_of(leaky).run([W, H + 1, X])
    np.testing.assert_allclose(new, h)
    np.testing.assert_allclose(output, o)


def test_shapes_are_enough():
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (W, H, (X,)))
    assert names(step_of(leaky, *shapes)) == names(step_of(leaky))


def test_constants_are_inputs():
    table = np.arange(4.0)
    traced = step_of(lambda w, h, x: (h + table, x @ w))
    assert not traced.jaxpr.constvars
    assert len(traced.consts) == len(traced.constvars) == 1
    np.testing.assert_allclose(traced.run([W, H, X])[0], H + table)


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32, jnp.bfloat16, jnp.complex64, jnp.int32, jnp.bool_])
def test_dtypes(dtype):
    traced = step_of(lambda w, h, x: (h, x @ w), hidden=jnp.zeros(3, dtype))
    assert traced.select(Role.HIDDEN)[0].aval.dtype == dtype


def test_random_keys_are_carried():
    def step(w, h, x):
        key, use = jax.random.split(h["key"])
        return {"key": key, "v": h["v"] + x @ w + jax.random.normal(use, (4,))}, h["v"]

    traced = step_of(step, hidden={"key": jax.random.key(0), "v": H})
    assert [leaf.path for leaf in traced.select(Role.HIDDEN)] == [("key",), ("v",)]
    want, _ = step(W, {"key": jax.random.key(0), "v": H}, X)
    np.testing.assert_allclose(traced.run([W, jax.random.key(0), H, X])[1], want["v"])


def test_calls_are_inlined():
    dense = jax.jit(jax.checkpoint(lambda w, x: jax.jit(jnp.tanh)(x @ w)))
    traced = step_of(lambda w, h, x: (h + dense(w, x), jnp.take(h, 0)))
    assert not INLINED & set(names(traced))
    assert "dot_general" in names(traced)


def test_inlining_twice_changes_nothing():
    traced = step_of(lambda w, h, x: (h + jax.jit(lambda: x @ w)(), h))
    args = [v.aval for v in traced.jaxpr.invars]
    again, _ = open_jaxpr(jax.make_jaxpr(lambda *a: inline(traced.jaxpr, (), a))(*args))
    assert [e.primitive.name for e in again.eqns] == names(traced)
    assert str(again) == str(traced.jaxpr)


def test_derivative_rules_are_kept():
    by_jvp = jax.custom_jvp(lambda v: (v > 0).astype(v.dtype))
    by_jvp.defjvp(lambda p, t: (by_jvp(*p), 3.0 * t[0]))
    by_vjp = jax.custom_vjp(lambda v: (v > 0).astype(v.dtype))
    by_vjp.defvjp(lambda v: (by_vjp(v), None), lambda _, ct: (5.0 * ct,))
    traced = step_of(lambda w, h, x: (h + by_jvp(x @ w), jax.jit(by_vjp)(h)))
    assert names(traced).count("custom_vjp_call") == 2  # a rule by tangents would be lost behind a loop
    loss = lambda h: traced.run([W, h, X])[1].sum()
    np.testing.assert_allclose(jax.grad(loss)(H), 5.0)
    total = lambda x: traced.run([W, H, x])[0].sum()
    np.testing.assert_allclose(jax.grad(total)(X), 3.0 * 4)
    np.testing.assert_allclose(jax.grad(lambda x: jax.value_and_grad(total)(x)[0])(X), 3.0 * 4)


def test_source_lines():
    def step(w, h, x):
        y = x @ w
        z = jnp.take(h, jnp.array([1, 0]), axis=0)
        return jax.jit(lambda: 0.9 * h + y + z)(), lax.scan(lambda c, t: (jnp.tanh(c + t), None), y, jnp.ones(3))[0]

    first = step.__code__.co_firstlineno
    lines = {}
    for eqn in step_of(step).jaxpr.eqns:
        source = source_of_eqn(eqn)
        assert source and source.file == __file__, eqn
        lines[eqn.primitive.name] = source.line - first
    assert (lines["dot_general"], lines["gather"], lines["add"], lines["scan"]) == (1, 2, 3, 3)


BAD = {
    "missing": (
        lambda w, h, x: ({"a": h["a"]}, 0.0),
        {"a": H, "b": H},
        ["structure of its hidden state", "missing", "'b'", "same structure"],
    ),
    "added": (lambda w, h, x: ({"a": h["a"], "c": H}, 0.0), {"a": H}, ["structure", "never given: 'c'"]),
    "other container": (lambda w, h, x: ((h[0],), 0.0), [H], ["structure", "[*]", "(*,)"]),
    "shape": (
        lambda w, h, x: (h + jnp.zeros((5, 2, 4)), 0.0),
        {"v": H},
        ["'v'", "float64[2, 4]", "float64[5, 2, 4]", "one step of them", "its batch axis"],
    ),
    "dtype": (
        lambda w, h, x: (h.astype(jnp.float32), 0.0),
        H,
        ["float64[2, 4]", "float32[2, 4]", "cast inside the step"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_changed_states_are_refused(name):
    step, hidden, words = BAD[name]
    if name == "shape":
        step = lambda w, h, x: ({"v": h["v"] + jnp.zeros((5, 2, 4))}, 0.0)
    with pytest.raises(CompilationError) as error:
        step_of(step, hidden=hidden)
    for word in words:
        assert word in str(error.value), str(error.value)


@pytest.mark.parametrize(
    ("role", "kwargs"),
    [
        ("parameter 'w'", {"params": {"w": "text"}}),
        ("hidden state 'h'", {"hidden": {"h": object()}}),
        ("input 'inputs[0].x'", {"inputs": ({"x": "text"},)}),
    ],
)
def test_what_is_no_array_is_refused(role, kwargs):
    with pytest.raises(CompilationError, match="not an array") as error:
        step_of(leaky, **kwargs)
    assert role in str(error.value)
    assert "pass arrays, numbers or" in str(error.value)


def test_inputs_that_do_not_fit_are_explained():
    with pytest.raises(CompilationError) as error:
        step_of(leaky, inputs=(jnp.ones((2, 7)),))
    for word in ("float64[2, 7]", "hidden: float64[2, 4]", "TypeError", "inputs of one step", "test_trace.py"):
        assert word in str(error.value)


@pytest.mark.parametrize(
    "kind", [RuntimeError, KeyError, AttributeError, StopIteration, OSError, jax.errors.JaxRuntimeError]
)
def test_errors_of_the_model_are_explained(kind):
    """Which one, where, what it was given; who expects its type still catches it."""

    def step(w, h, x):
        raise kind("the model's own")

    with pytest.raises(CompilationError, match="the model's own") as error:
        step_of(step)
    for word in (kind.__name__, "test_trace.py", "(step)", "hidden: float64[2, 4]"):
        assert word in str(error.value)
    assert isinstance(error.value, kind) or kind in (OSError, StopIteration)
    assert isinstance(error.value.__cause__, kind)


def broken(step, **changes):
    parts = {name: getattr(step, name) for name in ("jaxpr", "consts", "ins", "outs", "trees")}
    return Step(**(parts | changes))


def test_malformed_steps_are_refused():
    step = step_of(leaky)
    assert check_step(step) is step
    for changes in (
        {"ins": step.ins[1:]},
        {"outs": step.outs[:-1]},
        {"ins": step.ins[::-1]},
        {"consts": (1.0,)},
        {"trees": {**step.trees, Role.HIDDEN: jax.tree.structure((0, 0))}},
        {"jaxpr": open_jaxpr(jax.make_jaxpr(jax.jit(lambda w, h, x: leaky(w, h, x)))(W, H, X))[0]},
    ):
        with pytest.raises(EtraxError, match="malformed"):
            check_step(broken(step, **changes))


def test_markers_of_braintrace_are_ordinary_products():
    """A model made of that library's marker ops is what it computes: nothing has to be rewritten."""

    class ETPPrimitive(Primitive):
        """Named as braintrace's is."""

    marker = ETPPrimitive("etp_mm")
    marker.def_impl(lambda x, w: x @ w)
    marker.def_abstract_eval(lambda x, w: x.update(shape=(x.shape[0], w.shape[1])))
    step = lambda p, h, o, x: (0.9 * h + marker.bind(x, p), o, h)
    found = trace_step(step, jnp.ones((3, 4)), jnp.ones((2, 4)), (jnp.ones((2, 3)),))
    assert [eqn.primitive.name for eqn in found.jaxpr.eqns] == ["mul", "dot_general", "add"]


def test_marker_ops_are_written_out_once_for_each_kind(monkeypatch):
    """Those of braintrace stand for products: the step holds these, each with its own line, and the same numbers."""
    from jax.extend.core import Primitive

    from etrax.compiler.ir import _inline

    class ETPPrimitive(Primitive):
        pass

    marked = ETPPrimitive("marked_product")
    marked.def_abstract_eval(lambda x, w, scale: jax.core.ShapedArray((w.shape[1],), x.dtype))
    marked.def_impl(lambda x, w, scale: scale * (jax.jit(jnp.matmul)(x, w)))
    calls, expansion = [], _inline._expansion
    monkeypatch.setattr(_inline, "_expansion", lambda eqn: calls.append(1) or expansion(eqn))

    def step(p, h, other, x):
        for w in p:
            x = marked.bind(x, w, scale=2.0)
        twice = marked.bind(x, p[0], scale=2.0)
        return h + x + marked.bind(twice, p[0], scale=3.0), other, x

    w = [np.linspace(-1, 1, 9).reshape(3, 3) + k for k in range(4)]
    traced = trace_step(step, w, np.zeros(3), (np.ones(3),))
    names = [e.primitive.name for e in traced.jaxpr.eqns]
    assert len(calls) == 2 and names.count("dot_general") == 6 and "marked_product" not in names
    lines = [source_of_eqn(e).line for e in traced.jaxpr.eqns if e.primitive.name == "dot_general"]
    assert len(set(lines)) == 3
    x = np.ones(3)
    for v in w:
        x = 2 * (x @ v)
    values = jax.core.eval_jaxpr(traced.jaxpr, (), *traced.consts, *w, np.zeros(3), np.ones(3))
    np.testing.assert_allclose(values[0], x + 3 * (2 * (x @ w[0]) @ w[0]), rtol=1e-12)
