"""Outputs of weight ops that reach several positions each: gates that are shared, keys and values, selective layers."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .model import EXACT, REPORTED, B, Family, H, I, inputs, normal, tokens
from .surrogate import spike_vjp as spike

family = Family("fan_out")

# Slots of a channel, heads and the sizes of a head's keys and values.
N, HEADS, KEY, VALUE = 2, 2, 3, 4


def elu(x):
    return jax.nn.elu(x) + 1.0


def outer(k, v):
    return k[..., :, None] * v[..., None, :]


def read(q, memory):
    return jnp.einsum("...k,...kv->...v", q, memory)


def attention(step, widths, **hidden):
    """A layer with a weight (I, width) for every name, and states drawn by shape."""

    def parts(draw):
        params = {name: draw(I, *width) for name, width in widths.items()}
        states = {name: draw.uniform(0.5, 1.5, B, *shape) for name, shape in hidden.items()}
        return step, params, states, inputs(normal(B, I))

    return parts


MAMBA = {"a": EXACT, "w_u": EXACT, "w_dt": EXACT, "w_b": EXACT, "w_c": EXACT, "skip": EXACT}


@family(MAMBA)
def mamba(draw):
    """A selective state space with input, step size, input and output vectors all made of the input."""

    def step(params, h, x):
        u, b, c = (x @ params[name] for name in ("w_u", "w_b", "w_c"))
        dt = jax.nn.softplus(x @ params["w_dt"])
        h = jnp.exp(-dt[:, :, None] * jnp.exp(params["a"])) * h + outer(dt * u, b)
        return h, (h * c[:, None]).sum(-1) + params["skip"] * u

    params = {"a": draw(H, N), "w_u": draw(I, H), "w_dt": draw(I, H), "w_b": draw(I, N), "w_c": draw(I, N)}
    return step, params | {"skip": draw(H)}, draw(B, H, N), inputs(normal(B, I))


@family({"a": EXACT, "w": EXACT, "bias": EXACT})
def mamba_of_one_product(draw):
    """Step size, input and output vectors are parts of one product, with fan-outs of their own."""

    def step(params, h, x):
        dt, b, c, u = jnp.split(x @ params["w"], (H, H + N, H + 2 * N), axis=-1)
        dt = jax.nn.softplus(dt + params["bias"])
        h = jnp.exp(-dt[:, :, None] * jnp.exp(params["a"])) * h + outer(dt * u, b)
        return h, (h * c[:, None]).sum(-1)

    params = {"a": draw(H, N), "w": draw(I, 2 * H + 2 * N), "bias": draw(H)}
    return step, params, draw(B, H, N), inputs(normal(B, I))


@family({"a": EXACT, "w_x": EXACT, "w_dt": EXACT, "w_b": EXACT, "w_c": EXACT})
def mamba_heads(draw):
    """Mamba-2: one step size and one decay for a head, whose state is a matrix."""

    def step(params, h, x):
        u = (x @ params["w_x"]).reshape(B, HEADS, VALUE)
        dt = jax.nn.softplus(x @ params["w_dt"])
        b, c = x @ params["w_b"], x @ params["w_c"]
        decay = jnp.exp(-dt * jnp.exp(params["a"]))[:, :, None, None]
        h = decay * h + dt[:, :, None, None] * outer(u, jnp.broadcast_to(b[:, None], (B, HEADS, N)))
        return h, jnp.einsum("bhvn,bn->bhv", h, c)

    params = {"a": draw(HEADS), "w_x": draw(I, HEADS * VALUE), "w_dt": draw(I, HEADS)}
    params |= {"w_b": draw(I, N), "w_c": draw(I, N)}
    return step, params, draw(B, HEADS, VALUE, N), inputs(normal(B, I))


@family({"a": EXACT, "b_re": EXACT, "b_im": EXACT, "w_dt": EXACT})
def complex_selective(draw):
    """Complex states and a complex input vector, with a step size for each channel."""

    def step(params, h, x):
        dt = jax.nn.softplus(x @ params["w_dt"])[:, :, None]
        b = x.astype(complex) @ (params["b_re"] + 1j * params["b_im"])
        h = jnp.exp(dt * lax.complex(-jnp.exp(params["a"]), params["a"])) * h + dt * b[:, None, :]
        return h, jnp.real(h).sum(-1) + jnp.imag(h).prod(-1)

    params = {"a": draw(H, N), "b_re": draw(I, N), "b_im": draw(I, N), "w_dt": draw(I, H)}
    return step, params, draw(B, H, N) + 0j, inputs(normal(B, I))


def plain_attention(params, s, x):
    q, k, v = (x @ params[name] for name in "qkv")
    memory = 0.9 * s["memory"] + outer(elu(k), v)
    return {"memory": memory}, read(elu(q), memory)


ATTENTION = {"q": (KEY,), "k": (KEY,), "v": (VALUE,)}


@family({"q": EXACT, "k": EXACT, "v": EXACT})
def linear_attention(draw):
    """Linear attention with one fixed decay."""
    return attention(plain_attention, ATTENTION, memory=(KEY, VALUE))(draw)


@family({"q": EXACT, "k": EXACT, "v": EXACT, "decay": EXACT})
def linear_attention_normalised(draw):
    """The same with a normaliser and a decay made of the input: one number a sample."""

    def step(params, s, x):
        q, k, v = elu(x @ params["q"]), elu(x @ params["k"]), x @ params["v"]
        decay = jax.nn.sigmoid(x @ params["decay"])
        memory = decay[:, None, None] * s["memory"] + outer(k, v)
        norm = decay[:, None] * s["norm"] + k
        return {"memory": memory, "norm": norm}, read(q, memory) / ((q * norm).sum(-1, keepdims=True) + 0.1)

    return attention(step, ATTENTION | {"decay": ()}, memory=(KEY, VALUE), norm=(KEY,))(draw)


@family({"qkv": EXACT})
def retnet(draw):
    """Heads with fixed decays of their own; queries, keys and values of one product."""
    decay = jnp.asarray([0.7, 0.9])[:, None, None]

    def step(params, s, x):
        q, k, v = jnp.split(x @ params["qkv"], (HEADS * KEY, 2 * HEADS * KEY), axis=-1)
        q, k = q.reshape(B, HEADS, KEY), k.reshape(B, HEADS, KEY)
        memory = decay * s["memory"] + outer(k, v.reshape(B, HEADS, VALUE))
        return {"memory": memory}, jnp.tanh(read(q, memory))

    return attention(step, {"qkv": (HEADS * (2 * KEY + VALUE),)}, memory=(HEADS, KEY, VALUE))(draw)


@family({"r": EXACT, "k": EXACT, "v": EXACT, "mix": EXACT, "decay": EXACT, "bonus": EXACT})
def rwkv(draw):
    """RWKV's time mix: the present and the last input, mixed before all other weights; a decay per channel."""

    def step(params, s, x):
        mixed = params["mix"] * x + (1 - params["mix"]) * s["last"]
        r, k, v = (mixed @ params[name] for name in "rkv")
        now = jnp.exp(params["bonus"] + k)
        output = jax.nn.sigmoid(r) * (s["num"] + now * v) / (s["den"] + now)
        decay = jnp.exp(-jnp.exp(params["decay"]))
        num, den = decay * s["num"] + jnp.exp(k) * v, decay * s["den"] + jnp.exp(k)
        return {"last": x, "num": num, "den": den}, output

    params = {name: draw(I, H) for name in "rkv"}
    params |= {"mix": draw.uniform(0.2, 0.8, I), "decay": draw(H), "bonus": draw(H)}
    states = {"last": draw(B, I), "num": draw(B, H), "den": draw.uniform(0.5, 1.5, B, H)}
    return step, params, states, inputs(normal(B, I))


@family({"r": EXACT, "k": EXACT, "v": EXACT, "w": EXACT, "bonus": EXACT})
def rwkv_matrices(draw):
    """RWKV with a matrix for each head, whose rows decay as the input says."""

    def step(params, s, x):
        r, k, w = (x @ params[name].reshape(I, -1) for name in "rkw")
        r, k, w = (a.reshape(B, HEADS, KEY) for a in (r, k, w))
        new = outer(k, jnp.einsum("bi,ihv->bhv", x, params["v"]))
        output = read(r, s["memory"] + params["bonus"][:, :, None] * new)
        return {"memory": jnp.exp(-jnp.exp(w))[..., None] * s["memory"] + new}, output

    params = {name: draw(I, HEADS, KEY) for name in "rkw"} | {"v": draw(I, HEADS, VALUE), "bonus": draw(HEADS, KEY)}
    return step, params, {"memory": draw(B, HEADS, KEY, VALUE)}, inputs(normal(B, I))


def mlstm_step(params, s, x):
    q, k, v = (x @ params[name] for name in "qkv")
    i, f = jnp.exp(x @ params["i"])[:, None], jax.nn.sigmoid(x @ params["f"])[:, None]
    memory = f[..., None] * s["memory"] + i[..., None] * outer(k, v)
    norm = f * s["norm"] + i * k
    return {"memory": memory, "norm": norm}, read(q, memory) / jnp.maximum(jnp.abs((q * norm).sum(-1)), 1.0)[:, None]


MLSTM = {name: EXACT for name in "qkvif"}
MLSTM_WIDTHS = ATTENTION | {"i": (), "f": ()}


@family(MLSTM)
def mlstm(draw):
    """A matrix memory and its normaliser, with one input and one forget gate for both."""
    return attention(mlstm_step, MLSTM_WIDTHS, memory=(KEY, VALUE), norm=(KEY,))(draw)


@family(dict.fromkeys("qkvif", EXACT))
def mlstm_stabilised(draw):
    """The same with a running maximum of the gates, a state that acts on all positions of the others."""

    def step(params, s, x):
        q, k, v = (x @ params[name] for name in "qkv")
        i, f = x @ params["i"], jax.nn.log_sigmoid(x @ params["f"])
        top = jnp.maximum(f + s["top"], i)
        i, f = jnp.exp(i - top)[:, None], jnp.exp(f + s["top"] - top)[:, None]
        memory = f[..., None] * s["memory"] + i[..., None] * outer(k, v)
        norm = f * s["norm"] + i * k
        output = read(q, memory) / jnp.maximum(jnp.abs((q * norm).sum(-1)), jnp.exp(-top))[:, None]
        return {"memory": memory, "norm": norm, "top": top}, output

    return attention(step, MLSTM_WIDTHS, memory=(KEY, VALUE), norm=(KEY,), top=())(draw)


@family({"w": EXACT, "gate": EXACT})
def shared_gate(draw):
    """One gate for all neurons of a sample."""

    def step(params, h, x):
        gate = jax.nn.sigmoid(x @ params["gate"])
        h = gate * h + (1 - gate) * jnp.tanh(x @ params["w"])
        return h, h

    return step, {"w": draw(I, H), "gate": draw(I, 1)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT, "gate": EXACT})
def shared_gate_batch_last(draw):
    """The same with samples last and weights on the left, the gate a vector."""

    def step(params, h, x):
        gate = jax.nn.sigmoid(params["gate"] @ x)
        h = gate * h + (1 - gate) * jnp.tanh(params["w"] @ x)
        return h, h

    return step, {"w": draw(H, I), "gate": draw(I)}, draw(H, B), inputs(normal(I, B))


@family({"w": EXACT, "gate": EXACT, "leak": EXACT})
def shared_drive_of_spikes(draw):
    """Leaky neurons that share a drive, with a surrogate that knows reverse mode only, and spikes that follow."""

    def step(params, s, x):
        drive = spike(x @ params["gate"] - 0.2)
        v = jax.nn.sigmoid(params["leak"]) * s["v"] - 0.5 * lax.stop_gradient(s["z"]) + drive * (x @ params["w"])
        return {"v": v, "z": spike(v - 0.5)}, spike(v - 0.5) + 0.1 * v

    params = {"w": draw(I, H), "gate": draw(I, 1), "leak": draw(H)}
    return step, params, {"v": draw(B, H), "z": jnp.zeros((B, H))}, inputs(normal(B, I))


@family({"w": EXACT, "gain": EXACT, "scale": EXACT})
def gain_per_head(draw):
    """A head's numbers are scaled by one gain, made of a parameter and of the input."""

    def step(params, h, x):
        scale = params["scale"] * jnp.tanh(x @ params["gain"])
        h = 0.8 * h + scale[:, :, None] * (x @ params["w"]).reshape(B, HEADS, VALUE)
        return h, h

    params = {"w": draw(I, HEADS * VALUE), "gain": draw(I, HEADS), "scale": draw(HEADS)}
    return step, params, draw(B, HEADS, VALUE), inputs(normal(B, I))


@family({"table": EXACT, "bias": EXACT, "v": EXACT})
def keys_of_tokens(draw):
    """Keys are rows of a table, with a number of their own for each token."""

    def step(params, h, token, x):
        h = 0.9 * h + outer(params["table"][token] * params["bias"][token][:, None], x @ params["v"])
        return h, h.sum(-1)

    params = {"table": draw(6, KEY), "bias": draw(6), "v": draw(I, VALUE)}
    return step, params, draw(B, KEY, VALUE), inputs(tokens(6, B), normal(B, I))


@family({"w": EXACT})
def convolution_repeated(draw):
    """The channels of a convolution are repeated in two states each."""

    def step(params, h, x):
        y = lax.conv_general_dilated(x, params["w"], (1,), "SAME")
        h = jnp.linspace(0.6, 0.9, 6)[:, None] * h + jnp.repeat(y, 2, axis=1)
        return h, h

    return step, {"w": draw(3, 2, 3)}, draw(B, 6, H), inputs(normal(B, 2, H))


@family({"w": EXACT, "gate": EXACT})
def rows_of_a_loop(draw):
    """An inner loop over the rows of the state: each iteration of one op reaches rows of its own."""

    def step(params, h, x):
        def row(_, xs):
            old, part = xs
            gate = jax.nn.sigmoid(part @ params["gate"])
            return None, gate * old + (1 - gate) * jnp.tanh(part @ params["w"])

        _, h = lax.scan(row, None, (h, x))
        return h, h.sum(0)

    return step, {"w": draw(I, H), "gate": draw(I, 1)}, draw(3, B, H), inputs(normal(3, B, I))


@family({"w": EXACT, "gate": EXACT})
def coupled_states(draw):
    """Two states at a position that act on each other, all turned by one angle."""

    def step(params, s, x):
        angle = x @ params["gate"]
        a = jnp.cos(angle) * s["a"] - jnp.sin(angle) * s["b"] + x @ params["w"]
        b = jnp.sin(angle) * s["a"] + jnp.cos(angle) * s["b"]
        return {"a": 0.9 * a, "b": 0.9 * b}, jnp.tanh(a * b)

    return step, {"w": draw(I, H), "gate": draw(I, 1)}, {"a": draw(B, H), "b": draw(B, H)}, inputs(normal(B, I))


@family({"w": REPORTED, "gate": REPORTED})
def shared_gate_of_the_state(draw):
    """The shared gate reads the state through its weights: the recurrence is no longer position by position."""

    def step(params, h, x):
        gate = jax.nn.sigmoid(h @ params["gate"])
        h = gate * h + (1 - gate) * jnp.tanh(x @ params["w"])
        return h, h

    return step, {"w": draw(I, H), "gate": draw(H, 1)}, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED, "gate": REPORTED})
def shared_gate_of_the_mean(draw):
    """One neuron is driven by the mean of all: near to a shared gate, and not diagonal."""
    first = np.eye(1, H)

    def step(params, h, x):
        gate = jax.nn.sigmoid(x @ params["gate"])
        h = gate * h + (1 - gate) * jnp.tanh(x @ params["w"]) + 0.1 * first * h.mean(-1, keepdims=True)
        return h, h

    return step, {"w": draw(I, H), "gate": draw(I, 1)}, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED, "gate": REPORTED}, linear=False)
def clipped_gradient_of_a_gate(draw):
    """A derivative rule that is not linear: pushing forward would not be its transpose."""

    @jax.custom_vjp
    def clipped(x):
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.01, 0.01),))

    def step(params, h, x):
        gate = jax.nn.sigmoid(clipped(x @ params["gate"]))
        h = gate * h + (1 - gate) * jnp.tanh(x @ params["w"])
        return h, h

    return step, {"w": draw(I, H), "gate": draw(I, 1)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT, "gate": REPORTED})
def loop_in_the_rule_of_a_gate(draw):
    """A derivative rule with a loop of unknown length: it can be run backwards, and not be pushed forward."""

    @jax.custom_vjp
    def sine(x):
        return jnp.sin(x)

    def backward(x, g):
        _, half = lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, 0.5 * c[1]), (0, g))
        return (2 * half * jnp.cos(x),)

    sine.defvjp(lambda x: (jnp.sin(x), x), backward)

    def step(params, h, x):
        h = jax.nn.sigmoid(sine(x @ params["gate"])) * h + jnp.tanh(x @ params["w"])
        return h, h

    return step, {"w": draw(I, H), "gate": draw(I, 1)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT, "gate": EXACT})
def many_states_under_a_gate(draw):
    """A dozen states at a position that act on each other, all under one gate."""
    mixed = draw(12, 12, scale=0.3)

    def step(params, h, x):
        gate = jax.nn.sigmoid(x @ params["gate"])[:, :, None]
        h = gate * jnp.tanh(jnp.einsum("bhn,nm->bhm", h, mixed)) + (x @ params["w"])[:, :, None]
        return h, h.sum(-1) + h[:, :, 0] ** 2

    return step, {"w": draw(I, 2), "gate": draw(I, 1)}, draw(B, 2, 12), inputs(normal(B, I))
