"""Parts of a jaxpr: what lies between some of its variables, with weight ops cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._compat import (
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    bodies_of,
    build_jaxpr,
    cond_branches,
    is_extended,
    open_jaxpr,
    shape_struct,
    staged_copy,
)
from .._errors import CompilationError
from ..compiler.analysis import Facts
from ..compiler.ir import Address, Handler, Role, Step, interpret
from ..compiler.opened import OpenStep


class Slice(NamedTuple):
    """Targets from sources: `jax.core.eval_jaxpr(jaxpr, values of constvars, *values of sources)`.

    `constvars` are what is read and does not depend on the sources.
    """

    jaxpr: Jaxpr
    constvars: tuple[Var, ...]


class Slicer:
    """Cuts parts out of one jaxpr, whose equations `facts` describe; who reads a variable is looked up once."""

    def __init__(self, jaxpr: Jaxpr, facts: Facts):
        self.jaxpr, self.facts = jaxpr, facts
        # Cut ops of the step itself end a path; those inside a loop are cut where they are, the loop goes on.
        self.closed = {s.at[0] for j, s in enumerate(facts.sites) if j in facts.cut and len(s.at) == 1}
        self.cut_inside = {s.at[0] for j, s in enumerate(facts.sites) if j in facts.cut and len(s.at) > 1}
        self.readers: dict[Var, list[int]] = {}
        self.makers: dict[Var, int] = {}
        for i, eqn in enumerate(jaxpr.eqns):
            self.makers.update(dict.fromkeys(eqn.outvars, i))
            for v in _variables(eqn.invars):
                self.readers.setdefault(v, []).append(i)

    def between(self, sources: Sequence[Var], targets: Sequence[Var]) -> Slice:
        """Targets as a function of sources along every path that passes no cut weight op.

        Values that a cut op computes from the sources are constvars: they are inputs of the slice, not part of it. Cut
        ops inside an inner loop or branch stay where they are, with the gradient through them stopped.
        """
        numbers, constvars = self._equations(sources, targets)
        part = build_jaxpr(sources, targets, [self.jaxpr.eqns[i] for i in numbers], self.jaxpr, constvars)
        if not self.cut_inside.intersection(numbers):
            return Slice(part, constvars)
        opened = OpenStep(self.facts.step, self.facts.sites, self.facts.cut)

        def handle(site: Address, eqn: JaxprEqn, values: list[jax.Array]) -> Sequence[jax.Array] | None:
            number = numbers[site[0]]  # the part numbers its equations anew; the opened step knows the step's own
            return opened.inside(eqn, values, number) if number in self.cut_inside else None

        avals = [shape_struct(v.aval) for v in (*part.constvars, *part.invars)]
        return Slice(_traced(lambda *args: eval_slice(part, (), args, handle), avals, len(constvars)), constvars)

    def from_inside(self, op: int, targets: Sequence[Var]) -> Slice:
        """Targets as a function of what a weight op inside a loop or branch computes, in all iterations of its loops.

        It takes an array with an axis for each loop around the op, outermost first, before those of the op's result.
        """
        facts = self.facts
        site, first = facts.sites[op], facts.sites[op].at[0]
        numbers, constvars = self._equations((), targets, first)
        part = build_jaxpr([], targets, [self.jaxpr.eqns[i] for i in numbers], self.jaxpr, constvars)
        opened = OpenStep(facts.step, facts.sites, facts.cut)
        inner = {s.at[0] for s in facts.sites if len(s.at) > 1}

        def run(*args: jax.Array) -> list[jax.Array]:
            def handle(at: Address, eqn: JaxprEqn, values: list[jax.Array]) -> Sequence[jax.Array] | None:
                number = numbers[at[0]]
                outputs = {op: args[-1]} if number == first else {}
                return opened.inside(eqn, values, number, outputs) if number in inner else None

            return eval_slice(part, (), args[:-1], handle)

        # An axis for each loop around the op, as `OpenStep` takes the outputs of all iterations.
        result = shape_struct(inner_equation(self.jaxpr, site.at).outvars[0].aval)
        y = jax.ShapeDtypeStruct((*(n for _, n in site.loops), *result.shape), result.dtype)
        return Slice(_traced(run, [*(shape_struct(v.aval) for v in constvars), y], len(constvars)), constvars)

    def _equations(
        self, sources: Sequence[Var], targets: Sequence[Var], first: int | None = None
    ) -> tuple[list[int], tuple[Var, ...]]:
        """Numbers of the equations between sources, or the results of equation `first`, and targets; what else is read.

        Cut weight ops are not among them.
        """
        eqns = self.jaxpr.eqns
        # Forwards: every equation that depends on the sources, and every variable that does.
        dependent = set() if first is None else {first}
        todo = list(sources) if first is None else list(eqns[first].outvars)
        moving = {*sources, *todo}
        while todo:
            for i in self.readers.get(todo.pop(), ()):
                if i not in dependent and i not in self.closed:
                    dependent.add(i)
                    new = [v for v in eqns[i].outvars if v not in moving]
                    moving.update(new)
                    todo += new
        # Backwards: those of them that the targets need.
        needed: set[int] = set()
        todo = [v for v in _variables(targets) if v not in sources]
        while todo:
            i = self.makers.get(todo.pop(), -1)  # -1: an input, which no equation makes
            if i in dependent and i not in needed:
                needed.add(i)
                todo += [v for v in _variables(eqns[i].invars) if v not in sources]
        numbers = sorted(needed)
        read = _variables([*(v for i in numbers for v in eqns[i].invars), *targets])
        return numbers, tuple(dict.fromkeys(v for v in read if v not in moving))


def _variables(atoms: Sequence[Var | Literal]) -> list[Var]:
    return [v for v in atoms if not isinstance(v, Literal)]


def eval_slice(
    jaxpr: Jaxpr, inputs: Sequence[jax.Array], args: Sequence[jax.Array], handle: Handler = lambda *_: None
) -> list[jax.Array]:
    """Run the jaxpr of a slice on the values of its constvars and of its sources."""
    # A jaxpr may have its constvars among its inputs (`build_jaxpr`), so the values are split by its own count.
    values, n = [*inputs, *args], len(jaxpr.constvars)
    return interpret(jaxpr, values[:n], values[n:], handle)


def _traced(run: Callable[..., list[jax.Array]], avals: Sequence[jax.ShapeDtypeStruct], num_inputs: int) -> Jaxpr:
    """The jaxpr of a function whose first arguments become constvars."""
    jaxpr, consts = open_jaxpr(jax.make_jaxpr(run)(*avals))
    if consts:
        raise CompilationError(f"cutting an inner loop captured {len(consts)} constants; please report this model")
    return build_jaxpr(jaxpr.invars[num_inputs:], jaxpr.outvars, jaxpr.eqns, jaxpr, jaxpr.invars[:num_inputs])


def inner_equation(jaxpr: Jaxpr, at: Address) -> JaxprEqn:
    """The equation at an address, which may lie inside loops, branches and calls."""
    eqn = jaxpr.eqns[at[0]]
    rest = at[1:]
    while rest:
        if eqn.primitive.name == "cond":
            body, rest = cond_branches(eqn)[rest[0]][0], rest[1:]
        else:
            (body,) = bodies_of(eqn)
        eqn, rest = body.eqns[rest[0]], rest[1:]
    return eqn


def with_separate_hidden_outputs(step: Step) -> Step:
    """Give every hidden state of a step an output variable of its own.

    A state that is only read, that is set to a constant, or that equals another state is returned as a copy; copies
    come after the step's equations, whose addresses stay what they were.
    """
    outs, copies = step.jaxpr.outvars, set()
    taken: set[Var] = set(step.jaxpr.invars)
    for k, leaf in enumerate(step.outs):
        if leaf.role is not Role.HIDDEN or is_extended(leaf.aval):
            continue
        if isinstance(outs[k], Literal) or outs[k] in taken:
            copies.add(k)
        else:
            taken.add(outs[k])
    if not copies:
        return step

    def run(args: Sequence[jax.Array]) -> list[jax.Array]:
        values = interpret(step.jaxpr, (), args, lambda *_: None)
        return [
            staged_copy(jnp.asarray(v, step.outs[k].aval.dtype)) if k in copies else v for k, v in enumerate(values)
        ]

    return retraced(step, run, "copying the hidden outputs of the step")


def _result_shapes(eqn: JaxprEqn) -> list[tuple[int, ...] | None]:
    return [getattr(v.aval, "shape", None) for v in eqn.outvars]


def retraced(step: Step, run: Callable[[Sequence[jax.Array]], list[jax.Array]], what: str) -> Step:
    """The step traced anew by `run`, which may add equations at the end; `what` says why it is done, for an error.

    Facts, sites and slices name equations by number, so those of the step must stay where they are.
    """
    args = [*map(shape_struct, step.consts), *(leaf.aval for leaf in step.ins)]
    jaxpr, captured = open_jaxpr(jax.make_jaxpr(run)(args))
    shapes = [list(map(_result_shapes, eqns)) for eqns in (step.jaxpr.eqns, jaxpr.eqns[: len(step.jaxpr.eqns)])]
    if captured or shapes[0] != shapes[1]:
        raise CompilationError(f"{what} changed the equations of the step; please report this model")
    return Step(jaxpr, step.consts, step.ins, step.outs, step.trees)
