"""The derivatives of every step of a case, in dense real arrays.

A complex array counts as two real ones. `Tape` holds, for every step t of a case,

    full, cut:   D_t = ∂h_t/∂h_{t-1}, C_t = ∂h_t/∂θ of the step; of that whose weight ops stop gradients to their data
    l_h, l_θ:    derivatives of the loss of step t

from which every rule's gradient follows by sums and products.
"""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from tests.learn.cases import CASES, T, loss, plain


def cut_dot(name, u, w):
    """A weight op that passes no gradient to its data."""
    return jax.lax.stop_gradient(u) @ w


def to_real(tree):
    """Complex leaves as pairs (real, imaginary part)."""
    return jax.tree.map(lambda a: (a.real, a.imag) if jnp.iscomplexobj(a) else a, tree)


def from_real(real, like):
    found = iter(jax.tree.leaves(real))
    return jax.tree.map(
        lambda a: jax.lax.complex(next(found), next(found)) if jnp.iscomplexobj(a) else next(found), like
    )


class Tape(NamedTuple):
    full_d: np.ndarray
    full_c: np.ndarray
    cut_d: np.ndarray
    cut_c: np.ndarray
    l_h: np.ndarray
    l_theta: np.ndarray
    unravel: Any
    steps: list
    losses: np.ndarray


def flat_step(case, dot):
    """The step over flat real vectors: (θ, h, x) → (h, output)."""
    theta, back = ravel_pytree(to_real(case.params))
    start, unravel = ravel_pytree(to_real(case.hidden))

    def step(theta, h, x):
        new, output = case.step(from_real(back(theta), case.params), from_real(unravel(h), case.hidden), x, dot)
        return ravel_pytree(to_real(new))[0], output

    return step, theta, start, back


@cache
def tape(name):
    case = CASES[name]
    full, theta, start, back = flat_step(case, plain)
    cut = flat_step(case, cut_dot)[0]

    @jax.jit
    def one(h, x, target):
        jacobians = [jax.jacrev(lambda t, h, f=f: f(t, h, x)[0], argnums=(1, 0))(theta, h) for f in (full, cut)]
        value, (l_theta, l_h) = jax.value_and_grad(lambda t, h: loss(full(t, h, x)[1], target), argnums=(0, 1))(
            theta, h
        )
        return full(theta, h, x)[0], (*jacobians[0], *jacobians[1], l_h, l_theta, value)

    rows, steps, h = [], [], start
    for t in range(T):
        steps.append(h)
        h, row = one(h, case.x[t], case.targets[t])
        rows.append([np.asarray(a) for a in row])
    *columns, losses = (np.stack(c) for c in zip(*rows, strict=True))

    def unravel(g):
        """A flat gradient as a tree, by JAX's convention for complex parameters: ∂/∂re − i ∂/∂im."""
        pairs = back(jnp.asarray(g))
        found = iter(jax.tree.leaves(pairs))
        return jax.tree.map(
            lambda a: next(found) - 1j * next(found) if jnp.iscomplexobj(a) else next(found), case.params
        )

    return Tape(*columns, unravel, steps, losses)


def windows(k):
    return [range(s, min(s + k, T)) for s in range(0, T, k)]


def inside(t: Tape, steps):
    """Exact reverse mode inside a window: ∂L/∂θ with the entry state held fixed, and ∂L/∂h at the entry."""
    n, m = t.full_c.shape[1:]
    influence, across = np.zeros((n, m)), np.eye(n)
    g_theta, g_entry = np.zeros(m), np.zeros(n)
    for k in steps:
        g_theta += t.l_theta[k] + t.l_h[k] @ influence
        g_entry += t.l_h[k] @ across
        influence = t.full_d[k] @ influence + t.full_c[k]
        across = t.full_d[k] @ across
    return g_theta, g_entry
