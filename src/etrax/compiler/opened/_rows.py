"""Functions of a row that data choose, written as rows of a table: f(E[v]) as M[v] with M[v] = f(E[v]) for every v.

An embedding is read by a token, and what follows is often a function of that row and of parameters alone: a norm, a
projection, gates. Its value is a row of a table that is made of parameters only. A trace of the table (rows × outputs)
serves the embedding and all other parameters of f, whether f is linear or not: what is owed to M is given to each by
the VJP of θ → M, as with every weight.

f may be anything that treats the rows that are read one by one, and alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..._compat import Jaxpr, JaxprEqn, Literal, Var, is_complex, is_inexact, shape_struct
from ..ir import Step
from ..ops import size
from ..primitives import Along, is_own, record_of
from ._chain import (
    MOVES,
    Axes,
    as_call,
    data_variables,
    elementwise,
    equations_between,
    evaluated,
    in_rows,
    is_fine,
    uniform_along,
)
from ._sites import WeightSite


class _ByRow(NamedTuple):
    """A value that is a function of the rows that equation `look_up` reads; `rows` are the axes that count them."""

    look_up: int
    rows: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Rows:
    """What is a function of the rows that one look-up reads.

    `numbers` are the equations whose results are read by others that are no such functions; `rows` are the axes that
    count rows, by variable; `chain` are the equations between the look-up and these; `data` are all variables of the
    program that are made of more than parameters.
    """

    look_up: int
    numbers: tuple[int, ...]
    chain: tuple[int, ...]
    rows: Mapping[Var, tuple[int, ...]]
    jaxpr: Jaxpr
    params: frozenset[int]
    before: frozenset[int]
    data: frozenset[Var]

    @property
    def _table(self) -> JaxprEqn:
        return self.jaxpr.eqns[self.look_up]

    @property
    def table_rows(self) -> int:
        """Rows of the tables."""
        return self._table.invars[0].aval.shape[0] + 2 * _reads_beside(self._table)

    @cached_property
    def matrix_size(self) -> int:
        """Numbers in all tables."""
        outs = [v for n in self.numbers for v in self.jaxpr.eqns[n].outvars]
        rows = size([self._table.outvars[0].aval.shape[a] for a in self.rows[self._table.outvars[0]]])
        return sum(v.aval.size for v in outs) // max(rows, 1) * self.table_rows

    def pull_back(self) -> tuple[Callable[..., Any], list[list[jax.ShapeDtypeStruct]]]:
        """The VJP of f as a function of the rows, of all else that f reads, and of cotangents; and their shapes."""
        chain = [self.jaxpr.eqns[n] for n in self.chain]
        free = _read_by(chain, self.data)
        (rows,), outs = self._table.outvars, [v for n in self.numbers for v in self.jaxpr.eqns[n].outvars]

        def pull(row: list[Array], frees: list[Array], bars: list[Array]) -> Any:
            def function(row: Array, frees: list[Array]) -> list[Array]:
                env = {**dict(zip(free, frees, strict=True)), rows: row}
                return [evaluated(chain, env, v) for v in outs]

            return jax.vjp(function, row[0], frees)[1](bars)

        return pull, [[shape_struct(v.aval) for v in variables] for variables in ([rows], free, outs)]

    @cached_property
    def equations(self) -> dict[int, JaxprEqn]:
        """Calls that read rows of tables, in place of the equations whose results are read elsewhere."""
        return {n: self._call(n) for n in self.numbers}

    def _call(self, number: int) -> JaxprEqn:
        eqn, table = self.jaxpr.eqns[number], self._table
        chain = [self.jaxpr.eqns[n] for n in self.chain if n <= number]
        free = _read_by(chain, self.data)
        indices = table.invars[1:]

        def compute(*values: Array) -> list[Array]:
            env = dict(zip(free, values[1 + len(indices) :], strict=True))
            read_rows, outs = table.outvars[0], eqn.outvars

            def function(row: Array) -> list[Array]:
                return [evaluated(chain, {**env, read_rows: row}, v) for v in outs]

            rows = self.rows[read_rows]
            lengths = [read_rows.aval.shape[a] for a in rows]
            entries, at = values[0], values[1 : 1 + len(indices)]
            if _reads_beside(table):
                entries, at = _with_rows_beside(table, entries, at[0])
            # What is read has an axis of length one for the row, unless a gather drops it.
            entries = entries if _drops_row_axis(table) else entries[:, None]
            tables = in_rows(function, entries, lengths, rows, [self.rows[v] for v in outs])
            return [_read_rows(table, t, at, self.rows[v]) for t, v in zip(tables, outs, strict=True)]

        operands = [table.invars[0], *indices, *free]
        return as_call(eqn, operands, compute)


def _read_by(chain: Sequence[JaxprEqn], data: frozenset[Var]) -> list[Var]:
    """What is no data and is read by a chain."""
    return list(dict.fromkeys(v for e in chain for v in e.invars if not isinstance(v, Literal) and v not in data))


def _read_rows(table: JaxprEqn, new: Array, at: Sequence[Array], rows: tuple[int, ...]) -> Array:
    """Rows of another table, as the look-up reads them, with the axes that count them where they are to be."""
    if table.primitive.name == "dynamic_slice":
        read = lax.dynamic_index_in_dim(new, at[0], 0, keepdims=False)
    else:
        count = len(rows)
        numbers = lax.GatherDimensionNumbers(tuple(range(count, count + new.ndim - 1)), (0,), (0,))
        mode = "fill" if _fills_with_nan(table) else "clip"
        read = lax.gather(new, at[0][..., :1], numbers, (1, *new.shape[1:]), mode=mode)
    return jnp.moveaxis(read, range(len(rows)), rows)


def _reads_beside(table: JaxprEqn) -> bool:
    """Whether a row number out of bounds reads numbers without a gradient: a fill value, or the nearest row."""
    return table.primitive.name == "gather" and "CLIP" not in str(table.params["mode"]) and not _fills_with_nan(table)


def _fills_with_nan(table: JaxprEqn) -> bool:
    if table.primitive.name != "gather" or "FILL" not in str(table.params["mode"]):
        return False
    return table.params["fill_value"] is None or bool(np.isnan(table.params["fill_value"]))


def _with_rows_beside(table: JaxprEqn, entries: Array, at: Array) -> tuple[Array, list[Array]]:
    """Entries with a row before and one behind them for row numbers out of bounds, and the numbers of rows in these."""
    range_of_type = jnp.iinfo(at.dtype)
    # Within bounds of the row numbers' own type first: an int32 may not hold them.
    numbers = jnp.clip(at, max(-1, range_of_type.min), min(entries.shape[0], range_of_type.max)).astype(np.int32)
    first, last = lax.stop_gradient(entries[:1]), lax.stop_gradient(entries[-1:])
    if "FILL" in str(table.params["mode"]):
        first = last = jnp.full_like(first, table.params["fill_value"])
    return jnp.concatenate([first, entries, last]), [numbers + 1]


def _stays_nan(jaxpr: Jaxpr, chain: Sequence[int], row: Var, outs: Sequence[Var]) -> bool:
    """Whether outputs are NaN wherever the row is, as they are if they are filled like the row itself."""
    if is_complex(row.aval):
        return False
    nan = {row}
    for eqn in (jaxpr.eqns[n] for n in chain):
        name = eqn.primitive.name
        operands = [not isinstance(v, Literal) and v in nan for v in eqn.invars]
        choices = operands[1:] if name == "select_n" else operands
        may_lose = name in ("select_n", "select_if_vmap", "concatenate")
        lost = name in ("pow", "pad", "imag", "integer_pow") or not (is_own(name) or name in MOVES)
        if not lost and (all(choices) if may_lose else any(choices)):
            nan.update(v for v in eqn.outvars if is_inexact(v.aval))
    return nan.issuperset(outs)


def _drops_row_axis(table: JaxprEqn) -> bool:
    return table.primitive.name == "gather" and bool(table.params["dimension_numbers"].collapsed_slice_dims)


def find_rows(step: Step, sites: Sequence[WeightSite]) -> tuple[Rows, ...]:
    """The look-ups at the top of a step with functions of their rows that other data have no part in."""
    look_ups = [s for s in sites if s.rule.name == "lookup" and len(s.at) == 1 and _is_plain(step.jaxpr, s)]
    if not look_ups:
        return ()
    data = data_variables(step)
    by_row = _functions_of_rows(step, {s.at[0] for s in look_ups}, data, uniform_along(step, data))
    return tuple(rows for s in look_ups if (rows := _rows_of(step.jaxpr, s.at[0], by_row, sites, data)) is not None)


def _is_plain(jaxpr: Jaxpr, site: WeightSite) -> bool:
    """Whether a look-up reads from numbers that another order of sums does not harm, at rows that data choose."""
    eqn = jaxpr.eqns[site.at[0]]
    return site.operand == 0 and is_fine(eqn.outvars[0].aval) and not isinstance(eqn.invars[0], Literal)


def _functions_of_rows(step: Step, look_ups: set[int], data: set[Var], along: Mapping[Var, Along]) -> dict[Var, _ByRow]:
    by_row: dict[Var, _ByRow] = {}
    for n, eqn in enumerate(step.jaxpr.eqns):
        if n in look_ups:
            (out,) = eqn.outvars
            count = 0 if eqn.primitive.name == "dynamic_slice" else len(eqn.invars[1].aval.shape) - 1
            by_row[out] = _ByRow(n, tuple(range(count)))
            continue
        moving = [i for i, v in enumerate(eqn.invars) if not isinstance(v, Literal) and v in data]
        values = [by_row.get(eqn.invars[i]) for i in moving]
        if values and values[0] is not None and all(v is not None and v.look_up == values[0].look_up for v in values):
            by_row.update(_moved(eqn, moving, by_row, along))
    return by_row


def _moved(
    eqn: JaxprEqn, moving: Sequence[int], by_row: Mapping[Var, _ByRow], along: Mapping[Var, Along]
) -> dict[Var, _ByRow]:
    """The outputs of an equation that treats rows one by one, and alike; none if it does not."""
    name = eqn.primitive.name
    moves = MOVES.get(name) or (elementwise if record_of(name).elementwise else None)
    if moves is None or eqn.effects or any(is_inexact(v.aval) and not is_fine(v.aval) for v in eqn.outvars):
        return {}
    out: dict[Var, _ByRow] = {}
    for k, v in enumerate(eqn.outvars):
        first = by_row[eqn.invars[moving[0]]]
        places = {_places(moves(eqn, i)[k], by_row[eqn.invars[i]].rows) for i in moving}
        (rows,) = places if len(places) == 1 else (None,)
        if rows is None or not _alike(eqn, moving, rows, along):
            return {}
        out[v] = _ByRow(first.look_up, rows)
    return out


def _places(axes: Axes, rows: tuple[int, ...]) -> tuple[int, ...] | None:
    """Where the axes of an operand that count rows are in the output; None if one of them is not there."""
    return tuple(axes.index(a) for a in rows) if all(a in axes for a in rows) else None


def _alike(eqn: JaxprEqn, moving: Sequence[int], rows: tuple[int, ...], along: Mapping[Var, Along]) -> bool:
    """Whether operands that are no data are equal for all rows; a product has them on axes of their own."""
    if eqn.primitive.name == "dot_general":
        return len(moving) > 1 or not set(rows) & set(range(len(eqn.params["dimension_numbers"][1][0])))
    rank = len(eqn.outvars[0].aval.shape)
    fixed = [v for i, v in enumerate(eqn.invars) if i not in moving and not isinstance(v, Literal)]
    return all(len(along[v]) != rank or all(along[v][a] for a in rows) for v in fixed)


def _rows_of(
    jaxpr: Jaxpr, look_up: int, by_row: Mapping[Var, _ByRow], sites: Sequence[WeightSite], data: set[Var]
) -> Rows | None:
    rows = {v: value.rows for v, value in by_row.items() if value.look_up == look_up}
    makers = [n for n, eqn in enumerate(jaxpr.eqns) if n != look_up and any(v in rows for v in eqn.outvars)]
    readers = [eqn.invars for n, eqn in enumerate(jaxpr.eqns) if n not in makers]
    outside = {v for atoms in (jaxpr.outvars, *readers) for v in atoms if not isinstance(v, Literal)}
    numbers = [n for n in makers if any(v in outside and is_inexact(v.aval) for v in jaxpr.eqns[n].outvars)]
    numbers = [n for n in numbers if all(is_inexact(v.aval) for v in jaxpr.eqns[n].outvars)]
    (root,) = jaxpr.eqns[look_up].outvars
    ends = [v for n in numbers for v in jaxpr.eqns[n].outvars]
    chain = equations_between(jaxpr, ends, {root}, data)
    if _fills_with_nan(jaxpr.eqns[look_up]) and not _stays_nan(jaxpr, chain, root, ends):
        return None
    params = frozenset().union(*(s.params for s in sites if len(s.at) == 1 and s.at[0] in (look_up, *chain)))
    return Rows(look_up, tuple(numbers), chain, rows, jaxpr, params, params, frozenset(data)) if numbers else None
