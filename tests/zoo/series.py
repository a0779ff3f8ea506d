"""Linear maps in series: adapters, norm scales, compressed keys, projections of projections; and near misses."""

from functools import partial

import jax
import jax.numpy as jnp

from .model import EXACT, REPORTED, UNUSED, B, Family, H, I, inputs, normal, tokens

family = Family("series")

R, N, WORDS = 2, 3, 6


def gated(value, **shapes):
    """h' = a(x) h + (1 − a(x)) tanh(value(params, x)): the leak is another one at each position and step."""

    def parts(draw):
        def step(params, h, x):
            keep = jax.nn.sigmoid(x @ params["gate"])
            h = keep * h + (1 - keep) * jnp.tanh(value(params, x))
            return h, h

        params = {name: draw(*shape) for name, shape in shapes.items()} | {"gate": draw(I, H)}
        return step, params, draw(B, H), inputs(normal(B, I))

    return parts


def normalised(x):
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 0.1)


LOW = dict.fromkeys(("A", "B", "gate"), EXACT)


@family(LOW)
def low_rank(draw):
    return gated(lambda p, x: x @ p["A"] @ p["B"], A=(I, R), B=(R, H))(draw)


@family(LOW)
def low_rank_by_einsum(draw):
    """Columns first, and the second map before the first in the text."""
    return gated(lambda p, x: jnp.einsum("hr,br->bh", p["B"], jnp.einsum("ri,bi->br", p["A"], x)), A=(R, I), B=(H, R))(
        draw
    )


@family(LOW)
def low_rank_by_vmap(draw):
    """A step of one sample, mapped over the batch: y = B (A x)."""

    def step(params, h, x):
        keep = jax.nn.sigmoid(params["gate"] @ x)
        h = keep * h + (1 - keep) * jnp.tanh(params["B"] @ (params["A"] @ x))
        return h, h

    params = {"A": draw(R, I), "B": draw(H, R), "gate": draw(H, I)}
    return jax.vmap(step, (None, 0, 0)), params, draw(B, H), inputs(normal(B, I))


@family({"W": EXACT, **LOW})
def adapter(draw):
    """LoRA beside a weight that learns, with its scale α/r and one more factor in the middle."""

    def value(p, x):
        return x @ p["W"] + 0.5 * (x @ p["A"] * jnp.exp(p["B"].mean())) @ p["B"]

    return gated(value, W=(I, H), A=(I, R), B=(R, H))(draw)


@family(dict.fromkeys(("A", "b", "B", "C", "c", "gate"), EXACT))
def three_maps_with_biases(draw):
    def value(p, x):
        return ((x @ p["A"] + p["b"]) @ p["B"]) @ p["C"] + p["c"]

    return gated(value, A=(I, R), b=(R,), B=(R, N), C=(N, H), c=(H,))(draw)


@family(dict.fromkeys(("A", "B", "gate"), EXACT))
def linear_residual(draw):
    """The data itself, and the same data through a map, concatenated with another part of it."""

    def value(p, x):
        return jnp.concatenate([x + x @ p["A"], -x[:, :1]], axis=1) @ p["B"]

    return gated(value, A=(I, I), B=(I + 1, H))(draw)


@family(dict.fromkeys(("scale", "bias", "W", "gate"), EXACT))
def norm_scale(draw):
    """A norm of the input, its scale and bias, then a projection."""
    return gated(lambda p, x: (normalised(x) * p["scale"] + p["bias"]) @ p["W"], scale=(I,), bias=(I,), W=(I, H))(draw)


@family(dict.fromkeys(("scale", "q", "k"), EXACT))
def norm_scale_of_several(draw):
    """One scale before two projections, of which the second is the gate."""

    def step(params, h, x):
        n = (1 + params["scale"]) * normalised(x)
        keep = jax.nn.sigmoid(n @ params["q"])
        h = keep * h + n @ params["k"]
        return h, h

    return step, {"scale": draw(I), "q": draw(I, H), "k": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family(dict.fromkeys(("x", "dt", "bias", "A", "in"), EXACT))
def projection_of_projection(draw):
    """Mamba: Δ is a projection of a part of x_proj, whose other parts are B and C."""

    def step(params, h, x):
        z = x @ params["x"]
        low, b, c = jnp.split(z, [R, R + N], axis=-1)
        dt = jax.nn.softplus(low @ params["dt"] + params["bias"])[..., None]
        h = jnp.exp(-dt * jnp.exp(params["A"])) * h + dt * b[:, None, :] * (x @ params["in"])[..., None]
        return h, (h * c[:, None, :]).sum(-1)

    params = {"x": draw(I, R + 2 * N), "dt": draw(R, H), "bias": draw(H), "A": draw(H, N), "in": draw(I, H)}
    return step, params, draw(B, H, N), inputs(normal(B, I))


@family(dict.fromkeys(("down", "up", "gate"), EXACT))
def compressed_keys_of_heads(draw):
    """A latent of all heads, and a map of each head from it."""

    def step(params, h, x):
        latent = x @ params["down"]
        k = jnp.einsum("br,nrh->bnh", latent, params["up"])
        h = jax.nn.sigmoid(x @ params["gate"])[..., None] * h + jnp.tanh(k)
        return h, h

    params = {"down": draw(I, R), "up": draw(2, R, H), "gate": draw(I, 2)}
    return step, params, draw(B, 2, H), inputs(normal(B, I))


@family(dict.fromkeys(("A", "B", "s"), EXACT))
def low_rank_of_each_head(draw):
    """Mapped over heads, each with data, scale and maps of its own."""

    def head(a, b, s, h, x):
        return 0.9 * h + jnp.tanh((s * (x @ a)) @ b)

    def step(params, h, x):
        h = jax.vmap(jax.vmap(head, (0, 0, 0, 0, 0)), (None, None, None, 0, 0))(
            params["A"], params["B"], params["s"], h, x
        )
        return h, h

    params = {"A": draw(2, I, R), "B": draw(2, R, H), "s": draw(2, R)}
    return step, params, draw(B, 2, H), inputs(normal(B, 2, I))


@family(dict.fromkeys(("scale", "bias", "W", "gate"), EXACT))
def norm_scale_with_deviation(draw):
    """The scale is multiplied with the inverse deviation first, as Flax and Haiku do."""

    def value(p, x):
        centred = x - x.mean(-1, keepdims=True)
        factor = jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 0.1) * p["scale"]
        return (centred * factor + p["bias"]) @ p["W"]

    return gated(value, scale=(I,), bias=(I,), W=(I, H))(draw)


def rotation(value, **shapes):
    """h' = λ h + value(params, x), complex and diagonal; `value` makes complex numbers of real ones."""

    def parts(draw):
        def step(params, h, x):
            h = jnp.exp(-jnp.exp(params["nu"]) + 1j * params["theta"]) * h + value(params, x)
            return h, h

        params = {name: draw(*shape) + 1j * draw(*shape) if name.isupper() else draw(*shape)
                  for name, shape in shapes.items()} | {"nu": draw(H), "theta": draw(H)}  # fmt: skip
        return step, params, draw(B, H) + 1j * draw(B, H), inputs(normal(B, I))

    return parts


TURN = dict.fromkeys(("nu", "theta", "W"), EXACT)


@family({**TURN, "scale": EXACT, "bias": EXACT})
def norm_scale_before_complex(draw):
    """S5 under a norm: real numbers, times a complex matrix."""
    value = rotation(lambda p, x: (normalised(x) * p["scale"] + p["bias"]) @ p["W"], scale=(I,), bias=(I,), W=(I, H))
    return value(draw)


@family({**TURN, "A": EXACT, "scale": EXACT})
def low_rank_complex(draw):
    return rotation(lambda p, x: ((p["scale"] * x) @ p["A"]) @ p["W"], scale=(I,), A=(I, R), W=(R, H))(draw)


@family({**TURN, "a": EXACT})
def real_then_cast_to_complex(draw):
    return rotation(lambda p, x: jnp.einsum("hr,br->bh", p["W"], x @ p["a"] + 0j), a=(I, R), W=(H, R))(draw)


@family({"nu": EXACT, "theta": EXACT, "A": EXACT, "w": EXACT})
def complex_then_real(draw):
    return rotation(lambda p, x: (x @ p["A"]) @ p["w"], A=(I, R), w=(R, H))(draw)


@family({**TURN, "A": REPORTED})
def conjugate_between(draw):
    """Not linear over complex numbers."""
    return rotation(lambda p, x: jnp.conj(x @ p["A"]) @ p["W"], A=(I, R), W=(R, H))(draw)


@family({"nu": EXACT, "theta": EXACT, "A": REPORTED, "w": EXACT})
def real_part_between(draw):
    return rotation(lambda p, x: (x @ p["A"]).real @ p["w"], A=(I, R), w=(R, H))(draw)


def by_token(read, rule=lambda x, p: x, **more):
    """A gated cell of a token: `read` looks its row up, `rule` is what is done to the row."""

    def parts(draw):
        def step(params, h, token):
            x = rule(read(params["E"], token), params)
            keep = jax.nn.sigmoid(x @ params["z"] + params["b"])
            h = keep * h + (1 - keep) * jnp.tanh(x @ params["W"])
            return h, h

        params = {"E": draw(WORDS, I), "z": draw(I, H), "b": draw(H), "W": draw(I, H)}
        params |= {name: draw(*shape) for name, shape in more.items()}
        return step, params, draw(B, H), inputs(tokens(WORDS, B))

    return parts


TOKEN = dict.fromkeys(("E", "z", "b", "W"), EXACT)


@family(TOKEN)
def embedding_of_gates(draw):
    return by_token(lambda table, token: table[token])(draw)


@family({**TOKEN, "scale": EXACT})
def embedding_normalised(draw):
    """A norm by row, which is not linear in the row."""
    read, rule = partial(jnp.take, axis=0), lambda x, p: normalised(x) * p["scale"]
    return by_token(read, rule, scale=(I,))(draw)


@family(TOKEN)
def embedding_of_one_sample(draw):
    """A step of one token, mapped over the batch, as with Equinox."""
    step, *rest = by_token(lambda table, token: table[token])(draw)
    return jax.vmap(step, (None, 0, 0)), *rest


@family(TOKEN)
def embedding_by_one_hot(draw):
    return by_token(lambda table, token: jax.nn.one_hot(token, WORDS) @ table)(draw)


@family({"E": EXACT, "W": EXACT, "gate": EXACT})
def embedding_beside_data(draw):
    """Only a part of the cell is of the token; several tokens are added up."""

    def step(params, h, words, x):
        v = (params["E"][words] @ params["W"]).sum(1)
        h = jax.nn.sigmoid(x @ params["gate"]) * h + jnp.tanh(v)
        return h, h

    params = {"E": draw(WORDS, I), "W": draw(I, H), "gate": draw(I, H)}
    return step, params, draw(B, H), inputs(tokens(WORDS, B, 2), normal(B, I))


# --- near misses: no maps in series. The layers have few units, so that a hop carries what is below them. ---


@family({"A": EXACT, "B": EXACT, "gate": EXACT})
def not_linear_between(draw):
    return gated(lambda p, x: jnp.tanh(x @ p["A"]) @ p["B"], A=(I, R), B=(R, H))(draw)


@family({"A": EXACT, "B": EXACT, "gate": EXACT})
def norm_between(draw):
    """A statistic of the data, which A has a part in."""
    return gated(lambda p, x: normalised(x @ p["A"]) @ p["B"], A=(I, R), B=(R, H))(draw)


@family({"A": EXACT, "B": EXACT, "C": EXACT, "gate": EXACT})
def read_elsewhere(draw):
    """What lies between is also read by a map that it reaches through a square."""

    def value(p, x):
        z = x @ p["A"]
        return z @ p["B"] + (z**2) @ p["C"]

    return gated(value, A=(I, R), B=(R, H), C=(R, H))(draw)


@family({"A": EXACT, "B": EXACT, "gate": EXACT})
def times_data_between(draw):
    return gated(lambda p, x: (x[:, :R] * (x @ p["A"])) @ p["B"], A=(I, R), B=(R, H))(draw)


@family({"A": UNUSED, "B": EXACT, "gate": EXACT})
def stopped_between(draw):
    return gated(lambda p, x: jax.lax.stop_gradient(x @ p["A"]) @ p["B"], A=(I, R), B=(R, H))(draw)


@family({"A": REPORTED, "B": REPORTED, "gate": REPORTED})
def low_rank_recurrence(draw):
    """Maps in series of the state itself, which mix its positions."""

    def step(params, h, x):
        h = jnp.tanh(h @ params["A"] @ params["B"] + x @ params["gate"])
        return h, h

    params = {"A": draw(H, R), "B": draw(R, H), "gate": draw(I, H)}
    return step, params, draw(B, H), inputs(normal(B, I))


@family({"E": EXACT, "W": EXACT})
def embedding_times_input(draw):
    """The row meets data before the projection."""

    def step(params, h, token, x):
        h = 0.9 * h + jnp.tanh((params["E"][token] * x) @ params["W"])
        return h, h

    return step, {"E": draw(WORDS, I), "W": draw(I, H)}, draw(B, H), inputs(tokens(WORDS, B), normal(B, I))


@family({"E": EXACT, "W": EXACT})
def embedding_centred_over_samples(draw):
    """The rows that are read act on each other."""

    def step(params, h, token):
        x = params["E"][token]
        x = jnp.tanh(x - x.mean(0))
        h = 0.9 * h + jnp.tanh(x @ params["W"])
        return h, h

    return step, {"E": draw(WORDS, I), "W": draw(I, H)}, draw(B, H), inputs(tokens(WORDS, B))


@family({"E": EXACT, "W": EXACT, "lane": EXACT})
def embedding_scaled_by_lane(draw):
    """Each lane has a scale of its own, inside of something that is not linear: rows are not alike."""

    def step(params, h, token):
        x = jnp.tanh(params["E"][token] * params["lane"])
        h = 0.9 * h + jnp.tanh(x @ params["W"])
        return h, h

    return step, {"E": draw(WORDS, I), "W": draw(I, H), "lane": draw(B, 1)}, draw(B, H), inputs(tokens(WORDS, B))


@family({"E": EXACT, "W": EXACT})
def embedding_norm_of_zero(draw):
    """A norm that has no slope at a row of zeros, which nobody reads: all rows may not be computed."""

    def step(params, h, token):
        x = params["E"][token]
        h = 0.9 * h + jnp.tanh((x / jnp.sqrt((x**2).sum(-1, keepdims=True))) @ params["W"])
        return h, h

    table = draw(WORDS, I).at[-1].set(0)
    return step, {"E": table, "W": draw(I, H)}, draw(B, H), inputs(tokens(WORDS - 1, B))


@family({"A": EXACT, "B": EXACT, "C": EXACT})
def weight_chosen_by_data(draw):
    """Which map comes second is for the data to say: there is no product of parameters."""

    def step(params, h, x):
        u = x @ params["A"]
        h = 0.9 * h + u @ jax.lax.cond(u[0, 0] > 0, lambda: params["B"], lambda: params["C"])
        return h, h

    return step, {"A": draw(I, R), "B": draw(R, H), "C": draw(R, H)}, draw(B, H), inputs(normal(B, I))


@family({"A": EXACT, "B": EXACT})
def choice_without_results(draw):
    """Both branches give the same weight: the program keeps a choice by data that has no results."""

    def step(params, h, x):
        u = x @ jax.lax.cond(x[0, 0] > 0, lambda: params["A"], lambda: params["A"])
        h = 0.9 * h + u @ params["B"]
        return h, h

    return step, {"A": draw(I, R), "B": draw(R, H)}, draw(B, H), inputs(normal(B, I))
