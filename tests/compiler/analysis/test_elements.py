"""The graph of elements against dense reachability, for patterns held element by element and by blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.compiler.primitives.oracle import as_matrix

from etrax._compat import open_jaxpr
from etrax.compiler.analysis import ElementGraph
from etrax.compiler.dataflow import propagate

N = 24
FUNCTIONS = {
    "elementwise": lambda x: 2 * x,
    "moved": lambda x: jnp.roll(x, 1),
    "pairs": lambda x: x.reshape(-1, 2).sum(1).repeat(2),
    "ring": lambda x: x + jnp.roll(x, 2),
    "blocks": lambda x: jnp.broadcast_to(x.reshape(-1, 4).sum(1, keepdims=True), (N // 4, 4)).reshape(-1),
    "whole": lambda x: jnp.broadcast_to(x.sum(), (N,)),
    "half": lambda x: jnp.where(jnp.arange(N) < N // 2, x, 0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("wide", [1, 3])
def test_components(name, wide):
    """Two nodes are in one component if a path of links joins them; `wide` elements share a node."""
    jaxpr, consts = open_jaxpr(jax.make_jaxpr(FUNCTIONS[name])(jnp.zeros(N)))
    ((deps,), _) = propagate(jaxpr, consts, {0: "x"})
    node, count = np.arange(N) // wide, N // wide
    graph = ElementGraph(count)
    graph.join(node, node, deps["x"])
    near = np.eye(count, dtype=bool)
    rows, columns = np.nonzero(as_matrix(deps["x"], N, N))
    near[node[rows], node[columns]] = near[node[columns], node[rows]] = True
    reach = np.linalg.matrix_power(near.astype(float), count) > 0
    labels = graph.components()
    assert np.array_equal(labels[:, None] == labels[None, :], reach)
    ranks = graph.ranks()
    assert all(sorted(ranks[labels == c]) == list(range((labels == c).sum())) for c in np.unique(labels))


def test_elements_without_a_node_are_left_out():
    jaxpr, consts = open_jaxpr(jax.make_jaxpr(lambda x: jnp.roll(x, 1))(jnp.zeros(4)))
    ((deps,), _) = propagate(jaxpr, consts, {0: "x"})
    graph = ElementGraph(4)
    graph.join(np.array([0, -1, -1, -1]), np.arange(4), deps["x"])
    assert graph.components().tolist() == [0, 1, 2, 0]
