"""The conformance table: rule × model × transformation × claim. A new rule adds a row to `ROWS`, a model to `CASES`."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from tests.learn.cases import CASES, T, loss

import etrax

WINDOW = 2


class Row(NamedTuple):
    """A rule, and whether it follows the gradient of the loss inside a window (so that one window is BPTT)."""

    rule: etrax.Rule
    follows_loss: bool = True


ROWS = {
    str(row.rule): row
    for row in (
        Row(etrax.tbptt()), Row(etrax.tbptt(steps=3)),
        Row(etrax.d_rtrl()), Row(etrax.pp_prop(0.9)), Row(etrax.rtrl()), Row(etrax.e_prop()),
        Row(etrax.e_prop(0.5), False), Row(etrax.e_prop(0.5, "random", key=1), False),
        Row(etrax.e_prop(0.0, "adaptive", key=1), False), Row(etrax.three_factor(), False), Row(etrax.uoro(1)),
        Row(etrax.ottt(0.8)), Row(etrax.rflo(0.8)), Row(etrax.ostl()), Row(etrax.snap(1)), Row(etrax.snap(2)),
        Row(etrax.synthetic()), Row(etrax.kf_rtrl(1)), Row(etrax.d_rtrl(fan_out=0, hops=0)),
        Row(etrax.d_rtrl(fan_out=None, hops=1)), Row(etrax.auto()),
        Row(etrax.partition({"wo": etrax.tbptt()}, default=etrax.three_factor(kappa=0.3)), False),
    )
}  # fmt: skip
MAIN = ("tbptt()", "d_rtrl()", "pp_prop(decay=0.9)", "rtrl()")


class Subject(NamedTuple):
    """A compiled case in one precision, with two sequences."""

    learner: etrax.Learner
    params: dict
    xs: jax.Array
    targets: jax.Array

    def run(self, x, target, state=None, window=WINDOW):
        state = self.learner.init() if state is None else state
        run = self.learner.value_and_grad(loss_in(x.dtype), window=window, reduction="sum")
        return run(self.params, state, x, target)


def loss_in(dtype):
    """The loss, in float32 at least."""
    wide = jnp.promote_types(dtype, jnp.float32)
    return lambda output, target: loss(output.astype(wide), target.astype(wide))


def subject(row, case, dtype=jnp.float64):
    case = CASES[case]

    def cast(a):
        if jnp.iscomplexobj(a):
            return a.astype(jnp.complex128 if dtype == jnp.float64 else jnp.complex64)
        return a.astype(dtype)

    params, hidden, x, target = jax.tree.map(cast, (case.params, case.hidden, case.x, case.targets))
    learner = etrax.compile(case.model, row.rule, x[0], params=params, hidden=hidden)
    return Subject(learner, params, jnp.stack([x, x[::-1]]), jnp.stack([target, -target]))


def plain(s, n):
    """One sequence as it is."""
    return s.run(s.xs[n], s.targets[n])


def by_jit(s):
    run = jax.jit(s.run)
    return [run(s.xs[n], s.targets[n]) for n in range(2)]


def by_vmap(s):
    both = jax.vmap(s.run)(s.xs, s.targets)
    return split(both)


def split(both):
    return [jax.tree.map(lambda a, n=n: a[n], both) for n in range(2)]


def by_scan(s):
    """Fed in pieces of one window by `lax.scan`, which carries the learner's state."""

    def piece(state, xy):
        found, state = s.run(*xy, state)
        return state, found

    def one(x, target):
        pieces = jax.tree.map(lambda a: a.reshape(T // WINDOW, WINDOW, *a.shape[1:]), (x, target))
        state, found = jax.lax.scan(piece, s.learner.init(), pieces)
        return jax.tree.map(lambda a: a.sum(0), found), state

    return [one(s.xs[n], s.targets[n]) for n in range(2)]


def by_shard_map(s):
    """One sequence on each of two devices."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("sequence",))
    along = PartitionSpec("sequence")

    def on_one(xs, targets):
        return jax.tree.map(lambda a: a[None], s.run(xs[0], targets[0]))

    both = jax.shard_map(on_one, mesh=mesh, in_specs=(along, along), out_specs=along, check_vma=False)(s.xs, s.targets)
    return split(both)


# Each gives what `plain` gives for two sequences.
TRANSFORMATIONS: dict[str, Callable] = {
    "jit": by_jit, "vmap": by_vmap, "scan": by_scan, "shard_map": by_shard_map,
}  # fmt: skip
PRECISIONS = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
