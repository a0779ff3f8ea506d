"""The graph of a loop over steps: what each equation of its body reads, at the same step and from the step before.

Nodes are the equations of the body and the states that it reads. An edge leads to a node from each that it reads at the
same step, and to a state from what computes it at the step before. Equations on a cycle (of a strongly connected
component) can only run step by step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..._compat import Jaxpr, JaxprEqn, Literal, Var


def is_var(atom: Var) -> bool:
    return not isinstance(atom, Literal)


@dataclass(frozen=True, eq=False)
class StepGraph:
    """Nodes: the equations by number, then the states. `carried` and `fresh` are the states as read and as computed."""

    equations: Sequence[JaxprEqn]
    carried: Sequence[Var]
    fresh: Sequence[Var]
    slices: frozenset[Var]
    outputs: frozenset[Var]

    @classmethod
    def of(cls, jaxpr: Jaxpr, num_consts: int, num_carry: int) -> StepGraph:
        """The graph of a body whose inputs are constants, states and slices; its first outputs are the states."""
        last = num_consts + num_carry
        carried, fresh = jaxpr.invars[num_consts:last], jaxpr.outvars[:num_carry]
        outputs = frozenset(v for v in jaxpr.outvars[num_carry:] if is_var(v))
        return cls(jaxpr.eqns, carried, fresh, frozenset(jaxpr.invars[last:]), outputs)

    @property
    def states(self) -> range:
        return range(len(self.equations), len(self.equations) + len(self.carried))

    @cached_property
    def maker(self) -> dict[Var, int]:
        """The node that gives a variable; none for what comes from outside."""
        nodes = {v: n for n, eqn in enumerate(self.equations) for v in eqn.outvars}
        return nodes | {v: n for n, v in zip(self.states, self.carried, strict=True)}

    def read(self, node: int) -> list[Var]:
        n = len(self.equations)
        atoms = self.equations[node].invars if node < n else [self.fresh[node - n]]
        return [v for v in atoms if is_var(v)]

    def given(self, node: int) -> list[Var]:
        n = len(self.equations)
        return list(self.equations[node].outvars) if node < n else [self.carried[node - n]]

    @cached_property
    def before(self) -> list[list[int]]:
        """The nodes that each node reads."""
        every = range(len(self.equations) + len(self.carried))
        return [list(dict.fromkeys(self.maker[v] for v in self.read(n) if v in self.maker)) for n in every]

    @cached_property
    def after(self) -> list[list[int]]:
        """The nodes that read each node."""
        readers: list[list[int]] = [[] for _ in self.before]
        for n, sources in enumerate(self.before):
            for m in sources:
                readers[m].append(n)
        return readers

    @cached_property
    def readers_of_slices(self) -> dict[Var, list[int]]:
        readers: dict[Var, list[int]] = {v: [] for v in self.slices}
        for n in range(len(self.before)):
            for v in dict.fromkeys(self.read(n)):
                if v in readers:
                    readers[v].append(n)
        return readers

    @cached_property
    def components(self) -> list[list[int]]:
        """Strongly connected components, each after those that it reads."""
        return _components(self.before)

    def depends_on(self, variables: Iterable[Var], nodes: Iterable[int]) -> frozenset[int]:
        """The nodes that some variables or nodes act on."""
        wanted = set(variables)
        reached = set(nodes) | {n for n in range(len(self.before)) if wanted.intersection(self.read(n))}
        open_ = list(reached)
        while open_:
            more = [n for n in self.after[open_.pop()] if n not in reached]
            reached.update(more)
            open_ += more
        return frozenset(reached)

    @cached_property
    def live(self) -> frozenset[int]:
        """The nodes that the states at the end or the outputs need."""
        needed: set[int] = set()
        open_ = [self.maker[v] for v in (*self.outputs, *self.fresh) if is_var(v) and v in self.maker]
        while open_:
            n = open_.pop()
            if n not in needed:
                needed.add(n)
                open_ += self.before[n]
        return frozenset(needed)

    @cached_property
    def recurrent(self) -> frozenset[int]:
        """The nodes that depend on a state, but for states that stay as they are."""
        # A state that reads itself alone, unchanged, is a constant.
        return self.depends_on((), [n for n in self.states if self.before[n] != [n]])

    @cached_property
    def varying(self) -> frozenset[int]:
        """The nodes that are not the same at every step."""
        return self.depends_on(self.slices, self.recurrent)

    def varies(self, atom: Var) -> bool:
        return is_var(atom) and (atom in self.slices or self.maker.get(atom) in self.varying)

    @cached_property
    def component(self) -> list[int]:
        """By node, the number of the cycle that it is on; −1 if it is on none."""
        numbers = [-1] * len(self.before)
        for k, nodes in enumerate(self.components):
            # A component of one node is a cycle only if the node reads itself.
            if len(nodes) > 1 or nodes[0] in self.before[nodes[0]]:
                for n in nodes:
                    numbers[n] = k
        return numbers


def _components(before: Sequence[Sequence[int]]) -> list[list[int]]:
    """Strongly connected components of a graph, given what each node reads; each after those that it reads.

    Tarjan's algorithm, without recursion: a step can be longer than Python's stack.
    """
    number: dict[int, int] = {}
    lowest: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    components = []
    for root in range(len(before)):
        if root in number:
            continue
        path = [(root, iter(before[root]))]
        while path:
            n, rest = path[-1]
            if n not in number:
                number[n] = lowest[n] = len(number)
                stack.append(n)
                on_stack.add(n)
            nxt = next(rest, None)
            if nxt is None:
                path.pop()
                if path:
                    lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[n])
                if lowest[n] == number[n]:
                    # Nothing on the stack above n leads below it: n and all above it are one component.
                    at = stack.index(n)
                    components.append(sorted(stack[at:]))
                    on_stack.difference_update(stack[at:])
                    del stack[at:]
            elif nxt not in number:
                path.append((nxt, iter(before[nxt])))
            elif nxt in on_stack:
                lowest[n] = min(lowest[n], number[nxt])
    return components
