"""States kept in the units of another state: running maxima, normalisers, gates that are states themselves."""

import jax
import jax.numpy as jnp

from .model import EXACT, REPORTED, B, Family, I, inputs, normal

family = Family("stabilisers")
H, K, V = 2, 3, 2  # heads, keys, values


def _gates(p, x):
    return x @ p["wi"] + p["bi"], jax.nn.log_sigmoid(x @ p["wf"] + p["bf"])


def _mlstm(p, s, i, f, v, spread):
    """The step of a stabilised cell whose gates have the shape of `m`; `spread` takes that to the shape of `c`."""
    m = jnp.maximum(f + s["m"], i)
    keep, write = spread(jnp.exp(f + s["m"] - m)), spread(jnp.exp(i - m))
    c, n = keep * s["c"] + write * v, keep * s["n"] + write
    return {"c": c, "n": n, "m": m}, c / n


def _parameters(draw, gates, values=4):
    return {
        "wi": draw(I, gates), "bi": draw(gates), "wf": draw(I, gates), "bf": 2 + draw(gates), "v": draw(I, values),
    }  # fmt: skip


def _states(m, c=4):
    return {"c": jnp.zeros((B, c)), "n": jnp.zeros((B, c)) + 0.5, "m": jnp.zeros((B, m))}


GATES = dict.fromkeys(("wi", "bi", "wf", "bf", "v"), EXACT)


@family(GATES)
def one_maximum(draw):
    """The running maximum of an mLSTM is one number for all positions."""

    def step(p, s, x):
        i, f = _gates(p, x)
        return _mlstm(p, s, i, f, x @ p["v"], lambda a: a)

    return step, _parameters(draw, 1), _states(1), inputs(normal(B, I))


@family(GATES)
def one_maximum_unbatched(draw):
    """The same for a single sample, whose maximum is a scalar."""

    def step(p, s, x):
        i, f = x @ p["wi"] + p["bi"], jax.nn.log_sigmoid(x @ p["wf"] + p["bf"])
        return _mlstm(p, s, i, f, x @ p["v"], lambda a: a)

    params = {"wi": draw(I), "bi": draw(), "wf": draw(I), "bf": 2 + draw(), "v": draw(I, 4)}
    return step, params, {"c": jnp.zeros(4), "n": jnp.full(4, 0.5), "m": jnp.zeros(())}, inputs(normal(I))


@family(GATES)
def maximum_per_head(draw):
    """Two heads of two positions, with a maximum each."""

    def step(p, s, x):
        i, f = _gates(p, x)
        return _mlstm(p, s, i, f, x @ p["v"], lambda a: jnp.repeat(a, 2, -1))

    return step, _parameters(draw, 2), _states(2), inputs(normal(B, I))


@family(GATES)
def maximum_per_head_vmapped(draw):
    """The heads are mapped over."""

    def head(s, i, f, v):
        return _mlstm(None, s, i, f, v, lambda a: a)

    def step(p, s, x):
        i, f = _gates(p, x)
        return jax.vmap(jax.vmap(head))(s, i, f, (x @ p["v"]).reshape(B, 2, 2))

    states = {"c": jnp.zeros((B, 2, 2)), "n": jnp.full((B, 2, 2), 0.5), "m": jnp.zeros((B, 2))}
    return step, _parameters(draw, 2), states, inputs(normal(B, I))


@family(GATES)
def maximum_per_position(draw):
    """Every position has its own: the relation is carried whole."""

    def step(p, s, x):
        i, f = _gates(p, x)
        return _mlstm(p, s, i, f, x @ p["v"], lambda a: a)

    return step, _parameters(draw, 4), _states(4), inputs(normal(B, I))


@family(GATES)
def maximum_without_gradient(draw):
    """No gradient passes the maximum, on which the output does not depend: nothing is left of the difference."""

    def step(p, s, x):
        i, f = _gates(p, x)
        m = jax.lax.stop_gradient(jnp.maximum(f + s["m"], i))
        keep, write = jnp.exp(f + s["m"] - m), jnp.exp(i - m)
        c, n = keep * s["c"] + write * (x @ p["v"]), keep * s["n"] + write
        return {"c": c, "n": n, "m": m}, c / n

    return step, _parameters(draw, 1), _states(1), inputs(normal(B, I))


@family(GATES)
def inside_jit(draw):
    """The cell is a jitted function, so that the new maximum has no name in the step."""
    cell = jax.jit(lambda p, s, i, f, v: _mlstm(p, s, i, f, v, lambda a: a))

    def step(p, s, x):
        i, f = _gates(p, x)
        return cell(p, s, i, f, x @ p["v"])

    return step, _parameters(draw, 1), _states(1), inputs(normal(B, I))


@family(dict.fromkeys(("q", "k", "v", "wi", "wf"), EXACT))
def mlstm_matrix(draw):
    """xLSTM's matrix memory: C, n and one maximum."""

    def step(p, s, x):
        i, f = x @ p["wi"], jax.nn.log_sigmoid(x @ p["wf"] + 2)
        q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
        m = jnp.maximum(f + s["m"], i)
        keep, write = jnp.exp(f + s["m"] - m), jnp.exp(i - m)
        C = keep[..., None] * s["C"] + write[..., None] * k[:, :, None] * v[:, None, :]
        n = keep * s["n"] + write * k
        low = jnp.maximum(jnp.abs((q * n).sum(-1, keepdims=True)), jnp.exp(-m))
        return {"C": C, "n": n, "m": m}, jnp.einsum("bk,bkv->bv", q, C) / low

    params = {"q": draw(I, K), "k": draw(I, K), "v": draw(I, V), "wi": draw(I, 1), "wf": draw(I, 1)}
    states = {"C": jnp.zeros((B, K, V)), "n": jnp.zeros((B, K)), "m": jnp.zeros((B, 1))}
    return step, params, states, inputs(normal(B, I))


@family({"w": REPORTED, "u": REPORTED, "o": EXACT})
def slstm(draw):
    """sLSTM with recurrent gates; each position has its maximum."""

    def step(p, s, x):
        i, f, z, o = jnp.split(x @ p["w"] + s["h"] @ p["u"], 4, -1)
        f = jax.nn.log_sigmoid(f + 2)
        m = jnp.maximum(f + s["m"], i)
        keep, write = jnp.exp(f + s["m"] - m), jnp.exp(i - m)
        c, n = keep * s["c"] + write * jnp.tanh(z), keep * s["n"] + write
        h = jax.nn.sigmoid(o) * c / n
        return {"c": c, "n": n, "m": m, "h": h}, h @ p["o"]

    params = {"w": draw(I, 16), "u": draw(4, 16), "o": draw(4, V)}
    states = {k: jnp.full((B, 4), 0.5 * (k == "n")) for k in ("c", "n", "m", "h")}
    return step, params, states, inputs(normal(B, I))


@family({"k": EXACT, "v": EXACT, "u": EXACT, "w": EXACT})
def rwkv4(draw):
    """RWKV-4's time mix in log space, as its public code has it: all by channel."""

    def step(p, s, x):
        k, v = x @ p["k"], x @ p["v"]
        a, b, top = s["a"], s["b"], s["top"]
        new = jnp.maximum(top, p["u"] + k)
        e1, e2 = jnp.exp(top - new), jnp.exp(p["u"] + k - new)
        out = (e1 * a + e2 * v) / (e1 * b + e2)
        new = jnp.maximum(top - jnp.exp(p["w"]), k)
        e1, e2 = jnp.exp(top - jnp.exp(p["w"]) - new), jnp.exp(k - new)
        return {"a": e1 * a + e2 * v, "b": e1 * b + e2, "top": new}, out

    params = {"k": draw(I, 4), "v": draw(I, 4), "u": draw(4), "w": draw(4)}
    states = {"a": jnp.zeros((B, 4)), "b": jnp.zeros((B, 4)), "top": jnp.full((B, 4), -1.0)}
    return step, params, states, inputs(normal(B, I))


@family(dict.fromkeys(("k", "v", "w"), EXACT))
def rwkv4_one_maximum(draw):
    """The same with one maximum for all channels."""

    def step(p, s, x):
        k, v = x @ p["k"], x @ p["v"]
        old = s["top"] - jnp.exp(p["w"])
        new = jnp.maximum(old, k.max(-1, keepdims=True))
        e1, e2 = jnp.exp(old - new), jnp.exp(k - new)
        a, b = e1 * s["a"] + e2 * v, e1 * s["b"] + e2
        return {"a": a, "b": b, "top": new}, a / b

    params = {"k": draw(I, 4), "v": draw(I, 4), "w": draw(1)}
    states = {"a": jnp.zeros((B, 4)), "b": jnp.zeros((B, 4)) + 0.1, "top": jnp.full((B, 1), -1.0)}
    return step, params, states, inputs(normal(B, I))


@family(dict.fromkeys(("k", "q", "v"), EXACT))
def log_space_attention(draw):
    """Linear attention with exponential keys, shifted by their running maximum."""

    def step(p, s, x):
        q, k, v = jax.nn.softmax(x @ p["q"]), x @ p["k"], x @ p["v"]
        m = jnp.maximum(s["m"] - 0.1, k.max(-1, keepdims=True))
        keep, k = jnp.exp(s["m"] - 0.1 - m), jnp.exp(k - m)
        S = keep[..., None] * s["S"] + k[:, :, None] * v[:, None, :]
        z = keep * s["z"] + k
        return {"S": S, "z": z, "m": m}, jnp.einsum("bk,bkv->bv", q, S) / (q * z).sum(-1, keepdims=True)

    params = {"q": draw(I, K), "k": draw(I, K), "v": draw(I, V)}
    states = {"S": jnp.zeros((B, K, V)), "z": jnp.zeros((B, K)) + 0.1, "m": jnp.zeros((B, 1))}
    return step, params, states, inputs(normal(B, I))


@family({"w": EXACT, "v": EXACT})
def online_softmax(draw):
    """A softmax over time by its running maximum, sum and weighted mean."""

    def step(p, s, x):
        score = 2 * x @ p["w"]
        m = jnp.maximum(s["m"], score)
        keep, new = jnp.exp(s["m"] - m), jnp.exp(score - m)
        total, mean = keep * s["total"] + new, keep * s["mean"] + new * (x @ p["v"])
        return {"m": m, "total": total, "mean": mean}, mean / total

    states = {"m": jnp.full((B, 1), -1.0), "total": jnp.full((B, 1), 0.1), "mean": jnp.zeros((B, 4))}
    return step, {"w": draw(I, 1), "v": draw(I, 4)}, states, inputs(normal(B, I))


@family({"w": EXACT})
def rescaled_by_the_largest(draw):
    """A leaky state in units of the largest input so far."""

    def step(p, s, x):
        y = x @ p["w"]
        m = jnp.maximum(0.9 * s["m"], jnp.abs(y).max(-1, keepdims=True))
        h = 0.9 * s["h"] * s["m"] / m + y / m
        return {"h": h, "m": m}, h * m

    return step, {"w": draw(I, 4)}, {"h": jnp.zeros((B, 4)), "m": jnp.ones((B, 1))}, inputs(normal(B, I))


# A coarse state that acts on the fine one in other ways.


@family({"w": EXACT})
def running_deviation(draw):
    """Inputs divided by their running deviation: nothing is rescaled afterwards."""

    def step(p, s, x):
        y = x @ p["w"]
        r = 0.9 * s["r"] + 0.1 * (y**2).mean(-1, keepdims=True)
        h = 0.9 * s["h"] + y / jnp.sqrt(r + 0.1)
        return {"h": h, "r": r}, h

    return step, {"w": draw(I, 4)}, {"h": jnp.zeros((B, 4)), "r": jnp.ones((B, 1))}, inputs(normal(B, I))


@family({"w": EXACT, "g": EXACT})
def gate_as_state(draw):
    """One leaky gate for a whole layer, which is a state."""

    def step(p, s, x):
        g = 0.8 * s["g"] + x @ p["g"]
        h = jax.nn.sigmoid(g) * s["h"] + x @ p["w"]
        return {"h": h, "g": g}, h

    return (
        step,
        {"w": draw(I, 4), "g": draw(I, 1)},
        {"h": jnp.zeros((B, 4)), "g": jnp.ones((B, 1))},
        inputs(normal(B, I)),
    )


@family({"w": EXACT, "g": EXACT})
def gate_as_old_state(draw):
    """The gate of the step before."""

    def step(p, s, x):
        g = 0.8 * s["g"] + x @ p["g"]
        h = jax.nn.sigmoid(s["g"]) * s["h"] + x @ p["w"] * jnp.tanh(g)
        return {"h": h, "g": g}, h

    params = {"w": draw(I, 4), "g": draw(I, 1)}
    return step, params, {"h": jnp.zeros((B, 4)), "g": jnp.ones((B, 1))}, inputs(normal(B, I))


@family({"w": EXACT})
def common_inhibition(draw):
    """A pool of the layer's own drive is subtracted from each unit."""

    def step(p, s, x):
        y = x @ p["w"]
        g = 0.8 * s["g"] + 0.2 * jax.nn.relu(y).sum(-1, keepdims=True)
        v = 0.9 * s["v"] + y - 0.5 * g
        return {"v": v, "g": g}, jnp.tanh(v)

    return step, {"w": draw(I, 4)}, {"v": jnp.zeros((B, 4)), "g": jnp.zeros((B, 1))}, inputs(normal(B, I))


@family({"w": EXACT})
def high_pass(draw):
    """Each unit follows the change of the layer's mean."""

    def step(p, s, x):
        y = x @ p["w"]
        m = 0.9 * s["m"] + 0.1 * y.mean(-1, keepdims=True)
        v = 0.9 * s["v"] + y + (m - s["m"])
        return {"v": v, "m": m}, jnp.tanh(v)

    return step, {"w": draw(I, 4)}, {"v": jnp.zeros((B, 4)), "m": jnp.zeros((B, 1))}, inputs(normal(B, I))


@family({"w": REPORTED})
def normalised_state(draw):
    """LayerNorm on the state itself."""

    def step(p, s, x):
        h = 0.9 * s + x @ p["w"]
        h = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 0.1)
        return h, h

    return step, {"w": draw(I, 4)}, jnp.zeros((B, 4)), inputs(normal(B, I))
