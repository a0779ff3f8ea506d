"""Second implementations: four models differentiated by hand, and learning rules as their papers write them.

NumPy alone, one sample at a time, dense matrices, loops over time. A model gives, for one step,

    D, C               ∂h'/∂h and ∂h'/∂θ of the whole step, (S, S) and (S, P)
    D_local, C_local   the same without paths through other neurons and other weights: what an eligibility is made of
    F, data            C_local = F · data, column by column
    z, to_states       the activity that a readout sees, and (∂z/∂h')ᵀ

θ are the weights that drive the states, one after the other and flat; the readout o = z wo is apart.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

LEAK, THRESHOLD, ADAPTATION, STRENGTH = 0.8, 0.4, 0.9, 0.3


class Step(NamedTuple):
    new: np.ndarray
    z: np.ndarray
    D: np.ndarray
    C: np.ndarray
    D_local: np.ndarray
    C_local: np.ndarray
    to_states: np.ndarray
    F: np.ndarray
    data: np.ndarray


def columns(shapes):
    """Where each weight's columns are."""
    at, found = 0, {}
    for name, shape in shapes.items():
        found[name] = slice(at, at + int(np.prod(shape)))
        at = found[name].stop
    return found, at


def local(parts):
    """C_local, F and data of ops that drive neurons: per weight (data (I,), derivative (S, H) of states by y)."""
    blocks, factors, data = [], [], []
    for u, f in parts:
        for value in u:
            blocks.append(f * value)
            factors.append(f)
            data.append(np.full(f.shape[1], value))
    return (np.concatenate(a, -1) for a in (blocks, factors, data))


def leaky(w, h, x):
    n = len(h)
    phi = np.tanh(x @ w["wi"] + h @ w["wh"])
    slope = (1 - LEAK) * (1 - phi**2)
    new = LEAK * h + (1 - LEAK) * phi
    f = np.diag(slope)
    C, F, data = local([(h, f), (x, f)])
    D = LEAK * np.eye(n) + slope[:, None] * w["wh"].T
    return Step(new, new, D, C, LEAK * np.eye(n), C, np.eye(n), F, data)


def ring(w, h, x):
    """Every neuron hears the one before it, by a fixed connection: no weight op, and not elementwise."""
    n = len(h)
    phi = np.tanh(x @ w["wi"] + 0.5 * np.roll(h, 1))
    slope = (1 - LEAK) * (1 - phi**2)
    new = LEAK * h + (1 - LEAK) * phi
    C, F, data = local([(x, np.diag(slope))])
    D = LEAK * np.eye(n) + 0.5 * np.diag(slope) @ np.roll(np.eye(n), 1, 0)
    return Step(new, new, D, C, LEAK * np.eye(n), C, np.eye(n), F, data)


def psi(v):
    return 1 / (1 + 2 * np.abs(v)) ** 2


def lif(w, v, x):
    """The membrane is the state; a spike acts on the next step, by recurrence and by its reset."""
    n = len(v)
    before, bump = (v > THRESHOLD).astype(float), psi(v - THRESHOLD)
    new = LEAK * v + x @ w["wi"] + before @ w["wh"] - THRESHOLD * before
    C, F, data = local([(before, np.eye(n)), (x, np.eye(n))])
    D_local = np.diag(LEAK - THRESHOLD * bump)
    D = D_local + w["wh"].T * bump
    return Step(new, (new > THRESHOLD).astype(float), D, C, D_local, C, np.diag(psi(new - THRESHOLD)), F, data)


def alif(w, h, x):
    """States a, v, z: threshold, membrane, spike."""
    a, v, z = h.reshape(3, -1)
    one = np.eye(len(a))
    v_new = LEAK * v + x @ w["wi"] + z @ w["wh"] - THRESHOLD * z
    a_new = ADAPTATION * a + z
    over = v_new - THRESHOLD - STRENGTH * a_new
    bump, z_new = np.diag(psi(over)), (over > 0).astype(float)
    to_a = np.concatenate([ADAPTATION * one, 0 * one, one], 1)
    to_v = np.concatenate([0 * one, LEAK * one, -THRESHOLD * one], 1)
    recurrent = np.concatenate([0 * one, 0 * one, w["wh"].T], 1)
    stack = lambda v_row: np.concatenate([to_a, v_row, bump @ (v_row - STRENGTH * to_a)])
    f = np.concatenate([0 * one, one, bump])
    C, F, data = local([(z, f), (x, f)])
    to_states = np.concatenate([0 * one, 0 * one, one])
    new = np.concatenate([a_new, v_new, z_new])
    return Step(new, z_new, stack(to_v + recurrent), C, stack(to_v), C, to_states, F, data)


def gru(w, h, x):
    n = len(h)
    sigmoid = lambda a: 1 / (1 + np.exp(-a))
    z, r = sigmoid(x @ w["wz"] + h @ w["uz"]), sigmoid(x @ w["wr"] + h @ w["ur"])
    m = np.tanh(x @ w["wn"] + (r * h) @ w["un"])
    new = z * h + (1 - z) * m
    by_z, by_n = np.diag((h - m) * z * (1 - z)), np.diag((1 - z) * (1 - m**2))
    by_r = by_n @ w["un"].T @ np.diag(h * r * (1 - r))  # through the op of un: of no use to an eligibility
    parts = [(r * h, by_n), (h, by_r), (h, by_z), (x, by_n), (x, by_r), (x, by_z)]  # un, ur, uz, wn, wr, wz
    C, *_ = local(parts)
    C_local, F, data = local([(u, 0 * f if f is by_r else f) for u, f in parts])
    D = np.diag(z) + by_z @ w["uz"].T + by_n @ w["un"].T @ np.diag(r) + by_r @ w["ur"].T
    return Step(new, new, D, C, np.diag(z), C_local, np.eye(n), F, data)


class Run(NamedTuple):
    """One sample: its steps, output errors, and the gradient of its readout."""

    steps: list[Step]
    errors: list[np.ndarray]
    readout: np.ndarray
    wo: np.ndarray


def run(model: Callable, w: dict[str, Any], h, xs, targets) -> Run:
    """ℓ_t = ½ |z_t wo − target_t|²."""
    steps, errors = [], []
    for x, target in zip(xs, targets, strict=True):
        steps.append(model(w, h, x))
        h = steps[-1].new
        errors.append(steps[-1].z @ w["wo"] - target)
    readout = sum(np.outer(s.z, e) for s, e in zip(steps, errors, strict=True))
    return Run(steps, errors, readout, w["wo"])


def windows(length, k):
    return [range(s, min(s + k, length)) for s in range(0, length, k)]


def loss_to_states(r: Run, t):
    """∂ℓ_t/∂h_t of step t alone."""
    return r.steps[t].to_states @ (r.wo @ r.errors[t])


def through_windows(r: Run, k, start, advance, read):
    """g = Σ over windows of ∂L/∂θ |entry fixed + (∂L/∂entry) · ε: exact inside, the rule's influence matrix before."""
    n, p = r.steps[0].C.shape
    trace, total = start(n, p), np.zeros(p)
    for window in windows(len(r.steps), k):
        inside, across, g_entry = np.zeros((n, p)), np.eye(n), np.zeros(n)
        for t in window:
            inside = r.steps[t].D @ inside + r.steps[t].C
            across = r.steps[t].D @ across
            total += loss_to_states(r, t) @ inside
            g_entry += loss_to_states(r, t) @ across
        total += g_entry @ read(trace, r.steps[window[0]])
        trace = advance(trace, [r.steps[t] for t in window], across, inside)
    return total


def _step_by_step(move):
    def advance(trace, steps, *_):
        for s in steps:
            trace = move(trace, s)
        return trace

    return advance


def bptt(r: Run):
    return through_windows(r, len(r.steps), lambda n, p: None, lambda *_: None, lambda *_: np.zeros(r.steps[0].C.shape))


def rflo(r: Run, k, decay):
    """Murray 2019: p ← λ p + φ' ⊗ u."""
    move = _step_by_step(lambda e, s: decay * e + s.C_local)
    return through_windows(r, k, lambda n, p: np.zeros((n, p)), move, lambda e, _: e)


def ottt(r: Run, k, decay):
    """Xiao et al. 2022: â ← λ â + u, and the postsynaptic factor of the present."""
    move = _step_by_step(lambda a, s: decay * a + s.data)
    return through_windows(r, k, lambda n, p: np.zeros(p), move, lambda a, s: s.F * a)


def snap(r: Run, k, n):
    """Menick et al. 2021: J ← M ∘ (D J + C), M what a weight reaches in n steps; in one, its own neuron."""
    mask = np.any([s.C_local != 0 for s in r.steps], 0)
    neurons = len(r.steps[0].z)
    same = np.equal.outer(np.arange(len(mask)) % neurons, np.arange(len(mask)) % neurons)
    spread = lambda m: same.astype(int) @ m.astype(int) > 0
    mask, onward = spread(mask), np.any([s.D != 0 for s in r.steps], 0)
    for hop in range(1, n):
        mask = mask | spread(onward.astype(int) @ mask.astype(int) > 0)
        mask = mask | spread(np.any([s.C != 0 for s in r.steps], 0)) if hop == 1 else mask
    move = _step_by_step(lambda j, s: mask * (s.D @ j + s.C))
    return through_windows(r, k, lambda n, p: np.zeros((n, p)), move, lambda j, _: j)


def uoro(r: Run, k, signs):
    """Tallec and Ollivier 2017, a window for a step: h̃ ← ρ₀ A h̃ + ρ₁ ν, θ̃ ← θ̃ / ρ₀ + νᵀ C / ρ₁."""
    given = iter(signs)

    def advance(pair, steps, across, inside):
        back, theta = pair
        nu = next(given)
        ahead, fresh = across @ back, nu @ inside
        size = lambda top, below: np.sqrt(np.linalg.norm(top) / np.linalg.norm(below)) if np.any(below) else 0.0
        rho0, rho1 = size(theta, ahead), size(fresh, nu)
        over = lambda a, rho: a / rho if rho else np.zeros_like(a)
        return rho0 * ahead + rho1 * nu, over(theta, rho0) + over(fresh, rho1)

    return through_windows(r, k, lambda n, p: (np.zeros(n), np.zeros(p)), advance, lambda pair, _: np.outer(*pair))


def e_prop(r: Run, k, kappa):
    """Bellec et al. 2020: Σ_t L_t ē_t, ē ← κ ē + ε, with L_t the gradient of that step's loss in its own states."""
    e = filtered = np.zeros(r.steps[0].C.shape)
    total = np.zeros(e.shape[1])
    for t, s in enumerate(r.steps):
        e = s.D_local @ e + s.C_local
        filtered = kappa * filtered + e
        total += loss_to_states(r, t) @ filtered
    none = through_windows(r, k, lambda n, p: None, lambda *_: None, lambda *_: np.zeros(e.shape))
    traced = np.any([s.C_local != 0 for s in r.steps], (0, 1))
    return np.where(traced, total, none)  # without a trace there is the window


def e_prop_with_feedback(r: Run, feedback, kappa):
    """The same with L_t = e_t B_t: eligibilities are those of the activity, ∂z/∂h · ε, and these are filtered."""
    e = np.zeros(r.steps[0].C.shape)
    filtered = np.zeros((len(r.steps[0].z), e.shape[1]))
    traced = np.any([s.C_local != 0 for s in r.steps], (0, 1))
    total = np.zeros(e.shape[1])
    for s, error, b in zip(r.steps, r.errors, feedback, strict=True):
        e = s.D_local @ e + s.C_local
        filtered = kappa * filtered + s.to_states.T @ e
        total += np.where(traced, error @ b @ filtered, error @ b @ s.to_states.T @ s.C)
    return total
