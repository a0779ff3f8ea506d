"""Per-step references in dense real arrays: whole Jacobians of the step, loops over time, nothing clever.

A complex array counts as two real ones. `Tape` holds, for every step t of a case,

    full / cut:  D_t = ∂h_t/∂h_{t-1},  C_t = ∂h_t/∂θ     of the step, and of the step whose weight ops pass no gradient to their data
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
    return jax.tree.map(lambda a: jax.lax.complex(next(found), next(found)) if jnp.iscomplexobj(a) else next(found), like)


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
        value, (l_theta, l_h) = jax.value_and_grad(lambda t, h: loss(full(t, h, x)[1], target), argnums=(0, 1))(theta, h)
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
        return jax.tree.map(lambda a: next(found) - 1j * next(found) if jnp.iscomplexobj(a) else next(found), case.params)

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


def credited(name, k, start, advance, read=lambda trace: trace):
    """The gradient of a rule that credits through the entry state, averaged over steps: `advance(trace, tape, t)` per step."""
    t = tape(name)
    trace, total = start(np.zeros_like(t.full_c[0])), np.zeros(t.full_c.shape[2])
    for steps in windows(k):
        g_theta, g_entry = inside(t, steps)
        total += g_theta + g_entry @ read(trace)
        for s in steps:
            trace = advance(trace, t, s)
    return t.unravel(total / T)


def bptt(name):
    return credited(name, T, lambda z: z, lambda trace, t, s: trace)


def d_rtrl(name, k):
    return credited(name, k, lambda z: z, lambda e, t, s: t.cut_d[s] @ e + t.cut_c[s])


def rtrl(name, k):
    return credited(name, k, lambda z: z, lambda e, t, s: t.full_d[s] @ e + t.full_c[s])


def rflo(name, k, decay):
    return credited(name, k, lambda z: z, lambda e, t, s: decay * e + t.cut_c[s])


def e_prop(name, k, kappa):
    def advance(pair, t, s):
        e = t.cut_d[s] @ pair[0] + t.cut_c[s]
        return e, kappa * pair[1] + e

    return credited(name, k, lambda z: (z, z), advance, lambda pair: pair[1])


def outputs(name):
    """Output of every step, and the derivative of its loss in it."""
    case = CASES[name]
    h, found = case.hidden, []
    error = jax.jit(jax.grad(loss))
    step = jax.jit(case.model)
    for t in range(T):
        h, output = step(case.params, h, case.x[t])
        found.append((output, error(output, case.targets[t]), h))
    return found


def on_states(name, t, **signals):
    """A flat real cotangent of the state after step t: `signals` per leaf ("hidden" for a bare array), zero elsewhere."""
    case = CASES[name]
    bare = not isinstance(case.hidden, dict)

    def one(key, a):
        s = signals.get(key)
        s = np.zeros(a.shape) if s is None else np.asarray(s)
        return (s, np.zeros(a.shape)) if jnp.iscomplexobj(a) else s

    tree = one("hidden", case.hidden) if bare else {k: one(k, a) for k, a in case.hidden.items()}
    return np.asarray(ravel_pytree(jax.tree.map(jnp.asarray, tree))[0])


def guided(name, signal, kappa=0.0):
    """Σ_t s_t · ε̄_t with `signal(t)` flat on the states; without a state to reach, the gradient of the loss."""
    t = tape(name)
    e = filtered = np.zeros_like(t.full_c[0])
    reaches, traced = np.any(t.full_c != 0, (0, 1)), np.any(t.cut_c != 0, (0, 1))
    total = np.zeros(t.full_c.shape[2])
    for k in range(T):
        e = t.cut_d[k] @ e + t.cut_c[k]
        filtered = kappa * filtered + e
        s = signal(k)
        total += np.where(traced, s @ filtered, np.where(reaches, s @ t.full_c[k], t.l_theta[k]))
    return t.unravel(total / T)


@cache
def _tapped(name):
    """Per step: the data of every weight op; and ∂h/∂θ of the cut step with other data in the place of its own."""
    case = CASES[name]

    def data(h, x):
        seen = {}

        def dot(name, u, w):
            seen[name] = u
            return u @ w

        flat_step(case, dot)[0](flat_step(case, plain)[1], h, x)
        return seen

    def jacobian(h, x, other):
        hold = jax.lax.stop_gradient
        dot = lambda name, u, w: hold(u @ w) + (other[name] @ w - hold(other[name] @ w))
        step, theta, *_ = flat_step(case, dot)
        return jax.jacrev(lambda t: step(t, h, x)[0])(theta)

    return jax.jit(data), jax.jit(jacobian)


def ottt(name, k, decay):
    """F of a window's first step against data summed with a leak; the data of an elementwise parameter are 1."""
    t, case = tape(name), CASES[name]
    data, jacobian = _tapped(name)
    lone = np.asarray(ravel_pytree(jax.tree.map(lambda a: jnp.full(a.shape, a.ndim == 1), to_real(case.params)))[0])
    seen = jax.tree.map(jnp.zeros_like, data(t.steps[0], case.x[0]))
    ones, total = 0.0, np.zeros(t.full_c.shape[2])
    for steps in windows(k):
        g_theta, g_entry = inside(t, steps)
        influence = np.asarray(jacobian(t.steps[steps[0]], case.x[steps[0]], seen))
        total += g_theta + g_entry @ (influence * np.where(lone, ones, 1.0))
        for s in steps:
            seen = jax.tree.map(lambda a, b: decay * a + b, seen, data(t.steps[s], case.x[s]))
            ones = decay * ones + 1
    return t.unravel(total / T)


# Leaves whose elements share positions, by case; the others stand alone.
TOGETHER = {"lstm": [("h", "c")], "alif_vjp": [("v", "a", "z")], "alif_jvp": [("v", "a", "z")]}


def same_position(name):
    """(states, states): whether two state scalars are at one position."""
    case = CASES[name]
    hidden = case.hidden if isinstance(case.hidden, dict) else {"hidden": case.hidden}
    number = {k: n for n, members in enumerate(TOGETHER.get(name, [])) for k in members}
    labels = {k: 1000 * number.get(k, 10 + n) + np.arange(a.size) for n, (k, a) in enumerate(hidden.items())}
    tree = {k: (labels[k], labels[k]) if jnp.iscomplexobj(a) else labels[k] for k, a in hidden.items()}
    flat = np.concatenate(jax.tree.leaves(tree))
    return flat[:, None] == flat[None]


def reach(name, n):
    """The mask M_n, (states, parameters), from the numbers in the tape."""
    t, same = tape(name), same_position(name)
    spread = lambda a: (same.astype(int) @ (a != 0).any(0).astype(int)) > 0
    mask, onward = spread(t.cut_c), spread(t.full_d)
    for k in range(1, n):
        mask = mask | (onward.astype(int) @ mask.astype(int) > 0)
        if k == 1:
            mask = mask | spread(t.full_c)
    return mask


def snap(name, k, n):
    mask = reach(name, n)
    return credited(name, k, lambda z: z, lambda e, t, s: mask * (t.full_d[s] @ e + t.full_c[s]))
