"""Jacobian pieces of one cut step: ∂h/∂h blocks per group and ∂h/∂y per weight op, by reverse mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp

from .._compat import is_inexact
from .._errors import ArgumentError
from ..compiler.analysis import Facts
from ..compiler.ir import Path, Role, Step
from ..compiler.opened import OpenStep, WeightSite, weights
from ..runtime import Probes, View, plan_probes, site_math
from ..runtime.blocks import total
from ._columns import Columns
from ._group import HiddenGroup

# A weight leaf's path, the number of its op in the step, and the number of a hidden group.
Key: TypeAlias = tuple[Path, int, int]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HiddenToWeight:
    """What ∂h'/∂θ is made of for one parameter leaf θ, one weight op y = op(x, w) with w = φ(θ), and one hidden group.

    `x` is the value of the op's data operand, None if it has none. `df[o, s]` is ∂h'[pos(o), s]/∂y[o], of shape
    (*y.shape, S): each element o of y reaches one position pos(o) of the group. For an elementwise weight (a bias, a
    gain) y is the weight itself, broadcast to the op's shape. An op in an inner loop has the loop's axis first in both.

    `dense()` is what a rule carries from step to step, laid out as the op family likes it; `contract` turns it, or what
    it has become, into the gradient of θ, in the same way for every family.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> executor = etrax.ETraceGraphExecutor(step, params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> executor.compile_graph(jnp.ones(3))
    >>> *_, (h2w, h2h) = executor.solve_h2w_h2h_jacobian(jnp.arange(3.0))
    >>> piece = h2w[(), 0, 0]
    >>> piece.contract(jnp.ones((4, 1)))[:, 0].tolist()
    [0.0, 1.0, 2.0]
    >>> piece.contract(jnp.ones((4, 1)), 0.5 * piece.dense())[:, 0].tolist()
    [0.0, 0.5, 1.0]
    """

    x: jax.Array | None
    df: jax.Array
    data: tuple[jax.Array, ...] = field(repr=False)
    fixed: tuple[jax.Array, ...] = field(repr=False)
    place: jax.Array = field(repr=False)
    params: dict[int, jax.Array] = field(repr=False)
    site: WeightSite = field(repr=False, metadata={"static": True})
    step: Step = field(repr=False, metadata={"static": True})
    param: int = field(repr=False, metadata={"static": True})

    def dense(self) -> jax.Array:
        """∂h'/∂w as the op family lays out its traces: (*trace shape, S), an entry per (element of y, element of w)."""
        window = [u[None] for u in self.data]  # a window of one step
        columns = [site_math.outer(self.site, self.fixed, window, c[None]) for c in jnp.moveaxis(self.df, -1, 0)]
        return jnp.stack(columns, axis=-1)

    def contract(self, signal: jax.Array, trace: jax.Array | None = None) -> jax.Array:
        """The gradient of the parameter leaf, of its shape, for a learning signal ∂L/∂h' of shape (*varshape, S).

        `trace`, of the shape of `dense()`, takes its place. Sums over positions, samples and states; a complex signal
        follows JAX, whose gradient of a real parameter is the real part.
        """
        signal = jnp.asarray(signal)
        if signal.shape[-1:] != self.df.shape[-1:]:
            raise ArgumentError(
                f"`signal` has shape {list(signal.shape)}; expected (*varshape, {self.df.shape[-1]}), a value for each "
                "state of the group, as `HiddenGroup.concat_hidden` gives it."
            )
        flat = signal.reshape(-1, signal.shape[-1])
        # The signal at each element of y is that of its position; -1 stands for none, and would read the last one.
        at_y = jnp.where(self.place[..., None] >= 0, flat[self.place], 0)
        traces, signals = (jnp.moveaxis(a, -1, 0) for a in (self.dense() if trace is None else trace, at_y))
        pairs = zip(traces, signals, strict=True)
        grad = total(site_math.apply(self.site, self.fixed, one, g) for one, g in pairs)
        return self._to_leaf(grad)

    def _to_leaf(self, grad: jax.Array) -> jax.Array:
        """The leaf's share of the gradient of the op's weight."""
        count = len(self.step.select(Role.PARAM))

        def weight(leaf: jax.Array) -> jax.Array:
            values = self.params | {self.param: leaf}
            # Parameters that the weight is not made of are never read.
            params = cast(list[jax.Array], [values.get(i) for i in range(count)])
            return weights(self.step, [self.site], params).weight[0]

        # w = φ(θ) is linearised at the values of the step that the piece is of.
        value, pull = jax.vjp(weight, self.params[self.param])
        # The gradient of a real weight is the real part, as JAX has it.
        if jnp.iscomplexobj(grad) and not jnp.iscomplexobj(value):
            grad = grad.real
        return pull(grad.astype(value.dtype).reshape(value.shape))[0]


class Jacobians(NamedTuple):
    """New leaves of the step (hidden, other, output), ∂h/∂w pieces by key, and one array of blocks per group."""

    outs: list[jax.Array]
    h2w: dict[Key, HiddenToWeight]
    h2h: list[jax.Array]


def plan_jacobians(facts: Facts, groups: Sequence[HiddenGroup]) -> Probes:
    """How to read the blocks of all groups, with states in the order of the groups, and of all that can be traced."""
    relations = [r for r in facts.relations if r.representable]
    return plan_probes(View(facts), relations, groups=[g.columns.layout.group for g in groups])


def jacobians(probes: Probes, leaves: Sequence[jax.Array]) -> Jacobians:
    """All pieces at one step, for its input leaves in order: one pull-back per state scalar and colour."""
    facts = probes.facts
    step, sites, params = facts.step, facts.sites, facts.step.select(Role.PARAM)
    op_weights = weights(step, sites, leaves[: len(params)])
    outs, ops = OpenStep(step, sites, facts.cut)(leaves, {}, op_weights.weight)
    blocks, rows = probes(leaves, op_weights.weight, {j: op.y for j, op in ops.items()})
    columns = [Columns(layout) for layout in probes.layouts]
    h2w: dict[Key, HiddenToWeight] = {}
    whole_numbers = {i for i, leaf in enumerate(params) if not is_inexact(leaf.aval)}  # a weight may be picked by them
    for r, row in zip(probes.relations, rows, strict=True):
        site, data, df = sites[r.site], ops[r.site].data, columns[r.group].rows(list(row))
        read = {i: leaves[i] for i in sorted(site.params | whole_numbers)}
        pieces = (data[0] if data else None, df, data, op_weights.fixed[r.site], jnp.asarray(r.places), read)
        h2w |= {(params[p].path, r.site, r.group): HiddenToWeight(*pieces, site, step, p) for p in sorted(site.params)}
    return Jacobians(outs, h2w, [c.blocks(block) for c, block in zip(columns, blocks, strict=True)])
