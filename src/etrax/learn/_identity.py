"""What values belong to: digests of a model, a rule, a loss and an optimizer, for files that hold such values.

A digest is of what is computed, constants included: the same functions written in another place have the same one, and
another learning rate has another.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from inspect import getclosurevars
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from .._arguments import foreign, short
from .._compat import shape_struct
from .._errors import ArgumentError
from ..compiler.ir import LossFunction, PyTree, Role, Step, digest_of, digest_of_function, format_path
from ..rules import Rule
from ._checks import Optimizer, with_loss_value

if TYPE_CHECKING:
    from ._learner import Learner

# By word (model, rule, …) what something is made of; under one word there may be several things by name.
Identity = dict[str, object]


def identity_of(learner: Learner) -> Identity:
    """The model's program, the names and types of all that it takes, and the rule."""
    return learner.once(_identify, None)


def _identify(learner: Learner, _: None) -> Identity:
    step = learner.facts.step
    names = {f"{a.role.value} {format_path(a.path)}": f"{a.aval.dtype}{list(a.aval.shape)}" for a in step.ins}
    rule = describe_rule(learner.rule, learner.options.trace_dtype)
    return {"model": digest_of_step(step), "rule": rule, "names": names}


def digest_of_step(step: Step) -> str:
    """What one step computes, and its derivative."""
    return f"digest {digest_of_function(step.run, [leaf.aval for leaf in step.ins])}"


def describe_rule(rule: Rule, trace_dtype: jnp.dtype | None) -> str:
    """A rule as it is written; options that do not fit into a line (keys, matrices, functions) as a digest."""
    hidden = not all(isinstance(v, str | int | float) for v in rule.options.values())
    more = f", options {digest_of(_options(rule))}" if hidden else ""
    return f"{rule}{more}" + ("" if trace_dtype is None else f", traces in {jnp.dtype(trace_dtype).name}")


def _options(rule: Rule) -> tuple[str, object]:
    return rule.name, _told_apart(rule.options)


def _told_apart(value: object, depth: int = 8) -> object:
    """An option of a rule, with its functions as what they are made of: their code, and the values that they read.

    The shapes that a function of an option will meet are not known, so that it cannot be traced.
    """
    if isinstance(value, Rule):
        return _options(value)
    if isinstance(value, Mapping):
        return {k: _told_apart(v, depth) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_told_apart(v, depth) for v in value]
    if isinstance(value, partial):
        return _told_apart((value.func, value.args, value.keywords), depth - 1)
    if isinstance(value, CodeType):
        return value.co_code, value.co_names, _told_apart(value.co_consts, depth - 1)
    if isinstance(value, FunctionType) and depth > 0:  # one that calls itself closes over itself
        cells = list(getclosurevars(value).nonlocals.items())
        return _told_apart((value.__code__, value.__defaults__, value.__kwdefaults__, cells), depth - 1)
    return value


def digest_of_loss(learner: Learner, loss_fn: LossFunction, target: PyTree, batched: bool) -> str:
    """What the loss of one step computes for a target of that shape; of one sample if the step has a batch axis."""
    step, decode = learner.facts.step, learner.program.decode
    shapes = [(1, *leaf.aval.shape[1:]) if batched else leaf.aval.shape for leaf in step.select(Role.OUTPUT)]
    outputs = [
        jax.ShapeDtypeStruct(shape, leaf.aval.dtype)
        for shape, leaf in zip(shapes, step.select(Role.OUTPUT), strict=True)
    ]

    def loss(outputs: list[jax.Array], target: PyTree) -> jax.Array:
        return loss_fn(decode(jax.tree.unflatten(step.trees[Role.OUTPUT], outputs)), target)

    return f"digest {digest_of_function(loss, outputs, target)}"


def digest_of_optimizer(optimizer: Optimizer, params: PyTree) -> str:
    """What the optimizer begins with, and what an update computes."""
    shapes = jax.tree.map(shape_struct, params)
    opt_state = jax.eval_shape(optimizer.init, shapes)

    def update(grads: PyTree, opt_state: PyTree, params: PyTree, loss: jax.Array) -> PyTree:
        return with_loss_value(optimizer, loss).update(grads, opt_state, params)

    loss = jax.ShapeDtypeStruct((), jnp.result_type(float))
    programs = jax.make_jaxpr(optimizer.init)(shapes), jax.make_jaxpr(update)(shapes, opt_state, shapes, loss)
    return f"digest {digest_of(*programs)}"


def describe_differences(
    was: object, now: Identity, accept: tuple[str, ...], words: tuple[str, ...], jax_version: object
) -> str:
    """How a stored record differs from the present one, in lines, and how to continue; empty if all is accepted.

    `words` are those that `accept` may name; all else (shapes) cannot be overridden. `jax_version` is the one that the
    record was written under, if it says so.
    """
    differences = _differences(was if isinstance(was, dict) else {}, now, accept)
    if not differences:
        return ""
    lines = [line for of_word in differences.values() for line in of_word]
    text = "\n".join(lines[:8]) + ("\n  …" if len(lines) > 8 else "")
    if jax_version != jax.__version__ and any("digest" in line for line in lines):
        text += (
            f"\nIt was written under jax {foreign(jax_version)}, and this is jax {jax.__version__}: the same functions "
            "may be other programs there."
        )
    if set(differences) <= set(words):
        text += f"\nIf this is intended, pass `accept={list((*accept, *differences))}` to continue all the same."
    return text


def _differences(was: Mapping[str, object], now: Identity, accept: tuple[str, ...]) -> dict[str, list[str]]:
    """Lines by word, without the words that are accepted."""
    lines: dict[str, list[str]] = {}
    for word in (*now, *(k for k in was if k not in now)):
        old, new = was.get(word), now.get(word)
        if old == new or word in accept:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            keys = [k for k in {**old, **new} if old.get(k) != new.get(k)]
            lines[foreign(word)] = [_line(k, old, new) for k in keys]
        else:
            lines[foreign(word)] = [_line(word, was, now)]
    return lines


def _line(name: str, old: Mapping[str, object], new: Mapping[str, object]) -> str:
    there, here = (foreign(record[name]) if name in record else "absent" for record in (old, new))
    return f"  {foreign(name)}: {there} there, {here} here"


def check_accept(accept: object, words: tuple[str, ...]) -> tuple[str, ...]:
    """Words that say what may differ."""
    listed = (accept,) if isinstance(accept, str) else accept
    if not isinstance(listed, tuple | list | set | frozenset) or not all(
        isinstance(w, str) and w in words for w in listed
    ):
        raise ArgumentError(f"`accept` is {short(accept)}; expected some of {', '.join(map(repr, words))}.")
    return tuple(listed)
