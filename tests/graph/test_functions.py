"""Plain steps whose transition is not elementwise, whose states share values, or whose ops are inside loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from etrax._errors import CompilationError
from etrax.compiler.analysis import analyse
from etrax.frontends import bind_function
from etrax.graph import DiagnosticKind, build_graph, jacobians, plan_jacobians

B, I, N = 2, 3, 6
W = {"w": jnp.asarray(np.random.RandomState(0).standard_normal((I, N)))}
X = jnp.asarray(np.random.RandomState(1).standard_normal((B, I)))
HIDDEN = jnp.asarray(np.random.RandomState(2).standard_normal((B, N)))


def compiled(step, params, hidden, *x):
    bound = bind_function(step, x, params, hidden)
    facts = analyse(bound.step)
    return build_graph(bound, facts), facts


def ring(p, h, x):
    new = jnp.tanh(0.5 * h + 0.2 * jnp.roll(h, 1, -1) * h - 0.3 * jnp.roll(h, -2, -1) + x @ p["w"])
    return new, new


def mean_field(p, h, x):
    new = jnp.tanh(0.5 * h + h.mean(-1, keepdims=True) ** 2 + x @ p["w"])
    return new, new


def fixed_matrix(p, h, x):
    m = jnp.asarray(np.random.RandomState(5).standard_normal((N, N)))
    new = jnp.tanh(h @ m + x @ p["w"])
    return new, new


@pytest.mark.parametrize("step", [ring, mean_field, fixed_matrix])
def test_blocks_are_no_sums(step):
    graph, facts = compiled(step, W, HIDDEN, X)
    dense = jax.jacrev(lambda h: step(W, h, X)[0])(HIDDEN).reshape(B * N, B * N)
    expected = np.diagonal(dense).reshape(B, N, 1, 1)
    found = jacobians(plan_jacobians(facts, graph.hidden_groups), [W["w"], HIDDEN, X])
    (group,) = graph.hidden_groups
    np.testing.assert_allclose(found.h2h[0], expected, rtol=1e-10)
    *_, temps = graph.module_info.jaxpr_call(X, old_state_vals=[W["w"], HIDDEN])
    inputs = [temps[v] for v in group.transition_jaxpr_constvars]
    np.testing.assert_allclose(group.diagonal_jacobian([HIDDEN], inputs), expected, rtol=1e-10)
    assert group.colour is not None and group.colour.max() + 1 <= (5 if step is ring else N)
    (record,) = graph.explain(kind=DiagnosticKind.TRANSITION_MIXES_POSITIONS)
    assert record.context["group_indices"] == (0,) and "test_functions.py" in record.message
    df = found.h2w[("w",), 0, 0]
    np.testing.assert_allclose(df.df[..., 0], 1 - found.outs[0] ** 2, rtol=1e-10)


def test_states_that_share_a_value():
    """h1 and h2 take the same value; a is only read; z is set to zero."""

    def step(p, h, x):
        new = jnp.tanh(0.5 * h["h1"] + 0.1 * h["h2"] + h["a"] + x @ p["w"])
        return {"h1": new, "h2": new, "a": h["a"], "z": jnp.zeros(())}, new**2

    hidden = {"h1": HIDDEN, "h2": HIDDEN, "a": HIDDEN, "z": jnp.ones(())}
    graph, _ = compiled(step, W, hidden, X)
    info = graph.module_info
    assert len(set(info.outvar_to_hidden_path)) == 4 == len(info.hidden_outvar_to_invar)
    old = [W["w"], *jax.tree.leaves(hidden)]
    p = {
        path: v
        for path, v in zip(
            graph.hidden_perturb.perturb_hidden_paths, graph.hidden_perturb.init_perturb_data(), strict=True
        )
    }
    for path, keys in {("h1",): {"h1"}, ("h2",): {"h2"}, ("a",): {"a"}, ("z",): {"z"}}.items():
        moved = [v + 0.5 if q == path else v for q, v in p.items()]
        out, new, _, _ = graph.call_hidden_perturb((X,), moved, old)
        plain, expected, _, _ = info.jaxpr_call(X, old_state_vals=old)
        changed = {q[0] for q in new if not np.allclose(new[q], expected[q])}
        assert changed == keys
        assert np.allclose(out, plain) == (path != ("h1",))


def test_op_inside_a_loop():
    """The recurrent product inside an inner scan is cut where it is."""
    params = W | {"r": 0.3 * jnp.asarray(np.random.RandomState(3).standard_normal((N, N)))}

    def step(p, h, x, cut=False):
        def inner(h, _):
            y = (lax.stop_gradient(h) if cut else h) @ p["r"]
            return jnp.tanh(0.5 * h + y + x @ p["w"]), None

        new, _ = lax.scan(inner, h, None, length=3)
        return new, new

    graph, facts = compiled(step, params, HIDDEN, X)
    (group,) = graph.hidden_groups
    *_, temps = graph.module_info.jaxpr_call(X, old_state_vals=[params["r"], params["w"], HIDDEN])
    inputs = [temps[v] for v in group.transition_jaxpr_constvars]
    np.testing.assert_allclose(group.transition([HIDDEN], inputs)[0], step(params, HIDDEN, X)[0], rtol=1e-12)
    dense = jax.jacrev(lambda h: step(params, h, X, cut=True)[0])(HIDDEN).reshape(B * N, B * N)
    expected = np.diagonal(dense).reshape(B, N, 1, 1)
    np.testing.assert_allclose(group.diagonal_jacobian([HIDDEN], inputs), expected, rtol=1e-10)
    found = jacobians(plan_jacobians(facts, graph.hidden_groups), [params["r"], params["w"], HIDDEN, X])
    np.testing.assert_allclose(found.h2h[0], expected, rtol=1e-10)
    nested = [r for r in graph.hidden_param_op_relations if r.nested]
    assert {r.leaf_path for r in nested} >= {("r",)}
    for r in graph.hidden_param_op_relations:
        (name,) = r.leaf_path
        jac = jax.jacrev(lambda w, name=name: step({**params, name: w}, HIDDEN, X, cut=True)[0])(params[name])
        expected = np.stack([[jac[b, o, :, o] for o in range(N)] for b in range(B)])
        piece = found.h2w[r.leaf_path, r.op, 0]
        np.testing.assert_allclose(piece.dense()[..., 0], np.swapaxes(expected, 1, 2), rtol=1e-10)


def test_complex_state_driven_by_a_real_one():
    def step(p, h, x):
        r = 0.8 * h["r"] + x @ p["w"]
        z = (0.3 + 0.4j) * h["z"] + (0.5 - 0.2j) * h["r"]
        return {"r": r, "z": z}, z.real

    hidden = {"r": HIDDEN, "z": HIDDEN + 1j}
    graph, facts = compiled(step, W, hidden, X)
    (group,) = graph.hidden_groups
    found = jacobians(plan_jacobians(facts, graph.hidden_groups), [W["w"], hidden["r"], hidden["z"], X]).h2h[0]
    assert group.hidden_paths == [("r",), ("z",)]
    np.testing.assert_allclose(found, np.broadcast_to([[0.8, 0], [0.5 - 0.2j, 0.3 + 0.4j]], (B, N, 2, 2)), rtol=1e-12)


def test_shapes_are_no_current_values():
    w, hidden = jax.eval_shape(lambda: (W, HIDDEN))
    graph, _ = compiled(ring, w, hidden, X)
    with pytest.raises(CompilationError, match="old_state_vals"):
        graph.module_info.jaxpr_call(X)
    with pytest.raises(CompilationError, match="expected 2"):
        graph.module_info.jaxpr_call(X, old_state_vals=[W["w"]])
    without = graph._replace(hidden_perturb=None)
    with pytest.raises(CompilationError, match="include_hidden_perturb"):
        without.call_hidden_perturb((X,), [])


def test_a_parameter_and_a_state_at_one_path():
    graph, _ = compiled(lambda p, h, x: (0.9 * h + x * p,) * 2, X, X + 1, X)
    assert graph.module_info.compiled_state_paths == ((), ())
    np.testing.assert_allclose(graph.module_info.jaxpr_call(X, old_state_vals=[X, 2 * X])[0], 1.8 * X + X * X)
    by_name = {("params",): X, ("hidden",): 2 * X}
    np.testing.assert_allclose(graph.module_info.jaxpr_call(X, old_state_vals=by_name)[0], 1.8 * X + X * X)
    with pytest.raises(CompilationError, match="no value for state 'params'; pass one for each of 'params', 'hidden'"):
        graph.module_info.jaxpr_call(X, old_state_vals={(): X})


def test_no_hidden_state():
    graph, _ = compiled(lambda p, h, x: (h, x @ p["w"]), W, {}, X)
    assert graph.hidden_groups == () and graph.hidden_param_op_relations == ()
    assert graph.explain(kind=DiagnosticKind.NO_HIDDEN_STATE)


def test_blocks_can_be_differentiated():
    """Second derivatives in the states, for rules that are built on the pieces."""
    graph, facts = compiled(mean_field, W, HIDDEN, X)
    probes = plan_jacobians(facts, graph.hidden_groups)

    def dense(h):
        return jnp.trace(jax.jacrev(lambda h: mean_field(W, h, X)[0])(h).reshape(B * N, B * N))

    found = jax.grad(lambda h: jacobians(probes, [W["w"], h, X]).h2h[0].sum())(HIDDEN)
    np.testing.assert_allclose(found, jax.grad(dense)(HIDDEN), rtol=1e-10)
