"""Slow, obvious counterparts of the analysis: dense Jacobians of a step."""

from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from etrax._compat import is_inexact
from etrax.compiler.ir import Role, trace_step
from etrax.compiler.opened import OpenStep


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
        outs, seen = opened(fill(params, hidden), dict(enumerate(deltas)))
        outputs = [o for o in outs[len(states) :] if is_inexact(o)]
        return [outs[i] for i in diff] + [seen[j][0] for j in sorted(facts.cut)] + outputs

    whole, cut = _rows(plain, params, hidden), _rows(open_, hidden, deltas)
    return Blocks([r[1] for r in whole], [r[0] for r in whole], [r[0] for r in cut], [r[1] for r in cut])
