"""Three-factor learning: an eligibility trace, and a modulator that is given.

    g = Σ_t m_t · ε_t,   ε_t = D_t ε_{t-1} + u_t ⊗ F_t

Two factors, presynaptic data and postsynaptic derivative, make the trace (D-RTRL's, filtered if κ > 0); the third,
m, comes from elsewhere: a reward, a dopamine signal, an error of one's own. It acts on the activity of a group (its
spikes, an LSTM's h). Gradients are descended, so a reward enters with a minus sign. Parameters that reach no state
keep the gradient of the loss.

Frémaux and Gerstner, "Neuromodulated spike-timing-dependent plasticity, and theory of three-factor learning rules",
Frontiers in Neural Circuits 9, 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from .._arguments import check_decay, short
from .._errors import ArgumentError
from ..compiler.analysis import Facts, Group
from ..compiler.ir import format_path
from ..runtime import Transport
from ._feedback import sample_of_position
from ._rule import Rule
from ._series import in_series
from ._signals import GuidedTrace, guided_fan_out, guided_transport
from ._source import Moment, Source
from ._verdicts import Verdict, other_signal_verdict

Modulator = Callable[[Any, Any], Any]


def three_factor(modulator: Modulator | None = None, kappa: float = 0.0) -> Rule:
    """Traces under a modulator `m = modulator(output, target)`; without one, m is the loss of the step.

    - `modulator`: called like the loss function, so `targets` may hold a reward besides what the loss needs. It returns
      one number, or one per sample (B,), for all groups; or a dictionary from state paths to arrays that broadcast to
      the state's shape, one number per neuron, for the groups of those states (the others get no signal). A mask
      weights it as it weights the loss.
    - `kappa`: filters the trace, as in `e_prop`.

    One number for all neurons moves each of them along its own trace: it says *when* something was good, but not
    *which* neuron made it so. Neurons that have to move in different directions need a signal each, for example from
    their own perturbation. Here two neurons explore, and a reward (a smaller error) is credited to the noise that led
    to it.

    >>> import etrax, jax, jax.numpy as jnp, optax
    >>> def step(w, s, noise):
    ...     h = 0.5 * s["h"] + w + noise
    ...     return {"h": h}, h
    >>> error = lambda h: ((h - jnp.array([1.0, -1.0])) ** 2).sum()
    >>> rule = etrax.three_factor(lambda h, noise: {"h": (error(h) - error(h - noise)) * noise})
    >>> noise = 0.3 * jax.random.normal(jax.random.key(0), (2000, 2))
    >>> learner = etrax.compile(step, rule, noise[0], params=jnp.zeros(2), hidden={"h": jnp.zeros(2)})
    >>> sgd = optax.sgd(0.3)
    >>> train = learner.train(sgd, lambda h, noise: error(h), window=1)
    >>> w, _, _, losses = train(learner.params, sgd.init(learner.params), learner.init(), noise, noise)
    >>> bool(losses[-500:].mean() < 0.3 * losses[:5].mean())
    True
    """
    kappa = check_decay("three_factor", "kappa", kappa)
    if modulator is not None and not callable(modulator):
        raise ArgumentError(f"`three_factor` takes a function `modulator(output, target)`, got {short(modulator)}.")

    def transport(
        facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None
    ) -> Transport[GuidedTrace]:
        return guided_transport(facts, _source(facts, modulator), kappa, sites, trace_dtype)

    def verdict(facts: Facts, param: int) -> Verdict:
        what = "the modulator" if modulator is not None else "the loss of each step"
        return other_signal_verdict(
            facts,
            param,
            f"the learning signal is {what}, broadcast, not the gradient of the loss",
            guided_fan_out(kappa),
        )

    options = ({} if modulator is None else {"modulator": modulator}) | ({"kappa": kappa} if kappa else {})
    return Rule("three_factor", transport, verdict, options, needs_loss=True, facts_for=in_series)


def _source(facts: Facts, modulator: Modulator | None) -> Source:
    def signal(state: tuple[()], moment: Moment) -> tuple[dict[int, Array], tuple[()]]:
        if modulator is None:
            return {g.index: jnp.full(g.num_positions, moment.loss) for g in facts.groups}, ()
        weight, modulation = moment.step_data[1], moment.read(modulator)
        weight = jnp.ones(()) if weight is None else weight
        at = {g.index: (_on_group(facts, g, modulation), _broadcast(facts, g, weight, "mask")) for g in facts.groups}
        return {g: _masked(signal, mask) for g, (signal, mask) in at.items()}, ()

    return Source(signal)


def _masked(signal: Array, weight: Array) -> Array:
    """Signal times weight, and zero where the weight is: a modulator of a missing target may be NaN."""
    return jnp.where(weight == 0, jnp.zeros((), signal.dtype), signal * weight)


def _on_group(facts: Facts, group: Group, modulation: Any) -> Array:
    if not isinstance(modulation, Mapping):
        return _broadcast(facts, group, jnp.asarray(modulation), "the modulator")
    total = jnp.zeros(group.num_positions)
    numbers = {leaf.path: i for i, leaf in enumerate(facts.states) if i in facts.group_of_leaf}
    for key, value in modulation.items():
        path = key if isinstance(key, tuple) else (key,)
        if path not in numbers:
            names = ", ".join(format_path(p, "hidden") for p in numbers)
            raise ArgumentError(
                f"the modulator returned a signal for the state {format_path(path)}; the states are {names}."
            )
        if numbers[path] in group.leaves:
            place, value = group.place_of(numbers[path]), jnp.asarray(value)
            try:
                value = jnp.broadcast_to(value, place.shape)
            except ValueError as error:
                raise ArgumentError(
                    f"the modulator returned a signal of shape {list(value.shape)} for the state {format_path(path)}, "
                    f"which has shape {list(place.shape)}."
                ) from error
            total = total.at[place].set(value.astype(total.dtype))
    return total


def _broadcast(facts: Facts, group: Group, value: Array, what: str) -> Array:
    """One number, or one per sample, at every position of a group."""
    if value.ndim == 0:
        return jnp.full(group.num_positions, value)
    sample = sample_of_position(facts, group)
    if value.ndim == 1 and sample is not None and value.shape[0] == int(sample.max()) + 1:
        return value[sample]
    raise ArgumentError(
        f"{what} has shape {list(value.shape)}; expected one number, or one per sample along the first axis of the "
        f"states {', '.join(facts.state_name(i) for i in group.leaves)}. For one per neuron return a dictionary from "
        "state paths."
    )
