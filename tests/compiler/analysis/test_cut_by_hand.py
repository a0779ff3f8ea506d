"""Facts against a step that is cut by hand: an oracle that shares no code with the analysis.

Every model here multiplies by a function `dot` that it is given. The analysis reads the model with the plain product.
The oracle runs it with a product that gives back y + δ instead, y being what the plain one gave: that is the cut step,
and the derivatives of its new states with respect to old states and to δ are the blocks D and F.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.compiler.primitives.oracle import as_matrix

import etrax
from etrax.compiler.analysis import OpNode, StateNode

BATCH, INPUTS, UNITS, STEPS = 2, 3, 4, 5


def plain(x, w):
    return x @ w


def leaky(p, h, x, dot):
    h = 0.9 * h + jnp.tanh(dot(x, p["w"]))
    return h, h


def recurrent(p, h, x, dot):
    h = jnp.tanh(dot(x, p["w"]) + dot(h, p["u"]))
    return h, h


def gated(p, h, x, dot):
    z, c = jnp.split(dot(x, p["both"]), 2, -1)
    h = (1 - jax.nn.sigmoid(z)) * h + jax.nn.sigmoid(z) * c
    return h, h


def lstm(p, state, x, dot):
    c, h = state
    i, f, g, o = jnp.split(dot(jnp.concatenate([x, h], -1), p["w"]), 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return (c, jax.nn.sigmoid(o) * jnp.tanh(c)), c


def chained(p, state, x, dot):
    """A synapse that drives a membrane within the step."""
    g, v = state
    g = 0.8 * g + dot(x, p["w"])
    v = 0.9 * v + 0.1 * g - 0.05 * v * g
    return (g, v), v


def layers(p, state, x, dot):
    below, above = state
    below = 0.9 * below + dot(x, p["w"])
    above = 0.8 * above + dot(jnp.tanh(below), p["u"])
    return (below, above), above


def normalised(p, h, x, dot):
    """What the op gives reaches every position of its sample."""
    y = dot(x, p["w"])
    h = 0.9 * h + (y - y.mean(-1, keepdims=True))
    return h, h


def turned(p, h, x, dot):
    """Element i of the op reaches position i + 1."""
    h = 0.9 * h + jnp.roll(dot(x, p["w"]), 1, -1)
    return h, h


W, U, ONE, TWO = (INPUTS, UNITS), (UNITS, UNITS), (BATCH, UNITS), ((BATCH, UNITS),) * 2
# The step, shapes of its parameters and states, and which of its products (in the order of calling) read a state.
MODELS = {
    "leaky": (leaky, {"w": W}, ONE, []),
    "recurrent": (recurrent, {"w": W, "u": U}, ONE, [1]),
    "gated": (gated, {"both": (INPUTS, 2 * UNITS)}, ONE, []),
    "lstm": (lstm, {"w": (INPUTS + UNITS, 4 * UNITS)}, TWO, [0]),
    "chained": (chained, {"w": W}, TWO, []),
    "layers": (layers, {"w": W, "u": U}, TWO, [1]),
    "normalised": (normalised, {"w": W}, ONE, []),
    "turned": (turned, {"w": W}, ONE, []),
}
EXACT = {"leaky": {"w"}, "gated": {"both"}, "chained": {"w"}, "layers": {"u"}, "turned": {"w"}}


def drawn(shape, rng):
    is_shape = lambda s: isinstance(s, tuple) and all(isinstance(n, int) for n in s)
    return jax.tree.map(lambda s: rng.standard_normal(s), shape, is_leaf=is_shape)


class Cut:
    """One step of a model, its products replaced by y + δ; states and δ are flat lists."""

    def __init__(self, model, params, x):
        self.model, self.params, self.x = model, params, x
        self.tree = jax.tree.structure(drawn(MODELS[model][2], np.random.default_rng(0)))

    def ys(self, states):
        """What the products give, in the order of calling."""
        out = []

        def recorded(x, w):
            out.append(x @ w)
            return out[-1]

        self.run(states, recorded)
        return out

    def run(self, states, dot):
        new, _ = MODELS[self.model][0](self.params, self.tree.unflatten(states), self.x, dot)
        return jax.tree.leaves(new)

    def jacobians(self, states):
        """∂h'/∂h of the cut step, by (new, old) state, and ∂h'/∂y, by (new state, product): as matrices."""
        ys = self.ys(states)

        def cut(states, deltas):
            waiting = list(zip(ys, deltas, strict=True))

            def dot(x, w):
                y, delta = waiting.pop(0)
                return y + delta

            return self.run(states, dot)

        of_each = jax.jacrev(cut, (0, 1))(states, [jnp.zeros_like(y) for y in ys])
        d, f = zip(*of_each, strict=True)
        matrix = lambda block, new, old: np.asarray(block).reshape(new.size, old.size)
        blocks = {(i, k): matrix(d[i][k], a, b) for i, a in enumerate(states) for k, b in enumerate(states)}
        rows = {(i, j): matrix(f[i][j], a, y) for i, a in enumerate(states) for j, y in enumerate(ys)}
        return blocks, rows


def compiled(model):
    step, shapes, hidden, _ = MODELS[model]
    rng = np.random.default_rng(7)
    params, hidden, xs = drawn(shapes, rng), drawn(hidden, rng), rng.standard_normal((STEPS, BATCH, INPUTS))
    rule = etrax.d_rtrl(fan_out=0, hops=0)  # what blocks of the cut step carry by themselves
    learner = etrax.compile(lambda p, h, x: step(p, h, x, plain), rule, xs[0], params=params, hidden=hidden)
    return learner, params, hidden, xs


def sites_in_order(learner, model):
    """The numbers of the analysis' weight ops in the order in which the model calls its products."""
    products = [j for j, site in enumerate(learner.facts.sites) if site.call.primitive == "dot_general"]
    assert len(products) == len(MODELS[model][1])
    return sorted(products, key=lambda j: learner.facts.sites[j].at)


@pytest.mark.parametrize("model", MODELS)
def test_edges_hold_every_entry_of_the_cut_step(model):
    learner, params, hidden, xs = compiled(model)
    facts, products = learner.facts, sites_in_order(learner, model)
    states = jax.tree.leaves(hidden)
    blocks, rows = Cut(model, params, xs[0]).jacobians(states)
    for (new, old), block in blocks.items():
        edge = as_matrix(facts.edges.dep.get((StateNode(old), StateNode(new))), states[old].size, states[new].size)
        assert not ((block != 0) & ~edge.T).any()
    for (new, j), row in rows.items():
        edge = as_matrix(facts.edges.dep.get((OpNode(products[j]), StateNode(new))), row.shape[1], row.shape[0])
        assert not ((row != 0) & ~edge.T).any()


@pytest.mark.parametrize("model", MODELS)
def test_products_that_read_a_state_are_cut(model):
    learner, *_ = compiled(model)
    products = sites_in_order(learner, model)
    assert {products[j] for j in MODELS[model][3]} <= learner.facts.cut


@pytest.mark.parametrize("model", MODELS)
def test_relations_say_which_position_each_output_reaches(model):
    learner, params, hidden, xs = compiled(model)
    facts, products = learner.facts, sites_in_order(learner, model)
    states = jax.tree.leaves(hidden)
    _, rows = Cut(model, params, xs[0]).jacobians(states)
    for relation in facts.relations:
        if relation.site not in products or not relation.representable:
            continue
        j, group = products.index(relation.site), facts.groups[relation.group]
        for leaf in group.leaves:
            position = group.place_of(leaf).reshape(-1)
            for element, acts in enumerate((rows[leaf, j] != 0).T):
                assert set(position[acts]) <= {int(relation.places.reshape(-1)[element])}


@pytest.mark.parametrize("model", MODELS)
def test_what_is_exact_is_carried_by_blocks_of_the_cut_step(model):
    """ε ← D ε + F u over a few steps, with D masked to positions, is the true influence of an exact parameter."""
    learner, params, hidden, xs = compiled(model)
    exact = {path[0] for path, verdict in learner.report.verdicts.items() if str(verdict.kind) == "exact"}
    assert exact == EXACT.get(model, set())
    facts, states = learner.facts, jax.tree.leaves(hidden)
    place = {leaf: group.place_of(leaf).reshape(-1) for group in facts.groups for leaf in group.leaves}
    group_of = {leaf: group.index for group in facts.groups for leaf in group.leaves}

    def carried_whole(new, old):
        return group_of[new] == group_of[old]

    step = MODELS[model][0]

    def direct(params, states, x):
        """∂h'/∂θ with the old states held."""
        tree = jax.tree.structure(hidden)
        return jax.jacrev(lambda p: jax.tree.leaves(step(p, tree.unflatten(states), x, plain)[0]))(params)

    def unrolled(params, n):
        h = hidden
        for x in xs[:n]:
            h, _ = step(params, h, x, plain)
        return jax.tree.leaves(h)

    influence = [{name: 0.0 for name in params} for _ in states]
    for n, x in enumerate(xs, start=1):
        blocks, _ = Cut(model, params, x).jacobians(states)
        now = direct(params, states, x)
        influence = [
            {
                name: sum(
                    np.where(place[new][:, None] == place[old][None], blocks[new, old], 0.0) @ influence[old][name]
                    for old in range(len(states))
                    if carried_whole(new, old) and n > 1
                )
                + np.asarray(now[new][name]).reshape(states[new].size, -1)
                for name in params
            }
            for new in range(len(states))
        ]
        states = unrolled(params, n)
        truth = jax.jacrev(unrolled)(params, n)
        for name in exact:
            for new in range(len(states)):
                wanted = np.asarray(truth[new][name]).reshape(states[new].size, -1)
                np.testing.assert_allclose(influence[new][name], wanted, rtol=1e-9, atol=1e-12)
