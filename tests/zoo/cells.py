"""Recurrent cells of the literature."""

import jax
import jax.numpy as jnp
from jax.nn import sigmoid

from .model import EXACT, REPORTED, B, Family, H, I, inputs, normal
from .surrogate import spike_jvp

family = Family("cells")


@family({"w": REPORTED, "r": REPORTED, "b": REPORTED, "out": EXACT})
def vanilla(draw):
    """tanh(x w + h r + b)"""

    def step(params, h, x):
        h = jnp.tanh(x @ params["w"] + h @ params["r"] + params["b"])
        return h, h @ params["out"]

    params = {"w": draw(I, H), "r": draw(H, H), "b": draw(H), "out": draw(H, 2)}
    return step, params, draw(B, H), inputs(normal(B, I))


@family({"wz": REPORTED, "wr": REPORTED, "wh": REPORTED, "bz": REPORTED, "br": REPORTED, "bh": REPORTED, "out": EXACT})
def gru(draw):
    """Separate gates on [x, h]; the reset gate reaches the state through the candidate's weight only."""

    def step(params, h, x):
        xh = jnp.concatenate([x, h], axis=-1)
        z = sigmoid(xh @ params["wz"] + params["bz"])
        r = sigmoid(xh @ params["wr"] + params["br"])
        candidate = jnp.tanh(jnp.concatenate([x, r * h], axis=-1) @ params["wh"] + params["bh"])
        h = (1 - z) * h + z * candidate
        return h, h @ params["out"]

    params = {name: draw(I + H, H) for name in ("wz", "wr", "wh")} | {name: draw(H) for name in ("bz", "br", "bh")}
    return step, params | {"out": draw(H, 2)}, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED, "b": REPORTED, "out": EXACT})
def lstm(draw):
    """One fused matmul for the four gates."""

    def step(params, hidden, x):
        h, c = hidden
        gates = jnp.concatenate([x, h], axis=-1) @ params["w"] + params["b"]
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        c = sigmoid(f + 1.0) * c + sigmoid(i) * jnp.tanh(g)
        h = sigmoid(o) * jnp.tanh(c)
        return (h, c), h @ params["out"]

    params = {"w": draw(I + H, 4 * H), "b": draw(4 * H), "out": draw(H, 2)}
    return step, params, (draw(B, H), draw(B, H)), inputs(normal(B, I))


@family({"w": EXACT, "b": EXACT, "out": EXACT})
def quasi_lstm(draw):
    """Gates of the input alone; the readout sees h of the step before, which holds nothing but c and the last step."""

    def step(params, hidden, x):
        h, c = hidden
        i, f, g, o = jnp.split(x @ params["w"] + params["b"], 4, axis=-1)
        c = sigmoid(f + 1.0) * c + sigmoid(i) * jnp.tanh(g)
        return (sigmoid(o) * jnp.tanh(c), c), h @ params["out"]

    params = {"w": draw(I, 4 * H), "b": draw(4 * H), "out": draw(H, 2)}
    return step, params, (draw(B, H), draw(B, H)), inputs(normal(B, I))


@family({"w": EXACT, "b": EXACT, "p": EXACT, "out": EXACT})
def quasi_lstm_peephole(draw):
    """The same, but h acts on the forget gate of its own neuron: its past has to be carried."""

    def step(params, hidden, x):
        h, c = hidden
        i, f, g, o = jnp.split(x @ params["w"] + params["b"], 4, axis=-1)
        c = sigmoid(f + params["p"] * h) * c + sigmoid(i) * jnp.tanh(g)
        return (sigmoid(o) * jnp.tanh(c), c), h @ params["out"]

    params = {"w": draw(I, 4 * H), "b": draw(4 * H), "p": draw(H), "out": draw(H, 2)}
    return step, params, (draw(B, H), draw(B, H)), inputs(normal(B, I))


@family({"re": EXACT, "im": EXACT, "angle": EXACT, "out": EXACT})
def rotation(draw):
    """A complex number written as two real ones: the traces of the two matrices differ by a right angle."""

    def step(params, hidden, x):
        a, b = hidden
        cos, sin = 0.9 * jnp.cos(params["angle"]), 0.9 * jnp.sin(params["angle"])
        a, b = cos * a - sin * b + x @ params["re"], sin * a + cos * b + x @ params["im"]
        return (a, b), jnp.tanh(a * b) @ params["out"]

    params = {"re": draw(I, H), "im": draw(I, H), "angle": draw(H), "out": draw(H, 2)}
    return step, params, (draw(B, H), draw(B, H)), inputs(normal(B, I))


@family({"wf": REPORTED, "wh": REPORTED, "out": EXACT})
def mgu(draw):
    """The minimal gated unit: one gate that both forgets and resets."""

    def step(params, h, x):
        f = sigmoid(jnp.concatenate([x, h], axis=-1) @ params["wf"])
        candidate = jnp.tanh(jnp.concatenate([x, f * h], axis=-1) @ params["wh"])
        h = (1 - f) * h + f * candidate
        return h, h @ params["out"]

    params = {"wf": draw(I + H, H), "wh": draw(I + H, H), "out": draw(H, 2)}
    return step, params, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED, "u": REPORTED, "v": REPORTED, "b": REPORTED, "out": EXACT})
def minimal_rnn(draw):
    """MinimalRNN: an encoded input mixed into the state by one gate on both."""

    def step(params, h, x):
        z = jnp.tanh(x @ params["w"])
        gate = sigmoid(h @ params["u"] + z @ params["v"] + params["b"])
        h = gate * h + (1 - gate) * z
        return h, h @ params["out"]

    params = {"w": draw(I, H), "u": draw(H, H), "v": draw(H, H), "b": draw(H), "out": draw(H, 2)}
    return step, params, draw(B, H), inputs(normal(B, I))


@family({"wz": EXACT, "wh": EXACT, "out": EXACT})
def min_gru(draw):
    """minGRU: gate and candidate read the input only, so the recurrence is diagonal."""

    def step(params, h, x):
        z = sigmoid(x @ params["wz"])
        h = (1 - z) * h + z * jnp.tanh(x @ params["wh"])
        return h, h @ params["out"]

    params = {"wz": draw(I, H), "wh": draw(I, H), "out": draw(H, 2)}
    return step, params, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT, "u": EXACT, "b": EXACT, "out": EXACT})
def ind_rnn(draw):
    """IndRNN: each unit feeds back to itself alone."""

    def step(params, h, x):
        h = jnp.tanh(x @ params["w"] + params["u"] * h + params["b"])
        return h, h @ params["out"]

    params = {"w": draw(I, H), "u": draw(H), "b": draw(H), "out": draw(H, 2)}
    return step, params, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED, "r": REPORTED, "out": EXACT}, spikes=lambda output: output["z"])
def recurrent_spiking(draw):
    """Adaptive spiking neurons with recurrent connections, read out."""

    def step(params, state, x):
        v = 0.9 * state["v"] + x @ params["w"] + state["z"] @ params["r"] - state["z"]
        a = 0.95 * state["a"] + 0.2 * state["z"]
        z = spike_jvp(v - 0.8 - a)
        return {"v": v, "a": a, "z": z}, {"z": z, "y": z @ params["out"]}

    params = {"w": draw(I, H, scale=1.0), "r": draw(H, H), "out": draw(H, 2)}
    hidden = {"v": draw(B, H), "a": draw.uniform(0, 0.5, B, H), "z": jnp.round(draw.uniform(0, 1, B, H))}
    return step, params, hidden, inputs(normal(B, I))


def lru_parts(draw, output):
    def step(params, h, x):
        decay = jnp.exp(-jnp.exp(params["nu"]) + 1j * jnp.exp(params["theta"]))
        h = decay * h + jnp.exp(params["gamma"]) * (x @ (params["b_re"] + 1j * params["b_im"]))
        return h, output(params, h, x)

    params = {"nu": draw(H) - 1.5, "theta": draw(H), "gamma": draw(H), "b_re": draw(I, H), "b_im": draw(I, H)}
    return step, params, draw(B, H) + 1j * draw(B, H), inputs(normal(B, I))


LRU = {"nu": EXACT, "theta": EXACT, "gamma": EXACT, "b_re": EXACT, "b_im": EXACT}


@family(LRU | {"c_re": EXACT, "c_im": EXACT, "d": EXACT})
def lru(draw):
    """A linear recurrent unit: complex diagonal state, real output."""

    def output(params, h, x):
        return jnp.real(h @ (params["c_re"] + 1j * params["c_im"])) + x @ params["d"]

    step, params, hidden, make_inputs = lru_parts(draw, output)
    params |= {"c_re": draw(H, 2), "c_im": draw(H, 2), "d": draw(I, 2)}
    return step, params, hidden, make_inputs


@family(LRU)
def lru_complex_output(draw):
    """The same with the complex state itself as output."""
    return lru_parts(draw, lambda params, h, x: h)


@family({"a": EXACT, "w_dt": EXACT, "w_b": EXACT, "w_c": EXACT, "d": EXACT})
def selective_ssm(draw):
    """A selective state space, slots per channel: step size and input vector are shared along an axis of the state."""
    channels, slots = I, 2

    def step(params, h, x):
        dt = jax.nn.softplus(x @ params["w_dt"])[:, :, None]
        b = (x @ params["w_b"])[:, None, :]
        h = jnp.exp(-dt * jnp.exp(params["a"])) * h + dt * b * x[:, :, None]
        return h, jnp.einsum("bcs,bs->bc", h, x @ params["w_c"]) + params["d"] * x

    params = {"a": draw(channels, slots), "w_dt": draw(I, channels), "w_b": draw(I, slots), "w_c": draw(I, slots)}
    return step, params | {"d": draw(channels)}, draw(B, channels, slots), inputs(normal(B, I))
