"""Slow, obvious counterparts of patterns: dense matrices, and where a Jacobian is not zero."""

import jax
import jax.numpy as jnp
import numpy as np

from etrax._compat import open_jaxpr
from etrax.compiler.dataflow import propagate
from etrax.compiler.primitives import Dep


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
    found, problems = propagate(jaxpr, consts, {0: "x"})
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
