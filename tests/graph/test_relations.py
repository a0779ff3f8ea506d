"""What authors of algorithms read off a relation: its equation, its leaves, the way to the states, a contraction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import etrax
from etrax.graph import ETraceGraphExecutor

B, I, N = 2, 3, 4
RNG = np.random.RandomState(0)
draw = lambda *shape: jnp.asarray(RNG.standard_normal(shape))
W, R, V, BIAS, MASK = draw(I, N), draw(N, N), draw(N, I), draw(N), jnp.asarray(RNG.randint(0, 2, (I, N)) * 1.0)
X, HIDDEN = draw(B, I), draw(B, N)
stop = lax.stop_gradient


def leaky(y, h, cut):
    return jnp.tanh(0.5 * h + y)


# Steps with their parameters, hidden state and input. `cut` stops the gradient where a weight op reads the state.


def dense(p, h, x, cut=False):
    new = leaky(x @ p["w"] + (stop(h) if cut else h) @ p["r"] + p["b"], h, cut)
    return new, new


def composed(p, h, x, cut=False):
    """The op's weight is made of two leaves and a constant."""
    new = leaky(x @ (jnp.abs(p["a"]) * p["g"] * MASK) + x @ p["t"].T, h, cut)
    return new, new


def leak(p, h, x, cut=False):
    new = jax.nn.sigmoid(p["leak"]) * h + p["gain"] * jnp.sin(x @ MASK) + x @ p["w"]
    return new, new


def looped(p, h, x, cut=False):
    def inner(h, _):
        return leaky((stop(h) if cut else h) @ p["r"] + x @ p["w"] + p["b"], h, cut), None

    new, _ = lax.scan(inner, h, None, length=3)
    return new, new


def sliced(p, h, x, cut=False):
    """A loop over layers: another weight in each iteration."""

    def inner(h, w):
        return leaky(x @ w, h, cut), None

    new, _ = lax.scan(inner, h, p["ws"])
    return new, new


def branched(p, h, x, cut=False):
    one = lambda h: leaky(x @ p["w"], h, cut)
    other = lambda h: leaky((stop(h) if cut else h) @ p["r"], h, cut)
    new = lax.cond(x[0, 0] > 0, one, other, h)
    return new, new


def nested_loops(p, h, x, cut=False):
    def outer(h, _):
        def inner(h, s):
            return leaky(s * (x @ p["w"]), h, cut), None

        return lax.scan(inner, h, jnp.arange(1.0, 3.0))[0], None

    new, _ = lax.scan(outer, h, None, length=2)
    return new, new


def convolved(p, h, x, cut=False):
    y = lax.conv_general_dilated(x, p["k"], (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC"))
    new = leaky(y, h, cut)
    return new, new


def looked_up(p, h, x, cut=False):
    new = leaky(p["table"][x], h, cut)
    return new, new


def pair(p, h, x, cut=False):
    c = jax.nn.sigmoid(x @ p["f"]) * h["c"] + x @ p["i"]
    return {"c": c, "h": jnp.tanh(c) * jax.nn.sigmoid(x @ p["o"])}, c


def complex_state(p, h, x, cut=False):
    z = (0.3 + 0.4j) * h + x @ (p["re"] + 1j * p["im"]) + x @ p["z"]
    return z, z.real


STEPS = {
    "dense": (dense, {"w": W, "r": R, "b": BIAS}, HIDDEN, X),
    "composed": (composed, {"a": W, "g": draw(I, 1), "t": V}, HIDDEN, X),
    "leak": (leak, {"leak": BIAS, "gain": draw(), "w": W}, HIDDEN, X),
    "looped": (looped, {"w": W, "r": 0.3 * R, "b": BIAS}, HIDDEN, X),
    "sliced": (sliced, {"ws": draw(3, I, N)}, HIDDEN, X),
    "branch": (branched, {"w": W, "r": R}, HIDDEN, jnp.abs(X)),
    "other branch": (branched, {"w": W, "r": R}, HIDDEN, -jnp.abs(X)),
    "nested loops": (nested_loops, {"w": W}, HIDDEN, X),
    "convolved": (convolved, {"k": draw(3, I, N)}, draw(B, 5, N), draw(B, 5, I)),
    "looked up": (looked_up, {"table": draw(7, N)}, HIDDEN, jnp.array([2, 5])),
    "pair": (pair, {"f": W, "i": draw(I, N), "o": draw(I, N)}, {"c": HIDDEN, "h": draw(B, N)}, X),
    "complex": (complex_state, {"re": W, "im": draw(I, N), "z": W + 1j * draw(I, N)}, HIDDEN + 1j, X),
}


@pytest.fixture(scope="module", params=list(STEPS))
def case(request):
    step, params, hidden, x = STEPS[request.param]
    executor = ETraceGraphExecutor(step, params=params, hidden=hidden)
    executor.compile_graph(x)
    return step, params, hidden, x, executor


def test_one_contraction_for_every_family(case):
    """The pieces of a leaf, contracted with ∂L/∂h', are its gradient through one cut step."""
    step, params, hidden, x, executor = case
    *_, (h2w, _) = jax.jit(executor.solve_h2w_h2h_jacobian)(x)
    new, pull = jax.vjp(lambda p: step(p, hidden, x, cut=True)[0], params)
    rng = np.random.RandomState(5)
    cotangent = jax.tree.map(lambda v: jnp.asarray(rng.standard_normal(v.shape)).astype(v.dtype), new)
    if any(jnp.iscomplexobj(v) for v in jax.tree.leaves(new)):
        cotangent = jax.tree.map(lambda v: v * (1 - 0.5j), cotangent)
    expected = pull(cotangent)[0]
    values = {(k,): v for k, v in cotangent.items()} if isinstance(cotangent, dict) else {(): cotangent}
    signals = [g.concat_hidden([values[p] for p in g.hidden_paths]) for g in executor.graph.hidden_groups]
    grads = jax.tree.map(jnp.zeros_like, params)
    for (path, _, group), piece in h2w.items():
        once = piece.contract(signals[group])
        np.testing.assert_allclose(2 * once, piece.contract(signals[group], 2 * piece.dense()), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(
            once, jax.jit(lambda p, s: p.contract(s))(piece, signals[group]), rtol=1e-9, atol=1e-12
        )
        assert once.shape == params[path[0]].shape and once.dtype == params[path[0]].dtype
        grads[path[0]] = grads[path[0]] + once
    for name in params:
        np.testing.assert_allclose(grads[name], expected[name], rtol=1e-9, atol=1e-12)


def test_a_signal_that_does_not_fit(case):
    *_, x, executor = case
    *_, (h2w, _) = executor.solve_h2w_h2h_jacobian(x)
    piece = next(iter(h2w.values()))
    with pytest.raises(ValueError, match="a value for each state"):
        piece.contract(jnp.ones((B, N, piece.df.shape[-1] + 1)))


def test_equations_and_leaves(case):
    _, _params, _, _, executor = case
    info = executor.graph.module_info
    variables = {p: vs for p, vs in info.weight_path_to_invars.items()}
    for r in executor.graph.hidden_param_op_relations:
        assert isinstance(r.primitive.name, str) and r.primitive.name == str(r.primitive)
        assert isinstance(r.eqn_params, dict)
        if r.primitive.name == "dot_general":
            assert "dimension_numbers" in r.eqn_params
        if r.primitive.name == "conv_general_dilated":
            assert r.eqn_params["window_strides"] == (1,)
        assert r.trainable_paths.keys() == r.trainable_vars.keys() and r.path in r.trainable_paths.values()
        for name, path in r.trainable_paths.items():
            assert path == (name,) and variables[path] == (r.trainable_vars[name],)
            assert r.trainable_vars[name] in info.weight_invars
        assert all(f"{field}=" in repr(r) for field in r._fields)


def test_leaves_of_one_weight():
    step, params, hidden, x = STEPS["composed"]
    relations = etrax.find_hidden_param_op_relations_from_module(step, x, params=params, hidden=hidden)
    assert [(r.leaf_path, list(r.trainable_paths)) for r in relations] == [
        (("a",), ["a", "g"]),
        (("g",), ["a", "g"]),
        (("t",), ["t"]),
    ]
    same = lambda p, h, x: (0.9 * h + x @ (p["a"]["w"] * p["b"]["w"]),) * 2
    given = {"params": {"a": {"w": W}, "b": {"w": W}}, "hidden": HIDDEN}
    first, _ = etrax.find_hidden_param_op_relations_from_module(same, x, **given)
    assert first.trainable_paths == {"a.w": ("a", "w"), "b.w": ("b", "w")}
    (bare,) = etrax.find_hidden_param_op_relations_from_module(
        lambda w, h, x: (0.9 * h + x @ w,) * 2, x, params=W, hidden=HIDDEN
    )
    assert bare.trainable_paths == {"weight": ()}


def test_a_parameter_that_is_the_new_state():
    (relation,) = etrax.find_hidden_param_op_relations_from_module(
        lambda p, h, x: (p["start"], h + x), HIDDEN, params={"start": HIDDEN}, hidden=HIDDEN
    )
    assert relation.primitive.name == "output" and relation.eqn_params == {} and relation.x_var is None


def test_variables_of_leaves_are_those_of_a_step_with_copies():
    """States that share a value are copied, which renames all variables of the step."""

    def step(p, h, x):
        new = 0.5 * h["a"] + x @ p["w"]
        return {"a": new, "b": new}, new

    given = {"params": {"w": W}, "hidden": {"a": HIDDEN, "b": HIDDEN}}
    graph = etrax.compile_etrace_graph(step, X, **given)
    for r in graph.hidden_param_op_relations:
        assert r.trainable_vars["w"] in graph.module_info.jaxpr.invars


# Ops inside loops and branches.


@pytest.mark.parametrize("name", ["looped", "sliced", "branch", "other branch", "nested loops"])
def test_nested_ops_lead_to_hidden_values(name):
    """y of all iterations, as the step computes it, leads to the step's new values; another y to other ones."""
    step, params, hidden, x = STEPS[name]
    executor = ETraceGraphExecutor(step, params=params, hidden=hidden)
    executor.compile_graph(x)
    new, _, _, (h2w, _) = executor.solve_h2w_h2h_jacobian(x)
    *_, temps = executor.graph.module_info.jaxpr_call(x)
    nested = [r for r in executor.graph.hidden_param_op_relations if r.nested]
    assert nested
    for r in nested:
        piece = h2w[r.leaf_path, r.op, 0]
        (jaxpr,) = r.y_to_hidden_group_jaxprs
        shape = jaxpr.invars[-1].aval.shape
        assert shape[len(shape) - r.y_var.aval.ndim :] == r.y_var.aval.shape
        if piece.x is None:  # a bias: what it is added to is not shown
            continue
        y = piece.x @ params[r.leaf_path[0]]
        assert y.shape == shape
        (found,) = r.y_to_hidden_groups(y, temps, concat_hidden_vals=False)
        np.testing.assert_allclose(found[0], new, rtol=1e-10)
        (other,) = r.y_to_hidden_groups(y + 0.5, temps, concat_hidden_vals=False)
        not_taken = {"branch": ("r",), "other branch": ("w",)}.get(name) == r.leaf_path
        assert np.allclose(other[0], new) == not_taken
        # The derivative in y is the piece's, at the position that each element reaches.
        jac = jax.grad(lambda y, r=r: r.y_to_hidden_groups(y, temps, concat_hidden_vals=False)[0][0].sum())(y)
        np.testing.assert_allclose(jac, piece.df[..., 0], rtol=1e-9, atol=1e-12)
