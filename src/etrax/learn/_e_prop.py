"""e-prop: the trace of D-RTRL, low-pass filtered, and a choice of learning signal.

    ε_t = D_t ε_{t-1} + u_t ⊗ F_t        ε̄_t = κ ε̄_{t-1} + ε_t

The filter κ stands for a readout that leaks by κ and is not itself a state of the model: an error at time t is then
due to all that the readout has summed. The signals:

- `"symmetric"`: the gradient of the loss. With κ = 0 e-prop is then D-RTRL, exact inside a window. With a filter,
  g = Σ_t s_t · ε̄_t, ε̄_t including step t and s_t = ∂ℓ_t/∂h_t of the loss of that step alone, the same for every window.
  What the loss of a step reads of old states meets the trace of a step ago; what it reads of a weight op beside all
  states of its trace is differentiated as it is. The filter is on the traces of states, so a spike that is a state
  (z beside v) has its own eligibility filtered, as in the paper.
- `"random"`: s_t = B e_t, the output error e_t = ∂ℓ_t/∂o_t through fixed random matrices, one per output leaf and
  hidden group, of shape (outputs × positions of one sample); g = Σ_t s_t · ε̄_t, with ε̄_t including step t.
- `"adaptive"`: the same, and B follows the readout: B ← (1 − δ) B − η mean_t e_t ⊗ z_t after every window, z the
  activity of the group. With the readout trained by plain gradient descent of rate η and weight decay δ, both
  converge to each other.

The signal acts on a group's activity (what the step reads of its new state: its spikes, an LSTM's h) and goes on to
its states by the step's own derivative. Parameters that reach no state keep the gradient of the loss; so do states
that the output shows without a weight op in between (a leaky readout).

Bellec, Scherr, Subramoney, Hajek, Salaj, Legenstein and Maass, "A solution to the learning dilemma for recurrent
networks of spiking neurons", Nature Communications 11, 2020. Adaptive feedback: Kolen and Pollack, "Backpropagation
without weight transport", ICNN, 1994.
"""

from __future__ import annotations

import math
from typing import Any

from ..analysis import Facts, Kind, Verdict
from ..analysis._verdicts import carried_groups, diagonal, unless_trivial
from ..engine import Transport, diagonal_transport, feedback_source, filtered_transport, guided_transport
from ._checks import ArgumentError, check_decay, check_key, check_number, short
from ._rflo import replaced
from ._rule import Rule


def e_prop(
    kappa: float = 0.0, feedback: str = "symmetric", *, key: Any = None,
    feedback_rate: float = 1e-2, feedback_decay: float = 1e-4,
) -> Rule:  # fmt: skip
    """e-prop. `key` (a number or a `jax.random` key) draws the feedback matrices; rate and decay are for `"adaptive"`.

    >>> print(e_prop(0.9))
    e_prop(kappa=0.9)
    >>> print(e_prop(feedback="random", key=0))
    e_prop(kappa=0.0, feedback='random')
    """
    kappa = check_decay("e_prop", "kappa", kappa)
    if not isinstance(feedback, str) or feedback not in ("symmetric", "random", "adaptive"):
        raise ArgumentError(
            f"`e_prop` takes a `feedback` of 'symmetric', 'random' or 'adaptive', got {short(feedback)}."
        )
    if feedback == "symmetric":
        return _symmetric(kappa)
    key = check_key(f"`e_prop` with {feedback} feedback", key)
    feedback_decay = check_decay("e_prop", "feedback_decay", feedback_decay)
    feedback_rate = check_number("e_prop", "feedback_rate", feedback_rate, 0, math.inf, "above 0", ends="()")
    rate = feedback_rate if feedback == "adaptive" else None

    def transport(facts: Facts, sites: frozenset[int] | None = None, trace_dtype: Any = None) -> Transport:
        return guided_transport(facts, feedback_source(facts, key, rate, feedback_decay), kappa, sites, trace_dtype)

    def verdict(facts: Facts, param: int) -> Verdict:
        how = "adaptive feedback" if feedback == "adaptive" else "fixed random feedback"
        return guided(facts, param, f"the learning signal is {how} of the output error, not the gradient of the loss")

    options = {"kappa": kappa, "feedback": feedback}
    if feedback == "adaptive":
        options |= {"feedback_rate": feedback_rate, "feedback_decay": feedback_decay}
    return Rule("e_prop", transport, verdict, options=options)


def _symmetric(kappa: float) -> Rule:
    def transport(facts: Facts, sites: frozenset[int] | None = None, trace_dtype: Any = None) -> Transport:
        if kappa == 0:
            return diagonal_transport(facts, sites, trace_dtype)
        return filtered_transport(facts, kappa, sites, trace_dtype)

    def verdict(facts: Facts, param: int) -> Verdict:
        if kappa == 0:
            return diagonal(facts, param)
        how = f"its trace is low-pass filtered by {kappa:g} and meets the loss of each step alone"
        return replaced(facts, param, f"{how}, which is not BPTT for any window")

    return Rule("e_prop", transport, verdict, options={"kappa": kappa})


def guided(facts: Facts, param: int, how: str) -> Verdict:
    """The verdict under a learning signal other than the gradient of the loss: never exact for what reaches a state."""
    trivial = unless_trivial(facts, param)
    if trivial is not None:
        return trivial
    plain = diagonal(facts, param)
    if not carried_groups(facts, param):
        return Verdict(Kind.TRUNCATED, f"{how}, and it is the effect of one step only that it acts on: {plain.reason}")
    more = "" if plain.kind is Kind.EXACT else f"; moreover, {plain.reason}"
    return Verdict(Kind.APPROXIMATE, how + more)
