"""Per-step references: dense matrices from the tape, loops over time, nothing clever."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from tests.learn.cases import CASES, T, loss, plain
from tests.learn.tape import flat_step, inside, tape, to_real, windows


def credited(name, k, start, advance, read=lambda trace: trace):
    """The gradient of a rule that credits through the entry state; `advance(trace, tape, t)` moves its trace a step."""
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


def _through(e, weight):
    return np.asarray(e) @ np.asarray(weight).T


def _two_layers(p, e, h):
    up = _through(e, p["wo"])
    return {"k": up, "h": _through(up * (1 - np.tanh(np.asarray(h["h"] @ p["w2"] + p["b2"])) ** 2), p["w2"])}


# By hand: ∂ℓ_t/∂h_t, given the output error and the new state. A leaky readout passes its error on to the spikes.
_READOUT = lambda leaf: lambda p, e, h: {leaf: _through(e, p["wo"])}
_LEAKY = lambda p, e, h: {"r": e, "z": _through(e, p["wo"])}
OWN_SIGNALS = {
    "vanilla": _READOUT("hidden"), "gru": _READOUT("hidden"), "lru": _READOUT("hidden"), "lstm": _READOUT("h"),
    "alif_vjp": _LEAKY, "alif_jvp": _LEAKY, "two_layers": _two_layers,
}  # fmt: skip


def e_prop(name, k, kappa):
    """Σ_t s_t · ε̄_t, whatever the window; without a trace, the gradient inside it."""
    t, case, seen = tape(name), CASES[name], outputs(name)
    e = filtered = np.zeros_like(t.full_c[0])
    total = np.zeros(t.full_c.shape[2])
    for s in range(T):
        e = t.cut_d[s] @ e + t.cut_c[s]
        filtered = kappa * filtered + e
        _, error, new = seen[s]
        signal = on_states(name, s, **OWN_SIGNALS[name](case.params, error, new))
        total += t.l_theta[s] + signal @ (filtered - t.cut_c[s])
    inside_only = sum(inside(t, steps)[0] for steps in windows(k))
    return t.unravel(np.where(np.any(t.cut_c != 0, (0, 1)), total, inside_only) / T)


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
    """A flat real cotangent of the state after step t: `signals` per leaf ("hidden" if it is bare), zero elsewhere."""
    case = CASES[name]
    bare = not isinstance(case.hidden, dict)

    def one(key, a):
        s = signals.get(key)
        s = np.zeros(a.shape) if s is None else np.asarray(s)
        return (s, np.zeros(a.shape)) if jnp.iscomplexobj(a) else s

    tree = one("hidden", case.hidden) if bare else {k: one(k, a) for k, a in case.hidden.items()}
    return np.asarray(ravel_pytree(jax.tree.map(jnp.asarray, tree))[0])


def guided(name, signal, kappa=0.0, direct=lambda t: 0.0):
    """Σ_t s_t · ε̄_t with `signal(t)` flat on the states; without a state to reach, the gradient of the loss.

    `direct(t)` is a signal that no filter is applied to.
    """
    t = tape(name)
    e = filtered = np.zeros_like(t.full_c[0])
    reaches, traced = np.any(t.full_c != 0, (0, 1)), np.any(t.cut_c != 0, (0, 1))
    total = np.zeros(t.full_c.shape[2])
    for k in range(T):
        e = t.cut_d[k] @ e + t.cut_c[k]
        filtered = kappa * filtered + e
        s, d = signal(k), direct(k) + np.zeros(e.shape[0])
        total += np.where(traced, s @ filtered + d @ e, np.where(reaches, (s + d) @ t.full_c[k], t.l_theta[k]))
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


@cache
def _outputs_moved(name):
    """Per step: F = ∂h/∂y of the cut step for every weight op, (states, samples, outputs), by name."""
    case = CASES[name]
    _, theta, *_ = flat_step(case, plain)

    def derivative(h, x, shapes):
        hold = jax.lax.stop_gradient

        def run(deltas):
            dot = lambda op, u, w: hold(u @ w) + deltas[op]
            return flat_step(case, dot)[0](theta, h, x)[0]

        return jax.jacrev(run)({op: jnp.zeros(s) for op, s in shapes.items()})

    return jax.jit(derivative, static_argnums=2)


class Shapes(dict):
    """Shapes of op outputs, as a static argument of `jit`."""

    def __hash__(self):
        return hash(tuple(sorted(self.items())))


def pp_prop(name, k, decay):
    """x̂ ← α x̂ + u, f̂ ← α D f̂ + (1 − α) F, ε = f̂ ⊗ x̂ / (1 − α^t); vectors are carried as they are."""
    t, case = tape(name), CASES[name]
    data, _ = _tapped(name)
    owner, shapes = {}, Shapes()

    def spy(op, u, w):
        (owner[op],) = (key for key, value in case.params.items() if value is w)
        shapes[op] = (u @ w).shape
        return u @ w

    case.step(case.params, case.hidden, case.x[0], spy)
    number = np.asarray(ravel_pytree({p: jnp.full(a.shape, n) for n, (p, a) in enumerate(case.params.items())})[0])
    names = list(case.params)
    vectors = np.isin(number, [n for n, p in enumerate(names) if case.params[p].ndim == 1])
    plain_trace = np.zeros_like(t.full_c[0])
    seen = {op: np.zeros_like(u) for op, u in data(t.steps[0], case.x[0]).items()}
    back = {op: np.zeros((len(plain_trace), *s)) for op, s in shapes.items()}
    total, steps_taken = np.zeros(t.full_c.shape[2]), 0
    for steps in windows(k):
        trace = plain_trace * vectors
        for op, f in back.items():
            columns = number == names.index(owner[op])
            outer = np.einsum("nbo,bi->nio", f, seen[op]) / (1 - decay ** max(steps_taken, 1))
            trace[:, columns] += outer.reshape(len(trace), -1)
        g_theta, g_entry = inside(t, steps)
        total += g_theta + g_entry @ trace
        for s in steps:
            moved = _outputs_moved(name)(t.steps[s], case.x[s], shapes)
            for op, u in data(t.steps[s], case.x[s]).items():
                seen[op] = decay * seen[op] + np.asarray(u)
                kept = np.tensordot(t.cut_d[s], back[op], 1)
                back[op] = decay * kept + (1 - decay) * np.asarray(moved[op])
            plain_trace = t.cut_d[s] @ plain_trace + t.cut_c[s]
            steps_taken += 1
    return t.unravel(total / T)
