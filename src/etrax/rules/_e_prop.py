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
that the output shows without a weight op in between (a leaky readout). An output of spikes beside a readout, on which
a loss puts a cost of firing, acts on them by its own error, unfiltered, beside the signal of the readout.

With the gradient of the loss and κ > 0, `_filtered.py` has it in closed form over a window.

Bellec, Scherr, Subramoney, Hajek, Salaj, Legenstein and Maass, "A solution to the learning dilemma for recurrent
networks of spiking neurons", Nature Communications 11, 2020. Adaptive feedback: Kolen and Pollack, "Backpropagation
without weight transport", ICNN, 1994.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from jax import Array
from jax.typing import DTypeLike

from .._arguments import check_decay, check_key, check_number, short
from .._errors import ArgumentError
from ..compiler.analysis import Facts, traced_elements
from ..runtime import Transport
from ._d_rtrl import d_rtrl
from ._feedback import feedback_source
from ._filtered import filtered_transport
from ._kinds import CHEAP_FAN_OUT
from ._rule import Rule
from ._series import in_series
from ._signals import GuidedTrace, guided_fan_out, guided_transport
from ._state_credit import check_credit
from ._verdicts import Verdict, other_recurrence_verdict, other_signal_verdict, relations_of, with_own_step


def e_prop(
    kappa: float = 0.0, feedback: str = "symmetric", *, key: int | Array = 0,
    feedback_rate: float = 1e-2, feedback_decay: float = 1e-4, credit: str = "step",
) -> Rule:  # fmt: skip
    """e-prop: the trace of `d_rtrl`, filtered by `kappa`, under a learning signal that `feedback` chooses.

    - `kappa`: the leak per step of a readout that is not a state of the model; 0 is no filter.
    - `feedback`: "symmetric" (the gradient of the loss), "random" (the output error through fixed random matrices) or
      "adaptive" (matrices that follow the readout).
    - `key`: a number or a `jax.random` key, from which the matrices are drawn. Two learners with the same key have the
      same feedback, so give each seed of an experiment its own key.
    - `feedback_rate`, `feedback_decay`: how fast adaptive matrices follow the readout, and how fast they decay.
    - `credit`: "state" makes each step's loss meet the trace that includes the step, as in the paper, for `kappa` 0 and
      symmetric feedback too: this is `d_rtrl(credit="state")`. With a filter or other feedback it is always so.

    >>> print(e_prop(0.9))
    e_prop(kappa=0.9)
    >>> print(e_prop(feedback="random", key=1))
    e_prop(kappa=0.0, feedback='random')
    """
    kappa = check_decay("e_prop", "kappa", kappa)
    if not isinstance(feedback, str) or feedback not in ("symmetric", "random", "adaptive"):
        raise ArgumentError(
            f"`e_prop` takes a `feedback` of 'symmetric', 'random' or 'adaptive', got {short(feedback)}."
        )
    check_credit("e_prop", credit)
    if feedback == "symmetric":
        return _symmetric(kappa, credit)
    key = check_key(f"`e_prop` with {feedback} feedback", key)
    feedback_decay = check_decay("e_prop", "feedback_decay", feedback_decay)
    feedback_rate = check_number("e_prop", "feedback_rate", feedback_rate, 0, math.inf, "above 0", ends="()")
    options: dict[str, object] = {"kappa": kappa, "feedback": feedback, "key": key}
    if feedback == "random":
        return _by_feedback(options, "fixed random feedback", kappa, key, None, 0.0)
    options |= {"feedback_rate": feedback_rate, "feedback_decay": feedback_decay}
    return _by_feedback(options, "adaptive feedback", kappa, key, feedback_rate, feedback_decay)


def _by_feedback(
    options: dict[str, object], how: str, kappa: float, key: Array, rate: float | None, decay: float
) -> Rule:
    def transport(
        facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None
    ) -> Transport[GuidedTrace]:
        return guided_transport(facts, feedback_source(facts, key, rate, decay), kappa, sites, trace_dtype)

    def verdict(facts: Facts, param: int) -> Verdict:
        return other_signal_verdict(
            facts,
            param,
            f"the learning signal is {how} of the output error, not the gradient of the loss",
            guided_fan_out(kappa),
        )

    return Rule("e_prop", transport, verdict, options, needs_loss=rate is not None, facts_for=in_series)


def _symmetric(kappa: float, credit: str) -> Rule:
    if kappa == 0:
        plain = d_rtrl(credit=credit)
        return replace(plain, name="e_prop", options={"kappa": kappa, **plain.options})

    transport = partial(filtered_transport, kappa=kappa)

    def verdict(facts: Facts, param: int) -> Verdict:
        how = f"its trace is low-pass filtered by {kappa:g} and meets the loss of each step alone"
        plain = other_recurrence_verdict(facts, param, f"{how}, which is not BPTT for any window", CHEAP_FAN_OUT)
        traced = traced_elements(facts, relations_of(facts, param, CHEAP_FAN_OUT))
        return with_own_step(facts, param, plain, traced, transport)

    return Rule("e_prop", transport, verdict, {"kappa": kappa}, facts_for=in_series)
