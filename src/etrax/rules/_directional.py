r"""The projection of the true gradient on the span of candidates: no candidate points better, and it never ascends.

    ĝ = V (VᵀV)⁻¹ Vᵀ g        ⟨ĝ, g⟩ = ‖ĝ‖²        cos(ĝ, g) ≥ cos(v, g) for every column v of V

The columns of V are the gradients of other rules over one call, the projection of the last call, and random
directions. Tangents along them, carried forward through the call, give Vᵀg exactly at the memory of a hidden state
each (`meter/_directional.py`, docs/mathematics.md, 9): m·B·H numbers and m forward passes for m columns.

Candidates are known at the end of a call only, so that a call is the unit: it is run once by each rule and once more
along all directions. What parameters did before the call does not count, and `train` updates once for each call.

Silver, Goyal, Danihelka, Hessel and van Hasselt, "Learning by directional gradient descent", ICLR 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from .._arguments import check_flag, check_key, check_whole, short
from .._errors import ArgumentError, ArgumentTypeError
from ..compiler.analysis import Facts
from ..compiler.ir import Role
from ..runtime import Persistent, Transport
from ._by_name import as_rule
from ._rule import Candidates, Rule
from ._uoro import numbers_of
from ._verdicts import Kind, Verdict


class CallMemory(NamedTuple):
    """What one call leaves to the next.

    `last` is the gradient that the last call gave, by parameter; `key` the data of the key for the next random
    directions; `learned` what each rule among the candidates keeps from sequence to sequence.
    """

    last: list[Array]
    key: Array
    learned: list[Any]


def call_transport(
    facts: Facts, sites: frozenset[int] | None, trace_dtype: DTypeLike | None, candidates: Candidates
) -> Transport[CallMemory]:
    """Nothing is carried from window to window, and a `CallMemory` from call to call."""
    parts = [_transport(rule, facts, trace_dtype) for rule in candidates.rules]
    shapes = [leaf.aval for leaf in facts.step.select(Role.PARAM)] if candidates.last else []

    def init() -> CallMemory:
        learned = [part.persistent.learned(part.init()) for part in parts]
        return CallMemory([jnp.zeros(a.shape, a.dtype) for a in shapes], numbers_of(candidates.key), learned)

    return Transport(
        init,
        lambda trace, g, window: {},
        lambda trace, window: trace,
        persistent=Persistent(lambda trace: trace, lambda fresh, learned: learned),
    )


def _transport(rule: Rule, facts: Facts, trace_dtype: DTypeLike | None) -> Transport[Any]:
    """That of one rule among the candidates, over the facts that it asks for."""
    rule = rule if rule.resolve is None else rule.resolve(rule.facts_for(facts), trace_dtype)
    return rule.transport(rule.facts_for(facts), None, trace_dtype)


def directional(
    rules: Sequence[Rule | str] = ("d_rtrl",), random: int = 1, *, last: bool = True, by_parameter: bool = False,
    key: int | Array = 0,
) -> Rule:  # fmt: skip
    """The projection of the true gradient of a call onto the span of candidates, found without BPTT.

    - `rules`: the rules whose gradients are candidates.
    - `random`: the number of random directions that are candidates, too.
    - `last`: whether the projection of the previous call is one.
    - `by_parameter`: projects the gradient of each parameter onto its own part of every candidate. This takes as many
      forward passes for each parameter, and every parameter's cosine is at least that of each candidate.
    - `key`: a number or a `jax.random` key, from which the random directions are drawn.

    Each candidate costs one more forward pass and the memory of a hidden state. The unit is a call of `value_and_grad`
    or `train`: the effect of parameters before it does not count, and `train` makes one update, at its end. Pass the
    rule itself to `etrax.compile`: it cannot be chosen by name.

    >>> import etrax, jax, jax.numpy as jnp
    >>> step = lambda p, h, x: (jnp.tanh(x @ p["w"] + h @ p["u"]),) * 2
    >>> params = {"w": jnp.ones((3, 4)) / 3, "u": jnp.eye(4) / 2}
    >>> rule = etrax.directional(["tbptt", "d_rtrl"], random=2)
    >>> print(rule)
    directional(rules=(tbptt(), d_rtrl()), random=2, last=True)
    >>> learner = etrax.compile(step, rule, jnp.ones(3), params=params, hidden=jnp.zeros(4))
    >>> gradient = learner.value_and_grad(lambda o, y: ((o - y) ** 2).mean(), window=1)
    >>> xs, ys = jax.random.normal(jax.random.key(1), (30, 3)), jnp.zeros((30, 4))
    >>> (loss, grads), state = gradient(params, learner.init(), xs, ys)
    >>> grads["u"].shape
    (4, 4)
    """
    if isinstance(rules, str | Rule) or not isinstance(rules, Sequence):
        raise ArgumentTypeError(f"`directional`: `rules` is {short(rules)}; pass a list of rules, or of their names.")
    members = tuple(map(as_rule, rules))
    if not members:
        raise ArgumentError('`directional`: `rules` is empty; pass at least one, such as `["d_rtrl"]`.')
    if any(rule.candidates is not None for rule in members):
        raise ArgumentError("`directional` does not hold itself: put all rules into one list.")
    random = check_whole("random", random, "directions", least=0)
    last, by_parameter = check_flag("last", last), check_flag("by_parameter", by_parameter)
    candidates = Candidates(members, random, last, by_parameter, check_key("`directional`", key))
    options: dict[str, object] = {"rules": members, "random": random, "last": last}
    options |= {"by_parameter": True} if by_parameter else {}

    def frozen(facts: Facts) -> frozenset[int]:
        return frozenset.intersection(*(rule.frozen(rule.facts_for(facts)) for rule in members))

    def warns(facts: Facts, inputs: Sequence[Array] | None) -> list[str]:
        return [text for rule in dict.fromkeys(members) for text in rule.warns(rule.facts_for(facts), inputs)]

    return Rule(
        "directional",
        partial(call_transport, candidates=candidates),
        partial(_verdict, members=members),
        {**options, "key": candidates.key},
        frozen,
        warns,
        needs_loss=True,
        candidates=candidates,
    )


def _verdict(facts: Facts, param: int, members: tuple[Rule, ...]) -> Verdict:
    """Unused where all candidates say so; else approximate, since what lies outside of their span is left out."""
    verdicts = [rule.verdict(rule.facts_for(facts), param) for rule in members]
    if all(v.kind is Kind.UNUSED for v in verdicts):
        return verdicts[0]
    windows = [v.least_window for v in verdicts if v.least_window is not None]
    reason = (
        "the true gradient of each call is projected on the span of the candidates: what lies outside of it, and what "
        "the parameter did before the call, is left out"
    )
    return Verdict(Kind.APPROXIMATE, reason, min(windows, default=None))
