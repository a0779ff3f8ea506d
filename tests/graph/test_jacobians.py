"""Groups, blocks and the executor's Jacobians against `jax.jacobian` of the cut step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

brainstate = pytest.importorskip("brainstate")

from tests.graph.cells import CELLS, B, H, I, Net, blocks, build, jacobian, run, values  # noqa: E402

import etrax.nn  # noqa: E402
from etrax.graph import ETraceGraphExecutor, compile_etrace_graph  # noqa: E402

ALL = [(name, batched) for name in CELLS for batched in (False, True)]


def group_inputs(graph, group, x):
    """What `transition` takes, from a run of the step."""
    *_, temps = graph.module_info.jaxpr_call(x)
    now = {
        p: s.value
        for p, s in zip(graph.module_info.compiled_state_paths, graph.module_info.compiled_model_states, strict=True)
    }
    return [now[p] for p in group.hidden_paths], [temps[v] for v in group.transition_jaxpr_constvars]


@pytest.mark.parametrize(("name", "batched"), ALL)
def test_groups(name, batched):
    model, x = build(name, batched)
    before = values(model)
    graph = compile_etrace_graph(model, x)
    _, states, weights = CELLS[name]
    (group,) = graph.hidden_groups
    assert group.index == 0 and group.num_state == states
    assert group.varshape == ((B, H) if batched else (H,))
    assert set(group.hidden_paths) == set(model.states(brainstate.HiddenState))
    assert graph.hid_path_to_group == {path: group for path in group.hidden_paths}
    group.check_consistent_varshape()
    if weights is not None:
        assert {r.path[0] for r in graph.hidden_param_op_relations} == weights
    assert all(jax.tree.all(jax.tree.map(lambda a, b: a is b, v, before[p])) for p, v in values(model).items())


@pytest.mark.parametrize(("name", "batched"), ALL)
def test_transition_and_its_blocks(name, batched):
    model, x = build(name, batched)
    graph = compile_etrace_graph(model, x)
    (group,) = graph.hidden_groups
    hidden, inputs = group_inputs(graph, group, x)
    _, new = run(model, values(model), x)
    for run_on in (group.transition, lambda h, i: jax.core.eval_jaxpr(group.transition_jaxpr, i, *h)):
        for path, value in zip(group.hidden_paths, run_on(hidden, inputs), strict=True):
            np.testing.assert_allclose(value, new[path], rtol=1e-12)
    expected = blocks(model, x, group.hidden_paths)
    np.testing.assert_allclose(group.diagonal_jacobian(hidden, inputs), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(jax.jit(group.diagonal_jacobian)(hidden, inputs), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("name", "batched"), ALL)
def test_old_hidden_values_are_among_the_variables(name, batched):
    """One run gives all that a rule reads: also what each group starts from."""
    model, x = build(name, batched)
    graph = compile_etrace_graph(model, x)
    p = graph.hidden_perturb.init_perturb_data()
    for temps in (graph.module_info.jaxpr_call(x)[3], graph.call_hidden_perturb((x,), p)[3]):
        for group in graph.hidden_groups:
            for path, var in zip(group.hidden_paths, group.hidden_invars, strict=True):
                np.testing.assert_array_equal(temps[var], values(model)[path])


@pytest.mark.parametrize(("name", "batched"), ALL)
def test_relation_jaxprs(name, batched):
    """y → hidden, run on the values of the step, gives the step's new hidden values."""
    model, x = build(name, batched)
    graph = compile_etrace_graph(model, x)
    *_, temps = graph.module_info.jaxpr_call(x)
    _, new = run(model, values(model), x)
    for r in graph.hidden_param_op_relations:
        for group, jaxpr, constvars in zip(
            r.hidden_groups, r.y_to_hidden_group_jaxprs, r.y_to_hidden_constvars, strict=True
        ):
            out = jax.core.eval_jaxpr(jaxpr, [temps[v] for v in constvars], temps[r.y_var])
            for path, value in zip(group.hidden_paths, out, strict=True):
                np.testing.assert_allclose(value, new[path], rtol=1e-12)
        joined = r.y_to_hidden_groups(temps[r.y_var], temps)
        for group, found in zip(r.hidden_groups, joined, strict=True):
            np.testing.assert_allclose(found, group.concat_hidden([new[p] for p in group.hidden_paths]), rtol=1e-12)


def check_pieces(model, x, executor, diff=jax.jacrev, keep=lambda key: True):
    output, hidden, other, (h2w, h2h) = jax.jit(executor.solve_h2w_h2h_jacobian)(x)
    expected, new = run(model, values(model), x)
    np.testing.assert_allclose(output, expected, rtol=1e-12)
    for path, value in hidden.items():
        np.testing.assert_allclose(value, new[path], rtol=1e-12)
    assert other == {}
    for r in executor.graph.hidden_param_op_relations:
        for group, place in zip(r.hidden_groups, r.positions, strict=True):
            key = (r.leaf_path, r.op, group.index)
            if not keep(key):
                continue
            dense = np.asarray(h2w[key].dense())
            assert h2w[key].df.shape == (*place.shape, group.num_state)
            assert (h2w[key].x is None) == (r.x_var is None)
            for s, path in enumerate(group.hidden_paths):
                check_dense(
                    dense[..., s], np.asarray(jacobian(model, x, r.leaf_path, path, diff)), place, new[path].shape
                )
    return h2w, h2h


def check_dense(dense, expected, place, hidden_shape):
    """An entry (o, i) of `dense` is the Jacobian's at position pos(o); elsewhere the Jacobian is zero."""
    n_hidden, outputs = int(np.prod(hidden_shape)), place.shape[-1]
    flat = expected.reshape(n_hidden, -1, outputs)  # (position, rows of w, column o)
    rows = place.reshape(-1, outputs)  # (sample, o) -> position
    found = dense.reshape(rows.shape[0], -1, outputs)
    picked = np.stack([[flat[rows[b, o], :, o] for o in range(outputs)] for b in range(rows.shape[0])])
    np.testing.assert_allclose(found, np.swapaxes(picked, 1, 2), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.sum(), flat.sum(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("name", "batched"), ALL)
def test_executor_jacobians(name, batched):
    model, x = build(name, batched)
    executor = ETraceGraphExecutor(model)
    executor.compile_graph(x)
    before = values(model)
    _, h2h = check_pieces(model, x, executor)
    (group,) = executor.graph.hidden_groups
    np.testing.assert_allclose(h2h[0], blocks(model, x, group.hidden_paths), rtol=1e-10, atol=1e-12)
    assert all(jax.tree.all(jax.tree.map(lambda a, b: a is b, v, before[p])) for p, v in values(model).items())


@pytest.mark.parametrize("batched", [False, True])
def test_linear_recurrent_unit(batched):
    """A complex state driven by real weight ops: D and F are complex numbers."""
    model, x = build(lambda: etrax.nn.LRUCell(I, H), batched)
    executor = ETraceGraphExecutor(model)
    executor.compile_graph(x)
    (group,) = executor.graph.hidden_groups
    assert group.num_state == 1
    holomorphic = lambda f: jax.jacrev(f, holomorphic=True)
    expected = blocks(model, x, group.hidden_paths, holomorphic)
    hidden, inputs = group_inputs(executor.graph, group, x)
    np.testing.assert_allclose(group.diagonal_jacobian(hidden, inputs), expected, rtol=1e-10)
    matrices = lambda key: key[0] in {("B_re",), ("B_im",)}
    _, h2h = check_pieces(model, x, executor, jax.jacfwd, keep=matrices)
    np.testing.assert_allclose(h2h[0], expected, rtol=1e-10)
    reached = {r.path[0] for r in executor.graph.hidden_param_op_relations}
    assert reached == {"B_re", "B_im", "nu_log", "theta_log", "gamma_log"}


@pytest.mark.parametrize("name", list(CELLS))
def test_perturbation_gradient(name):
    """∂L/∂p is ∂L/∂h through the readout, for the state that the readout reads."""
    net, x = build(lambda: Net(CELLS[name][0]()), True)
    graph = compile_etrace_graph(net, x)
    loss = lambda out: jnp.sum(jnp.sin(out) * jnp.arange(out.size).reshape(out.shape))
    p = graph.hidden_perturb.init_perturb_data()
    grads = jax.grad(lambda p: loss(graph.call_hidden_perturb((x,), p)[0]))(p)
    found = dict(zip(graph.hidden_perturb.perturb_hidden_paths, grads, strict=True))
    read = {"LIF": "z", "ALIF": "z"}.get(name.split()[1], "h")
    _, new = run(net, values(net), x)

    def from_hidden(h):
        with brainstate.StateTraceStack():
            return loss(net.readout(h))

    np.testing.assert_allclose(found["cell", read], jax.grad(from_hidden)(new["cell", read]), rtol=1e-10)
    executor = ETraceGraphExecutor(net)
    executor.compile_graph(x)
    output, *_, pull = jax.jit(executor.solve_h2w_h2h_l2h_jacobian)(x)
    pulled = pull(jax.grad(loss)(output))
    for path, g in found.items():
        np.testing.assert_allclose(pulled[path], g, rtol=1e-10, atol=1e-14)


def test_perturbation_of_a_chained_state():
    """An LSTM's c acts on the output through h in the same step."""
    net, x = build(lambda: Net(etrax.nn.LSTMCell(I, H)), False)
    graph = compile_etrace_graph(net, x)
    grad = jax.grad(lambda p: jnp.sum(graph.call_hidden_perturb((x,), p)[0] ** 2))(
        graph.hidden_perturb.init_perturb_data()
    )
    found = dict(zip(graph.hidden_perturb.perturb_hidden_paths, grad, strict=True))
    _, new = run(net, values(net), x)
    c, h = new["cell", "c"], new["cell", "h"]
    np.testing.assert_allclose(
        found["cell", "c"], found["cell", "h"] * h / jnp.tanh(c) * (1 - jnp.tanh(c) ** 2), rtol=1e-9
    )


def test_perturbed_values():
    model, x = build("etrax LSTM", True)
    graph = compile_etrace_graph(model, x)
    p = [0.1 * (k + 1) + v for k, v in enumerate(graph.hidden_perturb.init_perturb_data())]
    plain, hidden, _, _ = graph.call_hidden_perturb((x,), graph.hidden_perturb.init_perturb_data())
    np.testing.assert_allclose(plain, run(model, values(model), x)[0], rtol=1e-12)
    moved, after, _, _ = graph.call_hidden_perturb((x,), p)
    assert graph.hidden_perturb.perturb_hidden_paths == [("h",), ("c",)]
    np.testing.assert_allclose(after["c",], hidden["c",] + 0.2, rtol=1e-12)
    np.testing.assert_allclose(
        after["h",], hidden["h",] / jnp.tanh(hidden["c",]) * jnp.tanh(after["c",]) + 0.1, rtol=1e-9
    )
    np.testing.assert_allclose(moved, after["h",], rtol=1e-12)
    (data,) = graph.hidden_perturb.perturb_data_to_hidden_group_data(p, graph.hidden_groups)
    assert data.shape == (B, H, 2)
    np.testing.assert_allclose(data[..., 1], 0.2)
    with pytest.raises(ValueError, match="2"):
        graph.hidden_perturb.perturb_data_to_hidden_group_data(p[:1], graph.hidden_groups)
    old = {**values(model), ("c",): 2 * values(model)["c",]}
    np.testing.assert_allclose(
        graph.call_hidden_perturb((x,), p, old)[1]["c",], run(model, old, x)[1]["c",] + 0.2, rtol=1e-12
    )
