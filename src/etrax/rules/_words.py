"""Lost paths in words: why a path from a parameter to a state is not carried, for reports and diagnostics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .._arguments import format_bytes
from ..compiler.analysis import Facts, LostKind, LostPath, Node, OpNode
from ..compiler.ir import layer_of

_DECLARE = "declare it as one to have it carried"


def words_of(facts: Facts, lost: LostPath) -> str:
    """One clause that names the states, the parameters and the source line.

    >>> from etrax.compiler.analysis import LostKind, LostPath
    >>> words_of(None, LostPath(LostKind.ROUNDED, cause="astype at model.py:3"))
    'the gradient of its weight is rounded at astype at model.py:3, once for all steps instead of at each of them'
    """
    here = "" if lost.source is None else _name(facts, lost.source)
    cause = _cause(facts, lost)
    there, where = _names(facts, lost.targets), f" ({cause})" if cause else ""
    from_op = isinstance(lost.source, OpNode)
    match lost.kind:
        case LostKind.TAIL:
            return f"one element of {here} reaches several positions of {there}{where}{_cost_of(lost)}"
        case LostKind.THROUGH_OP:
            many = "s" * (len(lost.targets) > 1)
            ops = _ops(facts, lost.targets)
            return f"its output passes through the weight op{many} of {ops} before it reaches a state"
        case LostKind.MIXING:
            return f"positions of state {here} act on other positions of {there}{where}"
        case LostKind.RECURRENT_OP:
            many = "s" * (len(lost.targets) > 1)
            return f"state {here} acts on states through the weight op{many} of {_ops(facts, lost.targets)}"
        case LostKind.OTHER_GROUP:
            return f"state {here} acts on state {there} of another group{where}"
        case LostKind.OTHER_STATE:
            how = "it reaches" if from_op else f"state {here} acts on"
            return f"{how} {there}, which is not a hidden state{where}; {_DECLARE}"
        case LostKind.HALF:
            other = _names(facts, lost.beside)
            return (
                f"its trace to {there} alone is left out: {there} and {other} are multiplied or divided by each other, "
                f"no trace reaches {other}, and half of such a gradient can point the wrong way"
            )
        case LostKind.RESCALED:
            other = _names(facts, lost.beside)
            return (
                f"its traces to {there} and {other} are left out: one is kept in units of the other, which change at "
                "every step, and half of that change can point the wrong way (if the output does not depend on these "
                "units, as on a running maximum, `jax.lax.stop_gradient` around the new ones changes no gradient, and "
                "is all that is needed)"
            )
        case LostKind.NONLINEAR:
            rule = "derivative" if lost.detail.startswith("rounds") else "model's own derivative rule"
            return f"the {rule} at {cause} {lost.detail}, so no trace can stand for it"
        case LostKind.UNKNOWN:
            return f"the derivative passes through {cause}, which {lost.detail}, so nothing can be proved about it"
        case LostKind.ROUNDED:
            return f"the gradient of its weight is rounded at {cause}, once for all steps instead of at each of them"


def _cause(facts: Facts | None, lost: LostPath) -> str:
    """The equation and its line, and the layer of the module that it is in."""
    layer = layer_of(facts.step.layers, lost.cause.source) if facts is not None and lost.cause is not None else ""
    return f"{lost.cause or ''} {layer}".strip()


def _cost_of(lost: LostPath) -> str:
    """Say how a path over pairs can be carried, and what that costs."""
    if lost.nbytes is None:
        return ""
    return f"; `etrax.d_rtrl(fan_out=None)` carries them all, in a trace of {format_bytes(lost.nbytes)}"


def in_words(facts: Facts, lost: Sequence[LostPath]) -> str:
    """Several paths, each said once, and those through other weight ops together."""
    met = {node for path in lost if path.kind is LostKind.THROUGH_OP for node in path.targets}
    targets = tuple(sorted(met, key=lambda node: node.index))
    together = [replace(path, targets=targets) if path.kind is LostKind.THROUGH_OP else path for path in lost]
    return "; ".join(dict.fromkeys(words_of(facts, path) for path in dict.fromkeys(together)))


def _name(facts: Facts, node: Node) -> str:
    return facts.sites[node.index].label if isinstance(node, OpNode) else facts.state_name(node.index)


def _names(facts: Facts, nodes: Sequence[Node]) -> str:
    return ", ".join(_name(facts, node) for node in nodes)


def _ops(facts: Facts, nodes: Sequence[Node]) -> str:
    """The parameters of weight ops, and each op with its place."""
    return ", ".join(f"{', '.join(facts.params_of(n.index))} ({facts.sites[n.index].label})" for n in nodes)


def listed(names: Sequence[str], most: int | None) -> str:
    """Names in a row, at most so many of them.

    >>> listed(["'a'", "'b'", "'c'"], 2), listed(["'a'", "'b'"], None)
    ("'a', 'b' and 1 more", "'a', 'b'")
    """
    shown = list(dict.fromkeys(names))
    left = 0 if most is None else max(len(shown) - most, 0)
    return ", ".join(shown[: len(shown) - left]) + (f" and {left} more" if left else "")


def in_brief(facts: Facts, lost: Sequence[LostPath], most: int) -> str:
    """At most so many clauses on several paths: what is left out though it could be carried, weight ops, all others."""
    clauses = [_briefly(facts, path) for path in lost if path.kind is LostKind.HALF]
    through = [path for path in lost if path.kind in (LostKind.THROUGH_OP, LostKind.RECURRENT_OP)]
    rescaled = [path for path in lost if path.kind is LostKind.RESCALED]
    clauses += [_passing(facts, through, most)] if through else []
    if rescaled:
        pairs = listed([f"{_names(facts, p.targets)} and {_names(facts, p.beside)}" for p in rescaled], most)
        clauses.append(
            f"its traces to {pairs} are left out: one is kept in units of the other (`jax.lax.stop_gradient` around "
            "new units that no output depends on has them carried)"
        )
    others = [path for path in lost if path not in through and path not in rescaled]
    clauses = list(dict.fromkeys([*clauses, *(_briefly(facts, path) for path in others)]))
    left = len(clauses) - most
    return "; ".join(clauses[:most]) + (f"; and {left} more path{'s' * (left > 1)}" if left > 0 else "")


def _passing(facts: Facts, paths: Sequence[LostPath], most: int) -> str:
    sites = sorted({node.index for path in paths for node in path.targets})
    names = listed([name for j in sites for name in facts.params_of(j)], most)
    places = listed([str(facts.sites[j].source) for j in sites if facts.sites[j].source], most)
    return f"what passes through the weight op{'s' * (len(sites) > 1)} of {names}" + (f" ({places})" if places else "")


def _briefly(facts: Facts, lost: LostPath) -> str:
    there, other = _names(facts, lost.targets), _names(facts, lost.beside)
    match lost.kind:
        case LostKind.TAIL:
            where = f" ({_cause(facts, lost)})" if lost.cause else ""
            return f"one of its elements reaches several positions of {there}{where}{_cost_of(lost)}"
        case LostKind.HALF:
            return (
                f"its trace to {there} alone is left out: {there} and {other} are multiplied or divided by each other, "
                f"and no trace reaches {other}"
            )
        case _:
            return words_of(facts, lost)
