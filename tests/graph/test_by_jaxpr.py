"""The entry points by jaxpr give what the module path gives, and refuse what does not fit by name."""

import contextlib
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

brainstate = pytest.importorskip("brainstate")
u = pytest.importorskip("saiunit")

from tests.graph.cells import build  # noqa: E402
from tests.graph.test_columns import Grouped  # noqa: E402

import etrax  # noqa: E402
import etrax.nn  # noqa: E402
from etrax import graph as api  # noqa: E402

I, N = 3, 4
RNG = np.random.RandomState(0)
W, R, MASK = (jnp.asarray(RNG.standard_normal(s)) for s in ((I, N), (N, N), (N, N)))
X, HIDDEN = jnp.asarray(RNG.standard_normal(I)), jnp.asarray(RNG.standard_normal(N))


def function(step, hidden, params=None):
    return lambda: etrax.extract_module_info(
        step, X, params={"w": W, "r": R} if params is None else params, hidden=hidden
    )


def cell(name, batched=False):
    def make():
        model, x = build(name, batched)
        return etrax.extract_module_info(model, x)

    return make


def masked(p, h, x):
    new = jnp.tanh(0.5 * h + h @ (p["r"] * MASK) + x @ p["w"])
    return new, new


def fixed_matrix(p, h, x):
    new = jnp.tanh(h @ MASK + x @ p["w"])
    return new, new


def indexed(p, h, x):
    """Which positions meet is in the values of a constant."""
    order = jnp.asarray(np.array([2, 0, 3, 1]))
    a = 0.9 * h["a"] + x @ p["w"]
    return {"a": a, "b": 0.5 * h["b"] + a[order]}, a


def looped(p, h, x):
    def inner(h, _):
        return jnp.tanh(0.5 * h + h @ p["r"] + x @ p["w"]), None

    new, _ = lax.scan(inner, h, None, length=2)
    return new, new


def branched(p, h, x):
    new = lax.cond(x[0] > 0, lambda h: 0.9 * h + x @ p["w"], lambda h: 0.5 * h @ p["r"], h)
    return new, new


def while_loop(p, h, x):
    new = lax.while_loop(lambda h: h.sum() < 5.0, lambda h: jnp.abs(h) * 1.5 + jnp.abs(x @ p["w"]) + 0.1, h)
    return new, new


def shared(p, h, x):
    """Two states take one value, one is only read, one is set to a constant, one counts."""
    new = jnp.tanh(0.5 * h["h1"] + 0.1 * h["h2"] + h["a"] + x @ p["w"])
    return {"h1": new, "h2": new, "a": h["a"], "z": jnp.zeros(()), "n": h["n"] + 1}, new**2


SHARED = {"h1": HIDDEN, "h2": HIDDEN, "a": HIDDEN, "z": jnp.ones(()), "n": jnp.zeros(N, int)}


def complex_state(p, h, x):
    z = (0.3 + 0.4j) * h["z"] + x @ p["w"]
    return {"z": z, "r": 0.8 * h["r"] + z.real}, z.real


INFOS = {
    **{name: cell(name) for name in ("etrax GRU", "etrax LSTM", "etrax ALIF", "brainstate GRU")},
    "LSTM batch": cell("etrax LSTM", True),
    "LRU": cell(lambda: etrax.nn.LRUCell(I, N)),
    "group state": lambda: etrax.extract_module_info(Grouped(), X),
    "units": lambda: etrax.extract_module_info(Grouped(u.mV), X),
    "masked": function(masked, HIDDEN),
    "fixed matrix": function(fixed_matrix, HIDDEN),
    "indexed": function(indexed, {"a": HIDDEN, "b": HIDDEN}),
    "looped": function(looped, HIDDEN),
    "branched": function(branched, HIDDEN),
    "while": function(while_loop, HIDDEN),
    "shared": function(shared, SHARED),
    "complex": function(complex_state, {"z": HIDDEN + 1j, "r": HIDDEN}),
    "array": function(lambda w, h, x: (0.9 * h + x @ w,) * 2, {"b": HIDDEN, "a": HIDDEN}["a"], W),
}


@pytest.fixture(scope="module", params=list(INFOS))
def info(request):
    return INFOS[request.param]()


def arguments(info):
    states = {leaf.path: leaf.state for leaf in info.hidden_leaves}
    order = [leaf.path for leaf in info.step.states if leaf.path in states]  # that of the trees
    return (
        info.hidden_outvar_to_invar,
        set(info.weight_invars),
        info.invar_to_hidden_path,
        info.outvar_to_hidden_path,
        {path: states[path] for path in order},
    )


@pytest.mark.parametrize("closed", [False, True])
def test_groups_are_those_of_the_module(info, closed):
    expected, by_path = etrax.find_hidden_groups_from_minfo(info)
    if not closed and any(v.aval.dtype.kind == "i" for v in info.jaxpr.constvars):
        return  # which elements meet is in the values of an index, which an open jaxpr does not hold
    found, found_by_path = api.find_hidden_groups_from_jaxpr(
        info.closed_jaxpr if closed else info.jaxpr, *arguments(info)
    )
    api.order_hidden_group_index(found)
    assert len(found) == len(expected) and list(found_by_path) == list(by_path)
    for a, b in zip(found, expected, strict=True):
        fields = ("index", "hidden_paths", "hidden_invars", "hidden_outvars", "transition_jaxpr_constvars", "tag")
        assert all(getattr(a, name) == getattr(b, name) for name in fields)
        assert all(x is y for x, y in zip(a.hidden_states, b.hidden_states, strict=True))
        assert (a.varshape, a.num_state) == (b.varshape, b.num_state)
        assert [e.primitive for e in a.transition_jaxpr.eqns] == [e.primitive for e in b.transition_jaxpr.eqns]
        np.testing.assert_array_equal(*(np.zeros(0) if g.colour is None else np.asarray(g.colour) for g in (a, b)))
    assert all(found_by_path[p] is found[g.index] for p, g in by_path.items())


def test_perturbation_is_that_of_the_module(info):
    expected = etrax.add_hidden_perturbation_from_minfo(info)
    found = api.add_hidden_perturbation_in_jaxpr(info.closed_jaxpr, *arguments(info))
    assert found.perturb_hidden_paths == expected.perturb_hidden_paths
    assert all(a is b for a, b in zip(found.perturb_hidden_states, expected.perturb_hidden_states, strict=True))
    rng = np.random.RandomState(4)
    flat = [jnp.asarray(rng.standard_normal(v.aval.shape)).astype(v.aval.dtype) for v in info.jaxpr.invars]
    moves = [jnp.asarray(rng.standard_normal(v.aval.shape)).astype(v.aval.dtype) for v in found.perturb_vars]
    for a, b in zip(found.eval_jaxpr(flat, moves), expected.eval_jaxpr(flat, moves), strict=True):
        np.testing.assert_array_equal(a, b)


# A jaxpr by hand, with calls.


def traced(step, *args):
    closed = jax.make_jaxpr(step)(*args)
    return closed, list(getattr(closed, "jaxpr", closed).invars), list(getattr(closed, "jaxpr", closed).outvars)


def two_layers(a, b, w, r, x):
    @jax.jit
    def lower(a):
        return 0.9 * a + x @ w, x

    a, same = lower(a)
    b, _ = jax.jit(lambda b: (jax.checkpoint(jnp.tanh)(b @ r + a), b))(b)
    return a, b, same @ w + b


def named(invars, outvars):
    (a, b, w, r, _), (na, nb, _) = invars, outvars
    paths = {a: ("a",), b: ("b",)}, {na: ("a",), nb: ("b",)}
    return {na: a, nb: b}, {w, r}, *paths, {("a",): HIDDEN, ("b",): HIDDEN}


def test_calls_are_written_out():
    closed, invars, outvars = traced(two_layers, HIDDEN, HIDDEN, W, R, X)
    groups, _by_path = api.find_hidden_groups_from_jaxpr(closed, *named(invars, outvars))
    step = lambda p, h, x: (lambda a, b, o: ({"a": a, "b": b}, o))(*two_layers(h["a"], h["b"], p["w"], p["r"], x))
    values = {"params": {"w": W, "r": R}, "hidden": {"a": HIDDEN, "b": HIDDEN}}
    expected, _ = etrax.find_hidden_groups_from_module(step, X, **values)
    assert [g.hidden_paths for g in groups] == [g.hidden_paths for g in expected]
    assert [v for g in groups for v in g.hidden_outvars] == outvars[:2]
    perturbation = api.add_hidden_perturbation_in_jaxpr(closed, *named(invars, outvars))
    given = [HIDDEN, 2 * HIDDEN, W, R, X]
    outs = perturbation.eval_jaxpr(given, [jnp.full(N, 0.5), jnp.full(N, 0.25)])
    a = two_layers(*given)[0] + 0.5
    b = jnp.tanh(2 * HIDDEN @ R + a) + 0.25
    for found, wanted in zip(outs, (a, b, X @ W + b), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_transitions_of_a_jaxpr_with_calls_run():
    closed, invars, outvars = traced(two_layers, HIDDEN, HIDDEN, W, R, X)
    _groups, by_path = api.find_hidden_groups_from_jaxpr(closed, *named(invars, outvars))
    group = by_path["a",]
    zeros = [jnp.zeros(v.aval.shape) for v in group.transition_jaxpr_constvars]
    start = [jnp.zeros(N)] * len(group.hidden_paths)
    moved = [HIDDEN if p == ("a",) else s for p, s in zip(group.hidden_paths, start, strict=True)]
    at = group.hidden_paths.index(("a",))
    np.testing.assert_allclose(group.transition(moved, zeros)[at], 0.9 * HIDDEN, rtol=1e-12)


def test_a_state_that_a_call_passes_on():
    def step(h, k, x):
        k, h = jax.jit(lambda h, k: (k, 0.5 * h + x))(h, k)
        return h, k

    closed, (h, k, _x), (nh, nk) = traced(step, HIDDEN, HIDDEN, HIDDEN)
    given = {nh: h, nk: k}, set(), {h: ("h",), k: ("k",)}, {nh: ("h",), nk: ("k",)}, {("h",): HIDDEN, ("k",): HIDDEN}
    groups, by_path = api.find_hidden_groups_from_jaxpr(closed, *given)
    assert set(by_path) == {("h",), ("k",)}
    assert [v for g in groups for v in g.hidden_outvars] == [nh, nk]


# What does not fit.


def bad_inputs():
    closed, invars, outvars = traced(two_layers, HIDDEN, HIDDEN, W, R, X)
    _, (other, *_), (made, *_) = traced(lambda h: 2 * h, HIDDEN)  # variables of another jaxpr
    (a, b, w, _, x), (na, nb, o) = invars, outvars
    pairs, weights, before, after, states = named(invars, outvars)
    return closed, {
        "an unknown weight": ((pairs, {w, other}, before, after, states), "weight_invars"),
        "a weight that is made": ((pairs, {w, o}, before, after, states), "no input of the jaxpr"),
        "an unknown output": (({made: a, nb: b}, weights, before, {**after, made: ("a",)}, states), "'a'.*not define"),
        "an unknown input": (({na: other, nb: b}, weights, {**before, other: ("a",)}, after, states), "'a'.*no input"),
        "no path before": ((pairs, weights, {a: ("a",)}, after, states), "invar_to_hidden_path"),
        "no path after": ((pairs, weights, before, {nb: ("b",)}, states), "outvar_to_hidden_path"),
        "crossed states": (({na: b, nb: a}, weights, before, after, states), "pairs hidden state 'b'.*'a'"),
        "one path twice": (
            (pairs, weights, {a: ("a",), b: ("a",)}, {na: ("a",), nb: ("a",)}, states),
            "'a': two pairs",
        ),
        "one input twice": (({na: a, nb: a}, weights, {a: ("a",)}, {na: ("a",), nb: ("a",)}, states), "'a'"),
        "a state that is missing": ((pairs, weights, before, after, {("a",): HIDDEN}), "'b'.*path_to_state"),
        "a state that is a weight": ((pairs, {w, a}, before, after, states), "'a'.*weight_invars"),
        "another shape": (
            ({o: x, nb: b}, weights, {x: ("a",), b: ("b",)}, {o: ("a",), nb: ("b",)}, states),
            "'a'.*takes",
        ),
    }


@pytest.mark.parametrize("name", list(bad_inputs()[1]))
def test_what_does_not_fit_is_refused(name):
    closed, cases = bad_inputs()
    given, message = cases[name]
    for call in (api.find_hidden_groups_from_jaxpr, api.add_hidden_perturbation_in_jaxpr):
        with pytest.raises(ValueError, match=message):
            call(closed, *given)
        with pytest.raises(ValueError, match=r"jax\.make_jaxpr"):
            call("not a jaxpr", *given)


def test_a_state_that_no_equation_makes_cannot_be_perturbed():
    closed, (h, k, _x), (nh, nk) = traced(lambda h, k, x: (0.9 * h + x, k), HIDDEN, HIDDEN, HIDDEN)
    assert nk is k
    given = {nh: h, k: k}, set(), {h: ("h",), k: ("kept",)}, {nh: ("h",), k: ("kept",)}
    states = {("h",): HIDDEN, ("kept",): HIDDEN}
    with pytest.raises(ValueError, match="no equation of the jaxpr makes hidden state 'kept'"):
        api.add_hidden_perturbation_in_jaxpr(closed, *given, states)
    groups, _ = api.find_hidden_groups_from_jaxpr(closed, *given, states)
    assert [g.hidden_paths for g in groups] == [[("h",)], [("kept",)]]
    np.testing.assert_array_equal(groups[1].transition([HIDDEN], [])[0], HIDDEN)


def test_a_jaxpr_without_its_constants_cannot_be_perturbed():
    closed, invars, outvars = traced(lambda h, x: jnp.tanh(h @ MASK + x), HIDDEN, HIDDEN)
    open_one = getattr(closed, "jaxpr", None)
    if not getattr(open_one, "constvars", ()) or getattr(open_one, "consts", ()):
        return  # a jaxpr of this version of JAX holds its constants
    given = {outvars[0]: invars[0]}, set(), {invars[0]: ("h",)}, {outvars[0]: ("h",)}, {("h",): HIDDEN}
    assert len(api.find_hidden_groups_from_jaxpr(open_one, *given)[0]) == 1
    with pytest.raises(ValueError, match="closed jaxpr"):
        api.add_hidden_perturbation_in_jaxpr(open_one, *given)


# Merging.


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("seed", range(5))
def test_merging(version, seed):
    """Against the components of a graph in which members of one set are joined."""
    rng = np.random.RandomState(seed)
    sets = [tuple(rng.choice(30, rng.randint(1, 5), replace=False)) for _ in range(12)]
    merged = api.group_merging(iter(sets), version=version)
    label = {m: m for s in sets for m in s}
    for _ in label:
        for s in sets:
            low = min(label[m] for m in s)
            label.update(dict.fromkeys(s, low))
    expected = {frozenset(m for m in label if label[m] == k) for k in label.values()}
    assert set(merged) == expected and len(merged) == len(expected)
    assert all(isinstance(s, frozenset) for s in merged)


def test_merging_keeps_order_and_refuses_other_versions():
    assert api.group_merging([("a", "b"), ("b", "c"), ("d", "e")]) == [{"a", "b", "c"}, {"d", "e"}]
    assert api.group_merging([]) == []
    assert api.group_merging([("d",), ("a",), ("d", "a")]) == [{"a", "d"}]
    for version in (2, -1, None, "1"):
        with pytest.raises(ValueError, match="version"):
            api.group_merging([("a",)], version=version)


# Transitions.


def parts_of(info, group):
    """The equations between each state of a group and the group, as its own jaxpr: what each state acts on."""
    out = {}
    for path, invar in zip(group.hidden_paths, group.hidden_invars, strict=True):
        moving, eqns = {invar}, []
        for eqn in group.transition_jaxpr.eqns:
            if any(v in moving for v in eqn.invars if hasattr(v, "count") or v.__class__.__name__ == "Var"):
                moving.update(eqn.outvars)
                eqns.append(eqn)
        jaxpr = group.transition_jaxpr.replace(eqns=eqns)
        reached = [v for v in group.hidden_outvars if v in moving]
        out[invar] = api.Hidden2GroupTransition(invar, path, reached, [], jaxpr, [])
    return out


@pytest.mark.parametrize("name", ["etrax LSTM", "etrax ALIF", "LSTM batch", "group state", "complex", "indexed"])
def test_a_transition_from_its_parts(name):
    info = INFOS[name]()
    groups, _ = etrax.find_hidden_groups_from_minfo(info)
    for group in groups:
        jaxpr = api.write_jaxpr_of_hidden_group_transition(
            parts_of(info, group), group.hidden_invars, group.hidden_outvars
        )
        assert sorted(map(id, jaxpr.eqns)) == sorted(map(id, group.transition_jaxpr.eqns))
        rng = np.random.RandomState(1)
        draw = lambda v, rng=rng: jnp.asarray(rng.standard_normal(v.aval.shape)).astype(v.aval.dtype)
        rest = {v: draw(v) for v in group.transition_jaxpr_constvars}
        hidden = [draw(v) for v in group.hidden_invars]
        others = [*jaxpr.constvars, *jaxpr.invars][: -len(hidden)]
        assert set(others) == set(rest)
        found = jax.core.eval_jaxpr(jaxpr, [rest[v] for v in others], *hidden)
        for a, b in zip(found, group.transition(hidden, list(rest.values())), strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_transition_needs_all_of_its_parts():
    info = INFOS["etrax LSTM"]()
    (group,), _ = etrax.find_hidden_groups_from_minfo(info)
    with pytest.raises(ValueError, match="number 1 of `hidden_invars`"):
        first = {group.hidden_invars[0]: group}
        api.write_jaxpr_of_hidden_group_transition(first, group.hidden_invars, group.hidden_outvars)
    with pytest.raises(ValueError, match="empty"):
        api.write_jaxpr_of_hidden_group_transition({}, [], [])


# Blocks.


def roll(h):
    return jnp.tanh(h * jnp.roll(h, 1, 0)[..., ::-1]) + 0.1 * h.sum()


FUNCTIONS = {
    "elementwise": lambda h: jnp.sin(h) * h,
    "states mix": lambda h: jnp.tanh(h @ R[:2, :2]) + jnp.flip(h, -1) ** 2,
    "positions mix": roll,
    "constant": lambda h: jnp.ones_like(h),
    "reversed": lambda h: h[::-1] ** 2,
}


@pytest.mark.parametrize("shape", [(3, 2), (2, 3, 2), (2,), (1, 2), (0, 2)])
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_blocks_of_a_function(name, shape):
    fn, h = FUNCTIONS[name], jnp.asarray(np.random.RandomState(2).standard_normal(shape))
    count, states = int(np.prod(shape[:-1])), shape[-1]
    dense = np.asarray(jax.jacfwd(fn)(h)).reshape(count, states, count, states)
    expected = (
        np.stack([dense[p, :, p] for p in range(count)]).reshape(*shape, states) if count else np.zeros((0, 2, 2))
    )
    for run in (api.jacrev_last_dim, jax.jit(api.jacrev_last_dim, static_argnums=0)):
        np.testing.assert_allclose(run(fn, h), expected, rtol=1e-10, atol=1e-12)


def test_blocks_of_a_complex_function():
    fn, h = lambda h: h[..., ::-1] * h * (1 + 2j), HIDDEN.reshape(2, 2) + 1j
    dense = jax.jacfwd(fn, holomorphic=True)(h)
    np.testing.assert_allclose(api.jacrev_last_dim(fn, h), np.stack([dense[p, :, p] for p in range(2)]), rtol=1e-10)


@pytest.mark.parametrize("fn", [lambda h: h[..., :1], lambda h: h[:1], lambda h: h.sum(-1), lambda h: h[None]])
def test_blocks_need_as_many_states_out_as_in(fn):
    with pytest.raises(AssertionError):
        api.jacrev_last_dim(fn, jnp.ones((3, 2)))


# Order and context.


def test_groups_are_at_their_places():
    (group,), _ = etrax.find_hidden_groups_from_minfo(INFOS["etrax LSTM"]())
    api.order_hidden_group_index([group, group._replace(index=1)])
    with pytest.raises(AssertionError, match="group 1 is at place 0"):
        api.order_hidden_group_index([group._replace(index=1)])


def test_one_context_on_a_thread():
    compile_one = lambda: etrax.compile_etrace_graph(lambda w, h, x: (0.9 * h + x @ w,) * 2, X, params=W, hidden=HIDDEN)
    with api.compiler_context("outer"):
        with (
            pytest.raises(NotImplementedError, match="`inner` was called while `outer`"),
            api.compiler_context("inner"),
        ):
            pass
        with pytest.raises(NotImplementedError, match="outer"):
            compile_one()
        found = []
        other = threading.Thread(target=lambda: found.append(compile_one()))
        other.start()
        other.join()
        assert len(found) == 1
    with contextlib.suppress(RuntimeError), api.compiler_context("fails"):
        raise RuntimeError
    assert len(compile_one().hidden_groups) == 1
