"""Values of a group's states side by side: leading axes, widths, orders, units, and states that are replaced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

brainstate = pytest.importorskip("brainstate")
u = pytest.importorskip("saiunit")

import etrax  # noqa: E402
import etrax.nn  # noqa: E402

I, N = 3, 4
LEADS = [(), (5,), (1,), (2, 5), (0,)]


class Grouped(brainstate.nn.Module):
    """Two state scalars in one state with a state axis, and a third in a state of its own."""

    def __init__(self, unit=1.0):
        super().__init__()
        self.w = brainstate.ParamState(jnp.ones((I, N)) * unit)
        self.pair = brainstate.HiddenGroupState(jnp.zeros((N, 2)) * unit)
        self.a = brainstate.HiddenState(jnp.zeros(N) * unit)

    def update(self, x):
        pair, a = self.pair.value, self.a.value
        v = 0.9 * pair[..., 0] + x @ self.w.value - 0.1 * a
        self.pair.value = u.math.stack([v, 0.5 * pair[..., 1] + v], axis=-1)
        self.a.value = 0.7 * a + v
        return v


def lstm():
    cell = etrax.nn.LSTMCell(I, N)
    brainstate.nn.init_all_states(cell)
    return etrax.compile_etrace_graph(cell, jnp.ones(I))


def batched():
    cell = etrax.nn.LSTMCell(I, N)
    brainstate.nn.init_all_states(cell, batch_size=2)
    return etrax.compile_etrace_graph(cell, jnp.ones((2, I)))


def permuted():
    """The second state holds the positions of the first in reverse, as a matrix."""

    def step(w, h, x):
        a = 0.9 * h["a"] + x @ w
        return {"a": a, "b": 0.5 * h["b"] + a[::-1].reshape(2, 2)}, a

    hidden = {"a": jnp.zeros(N), "b": jnp.zeros((2, 2))}
    return etrax.compile_etrace_graph(step, jnp.ones(I), params=jnp.ones((I, N)), hidden=hidden)


def complex_and_real():
    def step(w, h, x):
        r = 0.8 * h["r"] + x @ w
        return {"r": r, "z": (0.3 + 0.4j) * h["z"] + h["r"]}, r

    hidden = {"r": jnp.zeros(N), "z": jnp.zeros(N, complex)}
    return etrax.compile_etrace_graph(step, jnp.ones(I), params=jnp.ones((I, N)), hidden=hidden)


GRAPHS = {
    "lstm": lstm,
    "batched": batched,
    "grouped": lambda: etrax.compile_etrace_graph(Grouped(), jnp.ones(I)),
    "units": lambda: etrax.compile_etrace_graph(Grouped(u.mV), jnp.ones(I)),
    "permuted": permuted,
    "complex": complex_and_real,
}


@pytest.fixture(scope="module", params=list(GRAPHS))
def graph(request):
    return GRAPHS[request.param]()


def shapes_of(group):
    return [v.aval.shape for v in group.hidden_invars]


def random_values(group, lead):
    rng = np.random.RandomState(3)
    draw = lambda v: rng.standard_normal((*lead, *v.aval.shape)) + (1j if v.aval.dtype.kind == "c" else 0)
    return [jnp.asarray(draw(v)) for v in group.hidden_invars]


@pytest.mark.parametrize("lead", LEADS)
def test_leading_axes_are_those_of_every_entry(graph, lead):
    """What is joined behind leading axes is, entry by entry, what is joined without them; splitting undoes it."""
    (group,) = graph.hidden_groups
    values = random_values(group, lead)
    joined = group.concat_hidden(iter(values))
    assert joined.shape == (*lead, *group.varshape, group.num_state)
    for at in np.ndindex(*lead):
        np.testing.assert_array_equal(joined[at], group.concat_hidden([v[at] for v in values]))
    for value, back in zip(values, group.split_hidden(joined), strict=True):
        np.testing.assert_array_equal(back, value)
    mapped = jax.vmap(lambda *vs: group.concat_hidden(vs))(*values) if lead else joined
    np.testing.assert_array_equal(joined, mapped)


def test_two_states_of_five_rows():
    (group,) = lstm().hidden_groups
    h, c = jnp.arange(20.0).reshape(5, N), 100 + jnp.arange(20.0).reshape(5, N)
    np.testing.assert_array_equal(group.concat_hidden([h, c]), jnp.stack([h, c], -1))


def test_columns_are_at_their_positions(graph):
    """Row p of the joined array holds what the step computes from position p: its blocks say so."""
    (group,) = graph.hidden_groups
    inputs = [jnp.zeros(v.aval.shape, v.aval.dtype) for v in group.transition_jaxpr_constvars]
    old = random_values(group, ())
    blocks = group.diagonal_jacobian(old, inputs)
    moved = random_values(group, (1,))
    start = group.transition(old, inputs)
    end = group.transition([a + 1e-3 * b[0] for a, b in zip(old, moved, strict=True)], inputs)
    difference = group.concat_hidden(end) - group.concat_hidden(start)
    expected = 1e-3 * jnp.einsum("...st,...t->...s", blocks, group.concat_hidden(moved)[0])
    np.testing.assert_allclose(difference, expected, rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize("change", [1, -1])
def test_a_width_that_does_not_fit_is_refused(graph, change):
    (group,) = graph.hidden_groups
    with pytest.raises(ValueError, match="counts the states"):
        group.split_hidden(jnp.ones((*group.varshape, group.num_state + change)))
    with pytest.raises(ValueError, match="counts the states"):
        group.split_hidden(jnp.ones((*group.varshape[:-1], group.varshape[-1] + change, group.num_state)))
    with pytest.raises(ValueError, match="counts the states"):
        group.split_hidden(jnp.ones(group.num_state))
    wrong = [jnp.ones((*s[:-1], s[-1] + change)) for s in shapes_of(group)]
    with pytest.raises(ValueError, match="leading axes"):
        group.concat_hidden(wrong)


def test_values_of_one_group_have_the_same_leading_axes(graph):
    (group,) = graph.hidden_groups
    first, *rest = random_values(group, (5,))
    with pytest.raises(ValueError, match="same leading axes"):
        group.concat_hidden([first, *(v[0] for v in rest)])
    with pytest.raises(ValueError, match="got 1 values"):
        group.concat_hidden([first])


@pytest.mark.parametrize("lead", [(), (5,)])
def test_perturbations_of_many_lanes(graph, lead):
    perturb = graph.hidden_perturb
    data = {
        path: jnp.asarray(np.random.RandomState(k).standard_normal((*lead, *v.aval.shape)))
        for k, (path, v) in enumerate(zip(perturb.perturb_hidden_paths, perturb.perturb_vars, strict=True))
    }
    (found,) = perturb.perturb_data_to_hidden_group_data(iter(data.values()), iter(graph.hidden_groups))
    (group,) = graph.hidden_groups
    np.testing.assert_array_equal(found, group.concat_hidden([data[p] for p in group.hidden_paths]))
    assert found.shape == (*lead, *group.varshape, group.num_state)


def test_values_keep_a_type_that_is_finer_than_the_states():
    step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    half = {"params": jnp.ones((I, N), jnp.bfloat16), "hidden": jnp.zeros(N, jnp.bfloat16)}
    (group,) = etrax.compile_etrace_graph(step, jnp.ones(I, jnp.bfloat16), **half).hidden_groups
    value = jnp.linspace(0, 1, N, dtype=jnp.float64)
    (back,) = group.split_hidden(group.concat_hidden([value]))
    assert back.dtype == value.dtype
    np.testing.assert_array_equal(back, value)


def test_iterators_are_taken():
    (group,) = lstm().hidden_groups
    values, inputs = random_values(group, ()), [jnp.ones(v.aval.shape) for v in group.transition_jaxpr_constvars]
    np.testing.assert_array_equal(
        group.diagonal_jacobian(iter(values), iter(inputs)), group.diagonal_jacobian(values, inputs)
    )
    found, expected = group.transition(iter(values), iter(inputs)), group.transition(values, inputs)
    np.testing.assert_array_equal(found, expected)


def test_replaced_states_have_their_own_shape(graph):
    (group,) = graph.hidden_groups
    other = group._replace(hidden_states=[brainstate.HiddenState(jnp.zeros((7, 3))) for _ in range(2)])
    assert other.varshape == (7, 3) and other.num_state == 2
    wide = group._replace(hidden_states=[brainstate.HiddenGroupState(jnp.zeros((7, 3)))])
    assert wide.varshape == (7,) and wide.num_state == 3
    assert wide.concat_hidden([jnp.ones((2, 7, 3))]).shape == (2, 7, 3)
    assert group._replace(index=4).varshape == group.varshape
