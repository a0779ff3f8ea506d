"""What groups of a SnAp learner say of its trace, against powers of the step's own Jacobian."""

import brainstate
import jax.numpy as jnp
import numpy as np
import pytest

import etrax.compat.braintrace as braintrace

N = 7


class Chain(brainstate.nn.Module):
    """Unit i acts on units i + 1 and i + 3, each with a weight of its own; each of its two states reads the other."""

    def __init__(self):
        super().__init__()
        self.w = brainstate.ParamState(jnp.full((2, N), 0.3))
        self.win = brainstate.ParamState(jnp.ones((2, N)))

    def init_state(self, batch_size=None, **kwargs):
        self.h = brainstate.HiddenState(jnp.zeros(N))
        self.a = brainstate.HiddenState(jnp.zeros(N))

    def update(self, x):
        h, w = self.h.value, self.w.value
        recurrent = w[0] * jnp.pad(h[:-1], (1, 0)) + w[1] * jnp.pad(h[:-3], (3, 0))
        a = 0.9 * self.a.value + h
        self.h.value = jnp.tanh(recurrent + x @ self.win.value) + 0.1 * a
        self.a.value = a
        return self.h.value


def reached(n):
    """By position, the positions that it acts on in fewer than n steps, itself included."""
    one = sum(np.eye(N, k=k, dtype=int) for k in (0, 1, 3))
    return np.linalg.matrix_power(one, n - 1) > 0


@pytest.mark.parametrize("n", [2, 3, 6])
def test_groups_tell_which_positions_a_trace_holds(n):
    learner = braintrace.compile(Chain(), braintrace.SnAp, jnp.ones(2), n=n)
    (group,) = learner.graph.hidden_groups
    pattern, want = group.snap, reached(n)
    assert (pattern.n, pattern.varshape, pattern.num_position) == (n, (N,), N)
    assert pattern.num_neighbour == want.sum(1).max()
    assert group.trace_state_width == 2 * pattern.num_neighbour
    assert not pattern.is_degenerate and not pattern.is_saturated  # nothing leads back
    np.testing.assert_array_equal(pattern.neighbours[:, 0], np.arange(N))
    for row, valid, allowed in zip(pattern.neighbours, pattern.valid, want, strict=True):
        assert sorted(row[valid]) == list(np.flatnonzero(allowed))
        assert (row[~valid] == row[0]).all()
    assert learner.graph.hid_path_to_group[("h",)].snap is pattern
    assert all(g is group for r in learner.graph.hidden_param_op_relations for g in r.hidden_groups)


def test_a_full_matrix_is_saturated_in_two_steps():
    learner = braintrace.compile(braintrace.nn.ValinaRNNCell(2, N), braintrace.SnAp, jnp.ones(2), n=2)
    (group,) = learner.graph.hidden_groups
    assert group.snap.is_saturated and group.trace_state_width == N


@pytest.mark.parametrize("options", [{"algorithm": "D_RTRL"}, {"algorithm": braintrace.SnAp, "n": 1}])
def test_other_learners_hold_each_position_alone(options):
    learner = braintrace.compile(Chain(), options.pop("algorithm"), jnp.ones(2), **options)
    (group,) = learner.graph.hidden_groups
    assert group.snap is None and group.trace_state_width == group.num_state == 2


def test_a_position_moves_its_neighbours_and_no_other():
    """The model itself, run for n − 1 steps with one unit moved."""
    learner = braintrace.compile(Chain(), braintrace.SnAp, jnp.ones(2), n=3)
    pattern, model = learner.graph.hidden_groups[0].snap, learner.model4compile

    def run(h):
        model.h.value, model.a.value = jnp.asarray(h), jnp.zeros(N)
        model(jnp.ones(2))
        return np.asarray(model(jnp.ones(2)))

    start = np.full(N, 0.1)
    for p in range(N):
        moved = np.flatnonzero(run(start + 0.1 * np.eye(N)[p]) != run(start))
        assert set(moved) == set(pattern.neighbours[p][pattern.valid[p]])
