"""Slow, obvious counterparts of the analysis: dense patterns and dense Jacobians."""

from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from etrax._compat import is_inexact, open_jaxpr
from etrax.analysis import OpenStep
from etrax.analysis.pattern import Dep, propagate
from etrax.ir import Role, trace_step


def as_matrix(dep: Dep | None, size: int, source_size: int) -> np.ndarray:
    """A pattern as a matrix of booleans: rows are elements of the array, columns those of the source."""
    out = np.zeros((size, source_size), bool)
    if dep is None:
        return out
    labels = dep.part.all_labels()
    for m in dep.maps:
        block = m.reshape(-1)
        out |= (block[:, None] == labels[None, :]) & (block[:, None] >= 0)
    return out


def patterns(f, x, *data):
    """Pattern of every output leaf of f(x, *data) on x, and the problems found."""
    closed = jax.make_jaxpr(f)(x, *data)
    jaxpr, consts = open_jaxpr(closed)
    found, problems = propagate(jaxpr, consts, {0: "x"}, {})
    sizes = [int(np.prod(v.aval.shape, dtype=int)) for v in jaxpr.outvars]
    return [as_matrix(deps.get("x"), n, x.size) for deps, n in zip(found, sizes, strict=True)], problems


def as_real(f, x):
    """f on (real part, imaginary part), so that a complex function has a plain real Jacobian."""
    if not jnp.iscomplexobj(x):
        return f, x
    split = jnp.stack([x.real, x.imag])
    return (lambda parts: f(parts[0] + 1j * parts[1])), split


def nonzero(f, x) -> list[jax.Array]:
    """Where the Jacobian of f at x is not zero, per output leaf; NaN counts as not zero."""
    g, parts = as_real(f, x)

    def flat(p):
        outs = [o.reshape(-1) for o in jax.tree.leaves(g(p))]
        return [jnp.stack([o.real, o.imag]) if jnp.iscomplexobj(o) else o[None] for o in outs]

    found = []
    basis = jnp.eye(parts.size).reshape(parts.size, *parts.shape)
    columns = jax.lax.map(lambda e: jax.jvp(flat, (parts,), (e,))[1], basis)
    for rows in (jnp.moveaxis(c, 0, -1) for c in columns):
        hit = (rows != 0) | jnp.isnan(rows)
        hit = hit.any(0)  # over real and imaginary part of the output
        found.append(hit.reshape(hit.shape[0], parts.size // max(x.size, 1), x.size).any(1) if x.size else hit)
    return found


def step_of(model):
    """Trace a model of the zoo, or anything with `step`, `params`, `hidden` and `make_inputs`."""

    def fn(params, hidden, other, *inputs):
        hidden, output = model.step(params, hidden, *inputs)
        return hidden, None, output

    first = jax.tree.map(lambda a: a[0], model.make_inputs(1, 0))
    return trace_step(fn, model.params, model.hidden, first)


class Blocks(NamedTuple):
    """Dense Jacobians of one step, all over real coordinates: rows are elements of the states or observed weight ops.

    `whole` and `params` are of the step itself with respect to states and parameters, `cut` and `deltas` of the cut
    step with respect to states and the perturbations of each site.
    """

    whole: list[list[jax.Array]]
    params: list[list[jax.Array]]
    cut: list[list[jax.Array]]
    deltas: list[list[jax.Array]]


def _parts(x):
    """Real coordinates, last axis real and imaginary part."""
    return jnp.stack([x.real, x.imag], -1) if jnp.iscomplexobj(x) else x[..., None]


def _whole(parts, dtype):
    return (parts[..., 0] + 1j * parts[..., 1] if parts.shape[-1] == 2 else parts[..., 0]).astype(dtype)


def _rows(f, *args):
    """Jacobian of every output of f with respect to every argument: (rows, columns) of real coordinates."""
    real = [[_parts(a) for a in arg] for arg in args]
    sizes: list[int] = []

    def g(*parts):
        values = (
            [_whole(p, a.dtype) for p, a in zip(ps, arg, strict=True)] for ps, arg in zip(parts, args, strict=True)
        )
        outs = [_parts(o).reshape(-1).astype(float) for o in f(*values)]
        sizes[:] = [o.size for o in outs]
        return jnp.concatenate(outs) if outs else jnp.zeros(0)

    out, pull = jax.vjp(g, *real)
    rows = jax.vmap(pull)(jnp.eye(out.size))
    flat = [[r.reshape(out.size, int(np.prod(r.shape[1:]))) for r in arg] for arg in rows]
    edges = np.cumsum([0, *sizes])
    return [[[r[i:j] for r in arg] for arg in flat] for i, j in pairwise(edges)]


def blocks(facts, leaves) -> Blocks:
    """Dense Jacobians at one point; `leaves` are the step's input leaves in order."""
    step, opened = facts.step, OpenStep(facts.step, facts.sites, facts.cut)
    n_params, states = len(step.select(Role.PARAM)), facts.states
    diff = [i for i, leaf in enumerate(states) if is_inexact(leaf.aval)]
    trained = [i for i, leaf in enumerate(step.select(Role.PARAM)) if is_inexact(leaf.aval)]

    def fill(params, hidden):
        values = list(leaves)
        for i, v in zip(trained, params, strict=True):
            values[i] = v
        for i, v in zip(diff, hidden, strict=True):
            values[n_params + i] = v
        return values

    params, hidden = [leaves[i] for i in trained], [leaves[n_params + i] for i in diff]
    deltas = [jnp.zeros(s.y_shape, s.call.out.dtype) for s in facts.sites]

    def plain(params, hidden):
        outs = step.run(fill(params, hidden))
        return [outs[i] for i in diff]

    def open_(hidden, deltas):
        outs, seen = opened(fill(params, hidden), deltas)
        outputs = [o for o in outs[len(states) :] if is_inexact(o)]
        return [outs[i] for i in diff] + [seen[j][0] for j in sorted(facts.cut)] + outputs

    whole, cut = _rows(plain, params, hidden), _rows(open_, hidden, deltas)
    return Blocks([r[1] for r in whole], [r[0] for r in whole], [r[0] for r in cut], [r[1] for r in cut])
