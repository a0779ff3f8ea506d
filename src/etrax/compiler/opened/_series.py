"""Linear maps in series, written as one: y = (u·A)·B as u·M with M = A·B, which is made of parameters only.

Of y = (u·A)·B a trace of B alone lives on the data u·A, and what A does passes through B, which is cut. The trace of M
on u serves both: what is owed to M is given to A and B by the VJP of (A, B) → M, as with every weight that is a
function of parameters. Between the data and the product may stand whatever is linear in the data with coefficients made
of parameters: products, scales, biases, slices, reshapes, sums. A *form* is a value that is so, and its *roots* are the
data that it is linear in.

    v = Σ_r L_r(u_r) + c        y = v·w = Σ_r u_r·M_r + c·w        M_r = the transpose of L_r, of the columns of w

Axes of a root that run through to y unchanged (samples, heads) are not summed over: in L_r each of their places is by
itself. Where all places are alike, since no coefficient varies along the axis, M has no such axis.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..._compat import Jaxpr, JaxprEqn, Literal, Var, is_complex, is_inexact
from ..ir import Step
from ..ops import Letters, letters_of, size
from ._chain import (
    MOVES,
    Axes,
    as_call,
    data_variables,
    equations_between,
    evaluated,
    in_rows,
    is_fine,
    read_atom,
    uniform_along,
)
from ._sites import WeightSite

# Equations in which a form stays a form: linear or affine in each operand on its own.
_LINEAR = frozenset(MOVES) - {"reduce_max", "reduce_min", "reduce_prod", "cummax", "cumlogsumexp"}
# Each root has a matrix of its own. In a residual stream without norms all states below are roots, which is no gain.
MAX_ROOTS = 4


class Form(NamedTuple):
    """A value that is linear in its roots: by root the axes that run through, and those along which L_r varies."""

    axes: Mapping[Var, Axes]
    varies: frozenset[tuple[Var, int]] = frozenset()


@dataclass(frozen=True, eq=False)
class Series:
    """A product of data that are a form, in a program.

    `number` is that of its equation, `chain` are the numbers of the equations that lead from the roots to its data, of
    which some may add what is no data (`is_affine`); `params` are the parameters of all, `before` those of the chain;
    `data` are all variables of the program that are made of more than parameters.
    """

    number: int
    site: WeightSite
    form: Form
    chain: tuple[int, ...]
    is_affine: bool
    params: frozenset[int]
    before: frozenset[int]
    jaxpr: Jaxpr
    data: frozenset[Var]

    @cached_property
    def equations(self) -> dict[int, JaxprEqn]:
        """A call that computes the product from the roots, in its place."""
        eqn, roots = self.jaxpr.eqns[self.number], list(self.form.axes)
        chain = [self.jaxpr.eqns[n] for n in self.chain]
        value, weight = (eqn.invars[i] for i in (1 - self.site.operand, self.site.operand))
        read = [v for e in (*chain, eqn) for v in e.invars if not isinstance(v, Literal) and v not in self.data]
        free = list(dict.fromkeys(read))

        def compute(*values: Array) -> Array:
            env = dict(zip([*roots, *free], values, strict=True))
            us = {root: env.pop(root) for root in roots}

            def form(roots: Mapping[Var, Array]) -> Array:
                return evaluated(chain, {**env, **roots}, value)

            return _product_of_roots(self, us, form, read_atom(env, weight))

        return {self.number: as_call(eqn, [*roots, *free], compute)}

    @cached_property
    def matrix_size(self) -> int:
        """Numbers in all M."""
        s, call = letters_of(self.site.call), self.site.call
        lengths = dict(zip(s.u + s.w, (*call.operands[1 - call.weight].shape, *call.w.shape), strict=True))
        named = [(_letters(self, root), root.aval.shape) for root in self.form.axes]
        return sum(
            size([({**lengths, **dict(zip(letters.root, shape, strict=True))})[x] for x in letters.matrix])
            for letters, shape in named
        )


def find_series(step: Step, sites: Sequence[WeightSite]) -> tuple[Series, ...]:
    """The products at the top of a step whose data pass other parameters, linearly, before they arrive."""
    finder = _Forms(step, sites)
    series = []
    for site in sites:
        if len(site.at) != 1 or site.rule.name != "matmul" or site.call.primitive != "dot_general":
            continue
        (number,) = site.at
        invars = step.jaxpr.eqns[number].invars
        data, weight = invars[1 - site.operand], invars[site.operand]
        # Data may choose between weights (`lax.cond`), which are then no function of parameters.
        form = None if isinstance(data, Literal) or weight in finder.data else finder.forms.get(data)
        if form is None or len(form.axes) > MAX_ROOTS or site.call.params.get("out_sharding") is not None:
            continue
        if not _of_one_precision([*site.call.operands, site.call.out]):
            continue
        chain = equations_between(step.jaxpr, [data], form.axes.keys(), finder.data)
        before = frozenset().union(*(s.params for s in sites if len(s.at) == 1 and s.at[0] in chain))
        is_affine = any(_adds_fixed(step.jaxpr.eqns[n], finder.data) for n in chain)
        of_chain = chain, is_affine, before | site.params, before
        series.append(Series(number, site, form, *of_chain, step.jaxpr, frozenset(finder.data)))
    return tuple(series)


# --- finding forms ---


class _Forms:
    """The forms of a step, by variable."""

    def __init__(self, step: Step, sites: Sequence[WeightSite]):
        self.step, self.data = step, data_variables(step)
        self.starts = {s.at[0] for s in sites if len(s.at) == 1}
        self.forms: dict[Var, Form] = {}
        self.along = uniform_along(step, self.data)
        for n, eqn in enumerate(step.jaxpr.eqns):
            form = self._form(n, eqn)
            self.forms.update({} if form is None else form)

    def _form(self, n: int, eqn: JaxprEqn) -> dict[Var, Form] | None:
        """The forms of an equation's outputs, if it is linear in data, and a parameter or a form is in it."""
        moving = [i for i, v in enumerate(eqn.invars) if not isinstance(v, Literal) and v in self.data]
        has_form = any(eqn.invars[i] in self.forms for i in moving)
        if not moving or not (has_form or n in self.starts) or not _is_linear(eqn, moving):
            return None
        out: dict[Var, Form] = {}
        for k, v in enumerate(eqn.outvars):
            parts = [self._moved(eqn, i, k, moving) for i in moving]
            out[v] = _sum_of(parts)
        return out

    def _moved(self, eqn: JaxprEqn, i: int, k: int, moving: Sequence[int]) -> Form:
        """What operand i is in output k."""
        operand = eqn.invars[i]
        identity = Form({operand: tuple(range(len(operand.aval.shape)))})
        form = self.forms.get(operand, identity)
        axes = MOVES[eqn.primitive.name](eqn, i)[k]
        varying = self._varying(eqn, axes, moving)
        moved = {root: tuple(None if a is None else at[a] for a in axes) for root, at in form.axes.items()}
        more = {(root, axis) for root, at in moved.items() for a in varying if (axis := at[a]) is not None}
        return Form(moved, form.varies | more)

    def _varying(self, eqn: JaxprEqn, axes: Axes, moving: Sequence[int]) -> list[int]:
        """Axes of the output along which operands that are no data vary."""
        if eqn.primitive.name == "dot_general":
            return list(range(len(eqn.params["dimension_numbers"][1][0])))
        fixed = [v for i, v in enumerate(eqn.invars) if i not in moving and not isinstance(v, Literal)]
        alike = [self.along.get(v, ()) for v in fixed]
        return [a for a in range(len(axes)) if any(len(along) == len(axes) and not along[a] for along in alike)]


def _is_linear(eqn: JaxprEqn, moving: Sequence[int]) -> bool:
    """Whether an equation is linear, or affine, in the operands that are data; real numbers may become complex."""
    name = eqn.primitive.name
    out, data = [v.aval for v in eqn.outvars], [eqn.invars[i].aval for i in moving]
    stays_complex = all(map(is_complex, out)) or not any(map(is_complex, data))
    if name not in _LINEAR or not stays_complex or not _of_one_precision([*out, *data]):
        return False
    if not is_fine(out[0]) or eqn.effects:
        return False
    if name in ("mul", "dot_general"):
        return len(moving) == 1
    if name == "select_n":
        return 0 not in moving
    return name not in ("div", "pad") or 1 not in moving


def _of_one_precision(avals: Sequence[Any]) -> bool:
    """Whether numbers are of one type, or complex with parts of that type."""
    return all(map(is_inexact, avals)) and len({jnp.finfo(a.dtype).dtype for a in avals}) == 1


def _sum_of(parts: Sequence[Form]) -> Form:
    """A sum of forms, or one array of several: an axis runs through if it does in all of them."""
    axes: dict[Var, Axes] = {}
    for part in parts:
        for root, at in part.axes.items():
            both = axes.get(root, at)
            axes[root] = tuple(a if a == b else None for a, b in zip(at, both, strict=True))
    return Form(axes, frozenset().union(*(part.varies for part in parts)))


def _adds_fixed(eqn: JaxprEqn, data: set[Var]) -> bool:
    """Whether an equation adds something to its data that is made of parameters or constants, and not of zeros."""
    if eqn.primitive.name not in ("add", "add_any", "sub", "concatenate", "pad", "select_n"):
        return False
    operands = eqn.invars[1:] if eqn.primitive.name == "select_n" else eqn.invars
    return any(np.any(v.val) if isinstance(v, Literal) else v not in data for v in operands)


# --- one product in place of a chain ---


class _Letters(NamedTuple):
    """Letters for one root: of its axes and of those of M. Along `rows` of v, which are `root_rows`, all is alike."""

    root: str
    matrix: str
    rows: tuple[int, ...]
    root_rows: tuple[int, ...]


def _letters(series: Series, root: Var) -> _Letters:
    """Axes of the root that reach y keep the letters that they have there; the others are summed over."""
    s, axes = letters_of(series.site.call), series.form.axes[root]
    through = {k: x for x, k in zip(s.u, axes, strict=True) if k is not None and x in s.y}
    fresh = iter(x for x in reversed(string.ascii_letters) if x not in s.u + s.w)
    letters = [through[k] if k in through else next(fresh) for k in range(len(root.aval.shape))]
    alike = {k: x for k, x in through.items() if (root, k) not in series.form.varies and x not in s.w}
    columns = [x for x in s.y if x not in s.u or x not in through.values()]
    matrix = [x for k, x in enumerate(letters) if k not in alike] + columns
    rows = {s.u.index(x): k for k, x in alike.items()}
    ordered = sorted(rows)
    return _Letters("".join(letters), "".join(matrix), tuple(ordered), tuple(rows[a] for a in ordered))


def _product_of_roots(
    series: Series, us: Mapping[Var, Array], form: Callable[[Mapping[Var, Array]], Array], w: Array
) -> Array:
    """Σ_r u_r·M_r + c·w."""
    call, s = series.site.call, letters_of(series.site.call)
    precision = call.params.get("precision")
    zeros = {root: jnp.zeros_like(u) for root, u in us.items()}
    terms = []
    for root, u in us.items():
        letters = _letters(series, root)
        v, pull = jax.vjp(lambda u, root=root: form({**zeros, root: u}), zeros[root])
        matrix = _matrix(series, letters, partial(_transposed, pull, u, v), w)
        terms.append(jnp.einsum(f"{letters.root},{letters.matrix}->{s.y}", u, matrix, precision=precision))
    if series.is_affine:
        rows = set.intersection(*(set(_letters(series, root).rows) for root in us))
        constant = form(zeros)
        constant = constant[tuple(slice(0, 1) if a in rows else slice(None) for a in range(constant.ndim))]
        terms.append(jnp.einsum(f"{s.u},{s.w}->{s.y}", constant, w, precision=precision))
    return sum(terms[1:], terms[0])


def _transposed(pull: Callable[[Array], tuple[Array]], u: Array, v: Array, bar: Array) -> Array:
    """The transpose of a linear map u → v at a cotangent, which may be complex where u or v is real.

    JAX takes real cotangents of real values, and gives the real part alone for a map from real to complex numbers.
    """
    if jnp.isrealobj(v) and jnp.iscomplexobj(bar):
        return lax.complex(pull(bar.real)[0], pull(bar.imag)[0])
    bar = bar.astype(v.dtype)
    if jnp.isrealobj(u) and jnp.iscomplexobj(v):
        return lax.complex(pull(bar)[0], pull(-1j * bar)[0])
    return pull(bar)[0]


def _matrix(series: Series, letters: _Letters, pull: Callable[[Array], Array], w: Array) -> Array:
    """M of one root: what the pull-back makes of every column of the product.

    Rows are alike, so that each takes another column, and nothing is computed twice.
    """
    call = series.site.call
    s, v_shape = letters_of(call), call.operands[1 - call.weight].shape
    lengths = dict(zip(s.u + s.w, (*v_shape, *call.w.shape), strict=True))
    columns = [x for x in letters.matrix if x in s.y and x not in letters.root]
    inner = [x for a, x in enumerate(s.u) if a not in letters.rows]
    bars = _columns(s, w, columns, inner, lengths)  # (columns…, axes of v but for rows…)
    counts = [lengths[x] for x in columns]
    bars = bars.reshape(size(counts), *bars.shape[len(columns) :])
    rows = [v_shape[a] for a in letters.rows]
    (matrix,) = in_rows(lambda bar: [pull(bar)], bars, rows, letters.rows, [letters.root_rows])
    # (axes of the root but for rows…, columns…), as weights are usually written.
    return jnp.moveaxis(matrix, 0, -1).reshape(*matrix.shape[1:], *counts)


def _columns(s: Letters, w: Array, columns: Sequence[str], inner: Sequence[str], lengths: Mapping[str, int]) -> Array:
    """Cotangents of v for each column of y: the weight, and δ for an axis of v that y has and the root has not."""
    fresh = iter(x for x in reversed(string.ascii_letters) if x not in s.u + s.w)
    operands, names = [w], [s.w]
    column_names = []
    for x in columns:
        column_names.append(x if x not in s.u else next(fresh))
        if x in s.u:
            operands.append(jnp.eye(lengths[x], dtype=w.dtype))
            names.append(x + column_names[-1])
    for x in inner:
        if not any(x in name for name in names):
            operands.append(jnp.ones(lengths[x], w.dtype))
            names.append(x)
    return jnp.einsum(f"{','.join(names)}->{''.join(column_names)}{''.join(inner)}", *operands)
