"""What each kind of node does in one step: its numbers, its states, and the way from its input to its output."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._errors import ArgumentError
from ._simulator import Simulator, Spike

Values = Mapping[str, jax.Array]
State = dict[str, jax.Array]
Shape = tuple[int, ...]


LONGEST = 10_000  # steps of a delay: each is a state


@dataclass(frozen=True)
class Context:
    """What a node's step needs besides numbers: its NIR node, the simulator, the spike, the shape of its input."""

    node: object
    simulator: Simulator
    spike: Spike
    shape: Shape = ()

    def setting(self, name: str) -> np.ndarray:
        return np.asarray(getattr(self.node, name))


@dataclass(frozen=True)
class Kind:
    """`numbers` may be trained; `step(context, numbers, states, x)` gives the new states and the output.

    `states(context)` gives the shapes of the states, without a batch axis. The output of a `neuron` may be read in the
    next step, which is how a cycle of the graph is opened. A `pointwise` node keeps the shape of its input.
    """

    numbers: tuple[str, ...]
    step: Callable[[Context, Values, State, jax.Array], tuple[State, jax.Array]]
    states: Callable[[Context], dict[str, Shape]] = lambda context: {}
    neuron: bool = False
    pointwise: bool = False


def delay_steps(context: Context) -> np.ndarray:
    """The delay of every element in steps."""
    delay = context.setting("delay")
    if (delay > LONGEST * context.simulator.dt).any():
        raise ArgumentError(
            f"its delay, {delay.max()} s, is more than {LONGEST:,} steps of {context.simulator.dt} s: pass a "
            "larger `dt`."
        )
    steps = np.rint(delay / context.simulator.dt).astype(int)
    if (steps < 0).any() or not np.allclose(steps * context.simulator.dt, delay, rtol=1e-3):
        raise ArgumentError(
            f"its delay, {delay.ravel()[:3].tolist()}, is not a whole number of steps of {context.simulator.dt} s: "
            "pass the `dt` of the graph."
        )
    return steps


def shortest_delay(context: Context) -> int:
    """How many steps the output of a node is behind its input at least."""
    steps = delay_steps(context) if type(context.node).__name__ == "Delay" else np.zeros(0)
    return int(steps.min()) if steps.size else 0


def _stateless(apply: Callable[[Context, Values, jax.Array], jax.Array]) -> Callable[..., tuple[State, jax.Array]]:
    return lambda context, p, state, x: ({}, apply(context, p, x))


def _toward(context: Context, v: jax.Array, tau: jax.Array, goal: jax.Array) -> jax.Array:
    return v + context.simulator.dt / tau * (goal - v)


def _fired(
    context: Context, p: Values, v: jax.Array, move: Callable[[jax.Array], jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """The membrane after its move, and its spike."""
    how, threshold = context.simulator, p["v_threshold"]

    def detached(z: jax.Array) -> jax.Array:
        return lax.stop_gradient(z) if how.detach_reset else z

    if how.late_reset:
        z = detached(context.spike(v - threshold))
        v = move(v) - z * threshold if how.reset == "subtract" else move(v + z * (p["v_reset"] - v))
        return v, context.spike(v - threshold)
    v = move(v)
    z = context.spike(v - threshold)
    down = threshold if how.reset == "subtract" else v - p["v_reset"]
    return v - detached(z) * down, z


def _current(context: Context, p: Values, i: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The synaptic current after the step, and the one that the membrane reads."""
    if context.simulator.jumps:
        read = i + p["w_in"] * x
        return read - context.simulator.dt / p["tau_syn"] * read, read
    new = _toward(context, i, p["tau_syn"], p["w_in"] * x)
    return new, new


def _integrated(context: Context, p: Values, v: jax.Array, x: jax.Array) -> jax.Array:
    return v + (p["r"] * x if context.simulator.jumps else context.simulator.dt * p["r"] * x)


def _membrane(fires: bool, synapse: bool, leaks: bool) -> Callable[..., tuple[State, jax.Array]]:
    """The step of a neuron: its membrane `v`, with or without a synaptic current, a leak, and spikes."""

    def step(context: Context, p: Values, s: State, x: jax.Array) -> tuple[State, jax.Array]:
        i, read = _current(context, p, s["i"], x) if synapse else (None, x)

        def move(v: jax.Array) -> jax.Array:
            if not leaks:
                return _integrated(context, p, v, read)
            return _toward(context, v, p["tau_mem" if synapse else "tau"], p["v_leak"] + p["r"] * read)

        v, z = _fired(context, p, s["v"], move) if fires else (move(s["v"]), None)
        return {"v": v} if i is None else {"i": i, "v": v}, v if z is None else z

    return step


def _neuron(*numbers: str, fires: bool = False, synapse: bool = False, leaks: bool = True) -> Kind:
    names = ("i", "v") if synapse else ("v",)
    return Kind(
        (*numbers, *(("v_threshold", "v_reset") if fires else ())),
        _membrane(fires, synapse, leaks),
        lambda context: {name: context.shape for name in names},
        neuron=True,
        pointwise=True,
    )


def _delay(context: Context, p: Values, s: State, x: jax.Array) -> tuple[State, jax.Array]:
    """A line of past inputs, one state for each step back; an element of delay d reads the d-th."""
    steps = np.broadcast_to(delay_steps(context), context.shape)
    line = [x, *(s[f"back{k}"] for k in range(1, steps.max(initial=0) + 1))]
    # Delays are known when the step is traced: one choice for each length that occurs, and no gather.
    first, *more = np.unique(steps) if steps.size else (0,)
    y = line[first]
    for k in more:
        y = jnp.where(steps == k, line[k], y)
    return {f"back{k + 1}": a for k, a in enumerate(line[:-1])}, y


def _product(context: Context, p: Values, x: jax.Array) -> jax.Array:
    y = (p["weight"] @ x[..., None])[..., 0] if p["weight"].ndim > 2 else x @ p["weight"].T
    return y + p["bias"] if "bias" in p else y


def _behind_batch(context: Context, x: jax.Array, apply: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """A function of arrays with one leading axis on one with any number of them."""
    lead = x.shape[: x.ndim - len(context.shape)]
    y = apply(x.reshape(math.prod(lead), *context.shape))
    return y.reshape(*lead, *y.shape[1:])


def _each(context: Context, name: str, axes: int) -> list[int]:
    """A setting that holds one whole number, or one for each axis."""
    return [int(n) for n in np.broadcast_to(context.setting(name), (axes,))]


def _convolution(context: Context, p: Values, x: jax.Array) -> jax.Array:
    axes = len(context.shape) - 1
    stride, dilation = (_each(context, name, axes) for name in ("stride", "dilation"))
    padding = getattr(context.node, "padding")  # noqa: B009 - the node is known by its kind only
    if isinstance(padding, bytes | str):
        total = [d * (k - 1) for d, k in zip(dilation, p["weight"].shape[2:], strict=True)]
        same = padding in ("same", b"same")
        # An odd number of zeros has the larger half at the end, as in PyTorch, which NIR takes its convolutions from.
        pads = [(n // 2, n - n // 2) if same else (0, 0) for n in total]
    else:
        pads = [(n, n) for n in _each(context, "padding", axes)]

    def convolve(x: jax.Array) -> jax.Array:
        groups = int(context.setting("groups"))
        return lax.conv_general_dilated(x, p["weight"], stride, pads, rhs_dilation=dilation, feature_group_count=groups)

    y = _behind_batch(context, x, convolve)
    return y + p["bias"].reshape(-1, *(1,) * axes) if "bias" in p else y


def _pool(context: Context, x: jax.Array) -> jax.Array:
    """Sums over windows of the last two axes."""
    kernel, stride, padding = (_each(context, name, 2) for name in ("kernel_size", "stride", "padding"))
    lead = (1,) * (x.ndim - 2)
    pads = [(0, 0)] * len(lead) + [(n, n) for n in padding]
    zero = np.zeros((), x.dtype)
    return lax.reduce_window(x, zero, lax.add, (*lead, *kernel), (*lead, *stride), pads)


def _flatten(context: Context, p: Values, x: jax.Array) -> jax.Array:
    shape, n = context.shape, len(context.shape)
    start, end = (int(context.setting(name)) for name in ("start_dim", "end_dim"))
    start, end = (start + n if start < 0 else start), (end + n if end < 0 else end)
    if not 0 <= start <= end < max(n, 1):
        raise ArgumentError(f"it flattens axes {start} to {end} of an input of shape {list(shape)}.")
    flat = (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :])
    return x.reshape(*x.shape[: x.ndim - n], *flat)


def _line(context: Context) -> dict[str, Shape]:
    return {f"back{k}": context.shape for k in range(1, int(delay_steps(context).max(initial=0)) + 1)}


def _mean(context: Context, p: Values, x: jax.Array) -> jax.Array:
    return _pool(context, x) / math.prod(_each(context, "kernel_size", 2))


_CUBA = ("tau_syn", "tau_mem", "r", "v_leak", "w_in")

# By the name of its NIR node.
KINDS = {
    "Affine": Kind(("weight", "bias"), _stateless(_product)),
    "Linear": Kind(("weight",), _stateless(_product)),
    "Scale": Kind(("scale",), _stateless(lambda context, p, x: x * p["scale"]), pointwise=True),
    "Conv1d": Kind(("weight", "bias"), _stateless(_convolution)),
    "Conv2d": Kind(("weight", "bias"), _stateless(_convolution)),
    "SumPool2d": Kind((), _stateless(lambda context, p, x: _pool(context, x))),
    "AvgPool2d": Kind((), _stateless(_mean)),
    "Flatten": Kind((), _stateless(_flatten)),
    "Threshold": Kind(
        ("threshold",), _stateless(lambda context, p, x: context.spike(x - p["threshold"])), pointwise=True
    ),
    "Delay": Kind((), _delay, _line, pointwise=True),
    "I": _neuron("r", leaks=False),
    "LI": _neuron("tau", "r", "v_leak"),
    "CubaLI": _neuron(*_CUBA, synapse=True),
    "IF": _neuron("r", leaks=False, fires=True),
    "LIF": _neuron("tau", "r", "v_leak", fires=True),
    "CubaLIF": _neuron(*_CUBA, synapse=True, fires=True),
    "Input": Kind((), _stateless(lambda context, p, x: x)),
    "Output": Kind((), _stateless(lambda context, p, x: x)),
}
