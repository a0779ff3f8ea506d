"""Ops that mix nothing, as public code writes them; what no parameter reaches; and near misses of both."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .model import EXACT, REPORTED, B, Family, H, I, inputs, normal

family = Family("as_written")

N, TAPS = 2, 3
ALL = dict.fromkeys(("in", "taps", "bias", "a"), EXACT)


def selective(decay):
    """h' = decay(Δ, A) h + Δ x, with Δ of the input."""

    def parts(draw):
        def step(params, h, x):
            dt = jax.nn.softplus(x @ params["dt"])
            h = decay(dt, -jnp.exp(params["A"])) * h + (dt * (x @ params["x"]))[..., None]
            return h, h.sum(-1)

        params = {"dt": draw(I, H), "x": draw(I, H), "A": draw(H, N)}
        return step, params, draw(B, H, N), inputs(normal(B, I))

    return parts


@family(dict.fromkeys(("dt", "x", "A"), EXACT))
def einsum_without_contraction(draw):
    return selective(lambda dt, A: jnp.exp(jnp.einsum("bd,dn->bdn", dt, A)))(draw)


@family(dict.fromkeys(("dt", "x", "A"), EXACT))
def einsum_of_one_sample(draw):
    return selective(jax.vmap(lambda dt, A: jnp.exp(jnp.einsum("d,dn->dn", dt, A)), (0, None)))(draw)


@family(dict.fromkeys(("dt", "x", "A"), EXACT))
def batched_product_of_columns(draw):
    """A matrix of one column for each channel, times a row."""
    return selective(lambda dt, A: jnp.exp(jnp.matmul(dt[..., None, None], A[:, None, :])[..., 0, :]))(draw)


@family({"dt": REPORTED, "x": EXACT, "A": EXACT})
def einsum_with_contraction(draw):
    """A near miss: channels are summed."""

    def step(params, h, x):
        dt = jax.nn.softplus(x @ params["dt"])
        h = jnp.exp(-jnp.einsum("bd,de->be", dt, jnp.exp(params["A"])))[..., None] * h + (x @ params["x"])[..., None]
        return h, h.sum(-1)

    params = {"dt": draw(I, H), "x": draw(I, H), "A": draw(H, H)}
    return step, params, draw(B, H, N), inputs(normal(B, I))


def short_convolution(draw, conv, width=1, taps=None):
    """A short convolution of a projected input, over its last values, before a diagonal state of the same channels."""

    def step(params, s, x):
        window = jnp.concatenate([s["window"], (x @ params["in"])[:, None]], 1)
        u = jax.nn.silu(conv(window, params["taps"]) + params["bias"])
        h = jax.nn.sigmoid(params["a"]) * s["h"] + u
        return {"window": window[:, 1:], "h": h}, h

    shape = (TAPS, H) if taps is None else taps
    params = {"in": draw(I, H), "taps": draw(*shape), "bias": draw(width * H), "a": draw(width * H)}
    return step, params, {"window": draw(B, TAPS - 1, H), "h": draw(B, width * H)}, inputs(normal(B, I))


def convolve(window, taps, groups=H, padding="VALID"):
    """Places before channels, taps (k, input channels of a group, output channels)."""
    dims = ("NWC", "WIO", "NWC")
    return lax.conv_general_dilated(window, taps, (1,), padding, dimension_numbers=dims, feature_group_count=groups)


@family(ALL)
def convolution_by_sums(draw):
    return short_convolution(draw, lambda window, taps: (window * taps).sum(1))


@family(ALL)
def convolution_by_einsum(draw):
    return short_convolution(draw, lambda window, taps: jnp.einsum("btc,tc->bc", window, taps))


@family(ALL)
def convolution_by_lax(draw):
    return short_convolution(draw, lambda window, taps: convolve(window, taps[:, None])[:, 0])


@family(ALL)
def convolution_of_one_sample(draw):
    """Mapped over samples, with the channels first."""

    def conv(window, taps):
        dims = ("NCH", "OIH", "NCH")
        y = lax.conv_general_dilated(
            window.T[None], taps.T[:, None], (1,), "VALID", dimension_numbers=dims, feature_group_count=H
        )
        return y[0, :, 0]

    return short_convolution(draw, jax.vmap(conv, (0, None)))


@family(ALL)
def convolution_at_all_places(draw):
    """Causal over the whole window, of which the last place is read."""
    return short_convolution(draw, lambda window, taps: convolve(window, taps[:, None], H, [(TAPS - 1, 0)])[:, -1])


@family(ALL)
def convolution_of_two_filters(draw):
    """Two outputs for each channel."""
    conv = lambda window, taps: convolve(window, taps)[:, 0]
    return short_convolution(draw, conv, 2, (TAPS, 1, 2 * H))


@family(dict.fromkeys(("in", "taps", "bias", "a"), EXACT))
def convolution_in_a_loop(draw):
    """The same convolution twice, in an inner loop."""

    def conv(window, taps):
        def twice(y, _):
            return y + convolve(window, taps[:, None])[:, 0], None

        return lax.scan(twice, jnp.zeros((B, H)), None, 2)[0]

    return short_convolution(draw, conv)


@family({"in": REPORTED, "taps": EXACT, "bias": EXACT, "a": EXACT})
def convolution_over_channels(draw):
    """A near miss: every channel reads all."""
    return short_convolution(draw, lambda window, taps: convolve(window, taps, 1)[:, 0], 1, (TAPS, H, H))


@family({"in": REPORTED, "taps": EXACT, "bias": EXACT, "a": EXACT})
def convolution_of_groups(draw):
    """A near miss: the channels of a group read each other."""

    def conv(window, taps):
        return convolve(jnp.concatenate([window, window], -1), taps, H)[:, 0]

    return short_convolution(draw, conv, 1, (TAPS, 2, H))


@family({"in": REPORTED, "taps": REPORTED, "bias": EXACT, "a": EXACT}, either=("in", "taps"))
def convolution_at_two_places(draw):
    """Two places of the convolution are read."""

    def conv(window, taps):
        y = convolve(window, taps[:, None], H, [(TAPS - 1, 0)])
        return y[:, -1] - 0.5 * y[:, -2]

    return short_convolution(draw, conv)


def matrix(draw, make, product=lambda h, m: h @ m, extra=None):
    """h' = tanh(h M + x W), M made of parameters."""

    def step(params, h, x):
        h = jnp.tanh(product(h, make(params, x)) + x @ params["w"])
        return h, h

    params = {"a": draw(H), "w": draw(I, H)} | ({} if extra is None else {"b": draw(*extra)})
    return step, params, draw(B, H), inputs(normal(B, I))


DIAGONAL = {"a": EXACT, "w": EXACT}


@family(DIAGONAL)
def diagonal(draw):
    return matrix(draw, lambda p, x: jnp.diag(p["a"]))


@family(DIAGONAL)
def diagonal_times_identity(draw):
    return matrix(draw, lambda p, x: jnp.eye(H) * p["a"])


@family(DIAGONAL)
def diagonal_from_the_left(draw):
    return matrix(draw, lambda p, x: jnp.diag(jax.nn.sigmoid(p["a"])), lambda h, m: jnp.einsum("ij,bj->bi", m, h))


@family(DIAGONAL)
def diagonal_of_one_sample(draw):
    return matrix(draw, lambda p, x: jnp.diag(p["a"]).T, jax.vmap(lambda h, m: m @ h, (0, None)))


@family(DIAGONAL)
def diagonal_written_into_zeros(draw):
    return matrix(draw, lambda p, x: jnp.zeros((H, H)).at[np.arange(H), np.arange(H)].set(p["a"]))


@family({**DIAGONAL, "b": EXACT})
def diagonal_plus_identity(draw):
    """I + dt A, of an Euler step, with a step size that is learnt."""
    return matrix(draw, lambda p, x: jnp.eye(H) - jnp.exp(p["b"]) * jnp.diag(p["a"]), extra=())


@family({"a": EXACT, "w": EXACT})
def diagonal_for_each_head(draw):
    """Heads are mapped over, each with a diagonal matrix of its own."""

    def step(params, h, x):
        h = jax.vmap(lambda a, h: h @ jnp.diag(a), (0, 1), 1)(params["a"], h)
        h = jnp.tanh(h + (x @ params["w"]).reshape(B, 2, 3))
        return h, h

    return step, {"a": draw(2, 3), "w": draw(I, 6)}, draw(B, 2, 3), inputs(normal(B, I))


MIXED = {"a": REPORTED, "w": REPORTED, "b": REPORTED}


@family(MIXED)
def nearly_diagonal(draw):
    """A near miss: one element beside the diagonal."""
    return matrix(draw, lambda p, x: jnp.diag(p["a"]).at[0, 1].set(p["b"]), extra=())


@family(MIXED)
def two_diagonals(draw):
    return matrix(draw, lambda p, x: jnp.diag(p["a"]) + jnp.diag(p["b"], 1), extra=(H - 1,))


@family({"a": REPORTED, "w": REPORTED})
def diagonal_and_a_constant(draw):
    return matrix(draw, lambda p, x: jnp.diag(p["a"]) + 0.1)


@family({"a": REPORTED, "w": REPORTED, "b": REPORTED})
def diagonal_by_chance(draw):
    """A near miss: a full matrix, which is multiplied by a mask that is data."""
    return matrix(draw, lambda p, x: p["b"] * (x[0, 0] > -9) + jnp.diag(p["a"]), extra=(H, H))


@family({"a": REPORTED, "w": REPORTED})
def diagonal_under_a_rule(draw):
    """A near miss: zero off its diagonal, but its derivative is not."""

    @jax.custom_vjp
    def pick(a):
        return jnp.diag(a)

    pick.defvjp(lambda a: (jnp.diag(a), None), lambda _, g: (g.sum(0),))
    return matrix(draw, lambda p, x: pick(p["a"]))


@family({"in": EXACT, "taps": EXACT})
def convolution_of_a_fused_projection(draw):
    """One product makes a gate of the output and, behind it, what the convolution reads."""

    def step(params, window, x):
        z, u = jnp.split(x @ params["in"], [2], -1)
        window = jnp.concatenate([window, u[:, None]], 1)
        y = jnp.einsum("btc,tc->bc", window, params["taps"])
        return window[:, 1:], y * jnp.tanh(z.sum(-1, keepdims=True))

    return step, {"in": draw(I, 2 + H), "taps": draw(TAPS, H)}, draw(B, TAPS - 1, H), inputs(normal(B, I))


# --- per parameter: what a state that it never reaches does is no loss ---


def gated(params, s, u):
    r = jax.nn.sigmoid(u @ params["r"] + params["rb"])
    return r * s["h"] + (1 - r) * jnp.tanh(u @ params["z"])


@family({"taps": EXACT, "r": EXACT, "rb": EXACT, "z": EXACT})
def gates_above_a_convolution(draw):
    """The convolution reads the input itself: no gate ever acts on its window."""

    def step(params, s, x):
        window = jnp.concatenate([s["window"], x[:, None]], 1)
        h = gated(params, s, jnp.einsum("btc,tc->bc", window, params["taps"]))
        return {"window": window[:, 1:], "h": h}, h

    params = {"taps": draw(TAPS, I), "r": draw(I, H), "rb": draw(H), "z": draw(I, H)}
    return step, params, {"window": draw(B, TAPS - 1, I), "h": draw(B, H)}, inputs(normal(B, I))


@family({"in": REPORTED, "taps": EXACT, "r": EXACT, "rb": EXACT, "a": EXACT})
def gates_of_its_own_channels(draw):
    """The gated state is of the convolution's own channels, and lies at its positions."""

    def step(params, s, x):
        window = jnp.concatenate([s["window"], (x @ params["in"])[:, None]], 1)
        u = (window * params["taps"]).sum(1)
        r = jax.nn.sigmoid(u @ params["r"] + params["rb"])
        a = jnp.exp(-jax.nn.softplus(params["a"]) * r)
        h = a * s["h"] + (1 - a) * u
        return {"window": window[:, 1:], "h": h}, h

    params = {"in": draw(I, H), "taps": draw(TAPS, H), "r": draw(H, H), "rb": draw(H), "a": draw(H)}
    return step, params, {"window": draw(B, TAPS - 1, H), "h": draw(B, H)}, inputs(normal(B, I))


@family({"in": REPORTED, "r": EXACT})
def two_parts_of_one_array(draw):
    """One array holds a leaky layer and, above it, a gated one: the gate never reaches the first half."""

    def step(params, s, x):
        low, high = jnp.split(s, 2, -1)
        low = 0.8 * low + x @ params["in"]
        high = jax.nn.sigmoid(low @ params["r"]) * high + 1.0
        return jnp.concatenate([low, high], -1), high

    return step, {"in": draw(I, H), "r": draw(H, H)}, draw(B, 2 * H), inputs(normal(B, I))


@family({"in": REPORTED, "r": REPORTED, "back": REPORTED})
def two_parts_with_a_way_back(draw):
    """A near miss: the upper half acts on the lower one, and so does the gate."""

    def step(params, s, x):
        low, high = jnp.split(s, 2, -1)
        low = 0.8 * low + x @ params["in"] + params["back"] * high
        high = jax.nn.sigmoid(low @ params["r"]) * high + 1.0
        return jnp.concatenate([low, high], -1), high

    params = {"in": draw(I, H), "r": draw(H, H), "back": draw(H)}
    return step, params, draw(B, 2 * H), inputs(normal(B, I))


@family({"w": EXACT})
def clock_under_a_layer(draw):
    """A clock that no parameter reaches acts on all units."""
    mix = draw(H, H)

    def step(params, s, x):
        clock = s["clock"] + 1
        h = 0.9 * s["h"] + jnp.tanh(clock @ mix) * (x @ params["w"])
        return {"h": h, "clock": clock}, h

    return step, {"w": draw(I, H)}, {"h": draw(B, H), "clock": jnp.ones((B, H))}, inputs(normal(B, I))


# --- coarse states that act on fine ones: each fine position sees few coarse ones ---


@family(dict.fromkeys(("in", "taps", "b", "a"), EXACT))
def convolution_under_a_wider_state(draw):
    """N numbers for each channel: what the window did to a channel acts on all of them."""

    def step(params, s, x):
        window = jnp.concatenate([s["window"], (x @ params["in"])[:, None]], 1)
        u = jax.nn.silu((window * params["taps"]).sum(1))
        h = jnp.exp(-jnp.exp(params["a"])) * s["h"] + jnp.einsum("bd,bn->bdn", u, x @ params["b"])
        return {"window": window[:, 1:], "h": h}, h.sum(-1)

    params = {"in": draw(I, H), "taps": draw(TAPS, H), "b": draw(I, N), "a": draw(H, N)}
    return step, params, {"window": draw(B, TAPS - 1, H), "h": draw(B, H, N)}, inputs(normal(B, I))


@family(dict.fromkeys(("in", "taps", "a"), EXACT))
def convolution_of_both_factors(draw):
    """Both factors of what is written pass the convolution, so that a fine position sees two channels of it."""

    def step(params, s, x):
        window = jnp.concatenate([s["window"], (x @ params["in"])[:, None]], 1)
        u, b = jnp.split((window * params["taps"]).sum(1), [H], -1)
        h = jnp.exp(-jnp.exp(params["a"])) * s["h"] + u[:, :, None] * b[:, None, :]
        return {"window": window[:, 1:], "h": h}, h.sum(-1)

    params = {"in": draw(I, H + N), "taps": draw(TAPS, H + N), "a": draw(H, N)}
    return step, params, {"window": draw(B, TAPS - 1, H + N), "h": draw(B, H, N)}, inputs(normal(B, I))


@family({"g": REPORTED, "m": EXACT, "w": EXACT})
def coarse_in_two_stages(draw):
    """A near miss for the first stage: one gate acts on channels, and these act on what lies under them."""

    def step(params, s, x):
        g = 0.8 * s["g"] + x @ params["g"]
        m = 0.7 * s["m"] + jnp.tanh(s["g"]) + x @ params["m"]
        c = jax.nn.sigmoid(s["m"])[..., None] * s["c"] + (x @ params["w"]).reshape(B, H, N)
        return {"g": g, "m": m, "c": c}, c.sum(-1)

    params = {"g": draw(I, 1), "m": draw(I, H), "w": draw(I, H * N)}
    return step, params, {"g": draw(B, 1), "m": draw(B, H), "c": draw(B, H, N)}, inputs(normal(B, I))


@family({"g": REPORTED, "w": REPORTED})
def coarse_that_is_acted_on(draw):
    """A near miss: a common gate of many units, which act on it."""

    def step(params, s, x):
        g = 0.8 * s["g"] + x @ params["g"] + 0.1 * s["h"].mean(-1, keepdims=True)
        h = jax.nn.sigmoid(s["g"]) * s["h"] + x @ params["w"]
        return {"g": g, "h": h}, h

    return step, {"g": draw(I, 1), "w": draw(I, H)}, {"g": draw(B, 1), "h": draw(B, H)}, inputs(normal(B, I))


@family({"m": REPORTED, "w": EXACT})
def coarse_positions_that_mix(draw):
    """A near miss: gates of heads that act on each other."""

    def step(params, s, x):
        m = 0.5 * s["m"] + 0.3 * jnp.roll(s["m"], 1, -1) + x @ params["m"]
        h = jax.nn.sigmoid(s["m"])[..., None] * s["h"] + (x @ params["w"]).reshape(B, 3, N)
        return {"m": m, "h": h}, h

    return step, {"m": draw(I, 3), "w": draw(I, 3 * N)}, {"m": draw(B, 3), "h": draw(B, 3, N)}, inputs(normal(B, I))
