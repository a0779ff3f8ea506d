"""States of every shape and type."""

import jax
import jax.numpy as jnp

from .model import EXACT, REPORTED, B, Family, H, I, inputs, normal
from .surrogate import spike_jvp

family = Family("states")


@family({"w": EXACT})
def quadratic(draw):
    """v - a and v * v in one equation."""

    def step(params, state, x):
        v, a = state["v"], state["a"]
        new_v = v + 0.2 * (v - a - v * v + x @ params["w"])
        new_a = a + 0.1 * (0.8 * v - a)
        return {"v": new_v, "a": new_a}, new_v

    return step, {"w": draw(I, H)}, {"v": draw(B, H), "a": draw(B, H)}, inputs(normal(B, I))


@family({"w": EXACT, "u": EXACT})
def two_populations(draw):
    """Two independent populations of different sizes."""

    def step(params, state, x):
        big = 0.9 * state["big"] + x @ params["w"]
        small = 0.8 * state["small"] + jnp.tanh(x @ params["u"])
        return {"big": big, "small": small}, {"big": big, "small": small}

    params = {"w": draw(I, 7), "u": draw(I, 2)}
    return step, params, {"big": draw(B, 7), "small": draw(B, 2)}, inputs(normal(B, I))


@family({"w": EXACT}, either=["w"])
def pooled_population(draw):
    """A second state averages the first one in pairs: blocks of three elements, two of one leaf, one of the other."""

    def step(params, state, x):
        fine = 0.9 * state["fine"] + jnp.tanh(x @ params["w"])
        coarse = 0.8 * state["coarse"] + fine.reshape(B, H, 2).mean(axis=-1)
        return {"fine": fine, "coarse": coarse}, coarse

    return step, {"w": draw(I, 2 * H)}, {"fine": draw(B, 2 * H), "coarse": draw(B, H)}, inputs(normal(B, I))


@family({"w": EXACT, "u": EXACT})
def global_scalar(draw):
    """A state of one number per sample beside a state per unit."""

    def step(params, state, x):
        h = 0.9 * state["h"] + x @ params["w"]
        level = 0.8 * state["level"] + jnp.tanh(x @ params["u"])
        return {"h": h, "level": level}, h * level[:, None]

    params = {"w": draw(I, H), "u": draw(I)}
    return step, params, {"h": draw(B, H), "level": 1 + draw(B)}, inputs(normal(B, I))


@family({"w": EXACT})
def trailing_slots(draw):
    """A trailing axis of three slots per unit, each driving the next."""

    def step(params, state, x):
        fast = 0.6 * state[..., 0] + x @ params["w"]
        medium = 0.8 * state[..., 1] + 0.5 * jnp.tanh(fast)
        slow = 0.95 * state[..., 2] + 0.2 * medium - 0.1 * state[..., 0]
        return jnp.stack([fast, medium, slow], axis=-1), medium + slow

    return step, {"w": draw(I, H)}, draw(B, H, 3), inputs(normal(B, I))


@family({"w": EXACT})
def trailing_matrix(draw):
    """Three slots per unit coupled by one fixed matrix, as in a Legendre memory."""
    matrix = 0.7 * jnp.eye(3) + draw(3, 3, scale=0.2)
    drive = jnp.asarray([1.0, 0.5, -0.3])

    def step(params, state, x):
        state = state @ matrix + (x @ params["w"])[..., None] * drive
        return state, state

    return step, {"w": draw(I, H)}, draw(B, H, 3), inputs(normal(B, I))


@family({"w": EXACT, "gain": EXACT})
def thirty_delays(draw):
    """A line of thirty slots beside each unit, which hears two of them: a shift, and few links."""

    def step(params, state, x):
        line = state["line"]
        v = 0.8 * state["v"] + jnp.tanh(params["gain"] * line[..., 2] - line[..., 4]) + x @ params["w"]
        return {"v": v, "line": jnp.roll(line, 1, axis=-1).at[..., 0].set(jnp.tanh(v))}, v + line[..., 29]

    params = {"w": draw(I, H), "gain": draw(H)}
    return step, params, {"v": draw(B, H), "line": draw(B, H, 30)}, inputs(normal(B, I))


@family({"w": EXACT, "a": EXACT})
def sixteen_coupled(draw):
    """Sixteen states of a unit that all act on each other, in one array."""
    matrix = 0.5 * jnp.eye(16) + draw(16, 16, scale=0.1)

    def step(params, state, x):
        state = jnp.tanh(params["a"][:, None] * (state @ matrix)).at[..., 3].add(x @ params["w"])
        return state, state[..., 0] + state[..., 7] ** 2

    return step, {"w": draw(I, H), "a": 1 + 0.3 * draw(H)}, draw(B, H, 16), inputs(normal(B, I))


@family({"w": REPORTED, "m": REPORTED}, either=["w", "m"])
def trailing_matrix_learnt(draw):
    """The coupling of the slots is a parameter: a matmul on the state that stays within a unit."""
    drive = jnp.asarray([1.0, 0.5, -0.3])

    def step(params, state, x):
        state = state @ params["m"] + (x @ params["w"])[..., None] * drive
        return state, state

    params = {"w": draw(I, H), "m": 0.7 * jnp.eye(3) + draw(3, 3, scale=0.2)}
    return step, params, draw(B, H, 3), inputs(normal(B, I))


@family({"w": EXACT})
def counter(draw):
    """An integer counter in the hidden state."""

    def step(params, state, x):
        y = x @ params["w"]
        h = 0.9 * state["h"] + jnp.where(state["n"] % 2 == 0, y, jnp.tanh(y))
        return {"h": h, "n": state["n"] + 1}, h

    return step, {"w": draw(I, H)}, {"h": draw(B, H), "n": jnp.asarray(3, jnp.int32)}, inputs(normal(B, I))


@family({"w": EXACT}, spikes=lambda output: output["z"])
def refractory(draw):
    """A spiking neuron that is silent for two steps after a spike: an integer per neuron."""

    def step(params, state, x):
        silent = state["wait"] > 0
        v = jnp.where(silent, 0.0, 0.9 * state["v"] + x @ params["w"])
        z = spike_jvp(v - 0.8)
        wait = jnp.where(z > 0, 2, jnp.maximum(state["wait"] - 1, 0)).astype(jnp.int32)
        return {"v": v - z, "wait": wait}, {"z": z, "v": v}

    hidden = {"v": draw.uniform(0, 1, B, H), "wait": draw.integers(2, B, H)}
    return step, {"w": draw(I, H, scale=1.0)}, hidden, inputs(normal(B, I))


def noisy_step(params, state, x):
    key, sub = jax.random.split(state["key"])
    h = 0.9 * state["h"] + x @ params["w"] + 0.1 * jax.random.normal(sub, (B, H))
    return {"h": h, "key": key}, h


@family({"w": EXACT})
def noise_key(draw):
    """Noise from a typed key in the hidden state."""
    return noisy_step, {"w": draw(I, H)}, {"h": draw(B, H), "key": jax.random.key(1)}, inputs(normal(B, I))


@family({"w": EXACT})
def noise_raw_key(draw):
    """Noise from a raw key (two uint32) in the hidden state."""
    return noisy_step, {"w": draw(I, H)}, {"h": draw(B, H), "key": jax.random.PRNGKey(1)}, inputs(normal(B, I))


@family({"w": EXACT})
def dropout(draw):
    """Units dropped at random, by a key in the hidden state."""

    def step(params, state, x):
        key, sub = jax.random.split(state["key"])
        keep = jax.random.bernoulli(sub, 0.7, (B, H))
        h = 0.9 * state["h"] + jnp.where(keep, jnp.tanh(x @ params["w"]) / 0.7, 0.0)
        return {"h": h, "key": key}, h

    return step, {"w": draw(I, H)}, {"h": draw(B, H), "key": jax.random.key(2)}, inputs(normal(B, I))


@family({"w": EXACT})
def delay_buffer(draw):
    """A buffer (L, N) that y enters at one end and leaves at the other; one sample."""

    def step(params, state, x):
        y = jnp.tanh(x @ params["w"])
        h = 0.9 * state["h"] + state["buffer"][-1]
        buffer = jnp.concatenate([y[None], state["buffer"][:-1]])
        return {"h": h, "buffer": buffer}, h

    return step, {"w": draw(I, H)}, {"h": draw(H), "buffer": draw(3, H)}, inputs(normal(I))


@family({"w": EXACT})
def delay_buffer_batched(draw):
    """A buffer (B, L, N) moved by a roll along its own axis."""

    def step(params, state, x):
        buffer = jnp.roll(state["buffer"], 1, axis=1).at[:, 0].set(x @ params["w"])
        h = 0.9 * state["h"] + jnp.tanh(buffer[:, -1])
        return {"h": h, "buffer": buffer}, h

    return step, {"w": draw(I, H)}, {"h": draw(B, H), "buffer": draw(B, 2, H)}, inputs(normal(B, I))


@family({"w": EXACT}, either=["w"])
def delay_ring(draw):
    """A buffer written and read at a moving position that is an integer state."""

    def step(params, state, x):
        n = state["n"]
        h = 0.9 * state["h"] + jnp.tanh(state["buffer"][n])
        buffer = state["buffer"].at[n].set(x @ params["w"])
        return {"h": h, "buffer": buffer, "n": (n + 1) % 3}, h

    hidden = {"h": draw(H), "buffer": draw(3, H), "n": jnp.asarray(0, jnp.int32)}
    return step, {"w": draw(I, H)}, hidden, inputs(normal(I))


@family({"w": EXACT})
def input_buffer_of_one(draw):
    """A buffer of past inputs with room for none: what is kept of it is empty, and all that the weight meets is new."""

    def step(params, state, x):
        seen = jnp.concatenate([state["buffer"][:, I:], x], -1)
        h = 0.9 * state["h"] + jnp.tanh(seen @ params["w"])
        return {"h": h, "buffer": seen}, h

    return step, {"w": draw(I, H)}, {"h": draw(B, H), "buffer": draw(B, I)}, inputs(normal(B, I))


@family({"w": EXACT})
def input_buffer(draw):
    """A buffer of past inputs, which no parameter reaches, before the weight."""

    def step(params, state, x):
        h = 0.9 * state["h"] + state["past"][:, -1] @ params["w"]
        past = jnp.concatenate([x[:, None], state["past"][:, :-1]], axis=1)
        return {"h": h, "past": past}, h

    return step, {"w": draw(I, H)}, {"h": draw(B, H), "past": draw(B, 2, I)}, inputs(normal(B, I))


@family({"w": EXACT, "b": EXACT}, tol=5e-2)
def bfloat16(draw):
    """Everything in bfloat16: judge it loosely."""

    def step(params, h, x):
        h = 0.9 * h + jnp.tanh(x @ params["w"] + params["b"])
        return h, h

    half = lambda a: a.astype(jnp.bfloat16)
    params = {"w": half(draw(I, H)), "b": half(draw(H))}
    return step, params, half(draw(B, H)), inputs(normal(B, I, dtype=jnp.bfloat16))
