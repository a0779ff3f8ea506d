"""The one abstract interpreter: a domain says what values mean, the solver takes them through a program.

The solver owns bodies (calls, derivative rules, branches, loops, devices), addresses and constants. A loop is run until
what is known of its carry no longer changes, which is then true of every iteration, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

from ..._compat import (
    CUSTOM,
    INLINED,
    Jaxpr,
    JaxprEqn,
    ScanParts,
    Var,
    cond_branches,
    inner_jaxpr,
    scan_parts,
    while_parts,
)
from ..ir import Address, Body, interpret
from ..primitives import over_all_devices

V = TypeVar("V")  # what a domain knows of a value
N = TypeVar("N")  # what it takes down on the way
Note: TypeAlias = Callable[[N], None]


class Domain(Generic[V, N]):
    """What is known of a value, and how it follows from what is known of others.

    `constant`, `join` and `transfer` make an analysis; the other methods have a default that fits most. What is noted
    while a loop is still being solved, or inside a body that `leave` refuses, is forgotten.
    """

    def constant(self, value: object) -> V:
        """What is known of a constant of the program."""
        raise NotImplementedError

    def join(self, a: V, b: V) -> V:
        """What holds of a value that is the one or the other: where branches meet, and from iteration to iteration."""
        raise NotImplementedError

    def transfer(self, at: Address, eqn: JaxprEqn, values: list[V], note: Note[N]) -> list[V]:
        """What is known of the results of an equation that is not entered."""
        raise NotImplementedError

    def enters(self, at: Address, eqn: JaxprEqn, values: list[V]) -> bool:
        """Whether to walk the bodies of an equation that holds some; calls that may be inlined are always entered."""
        return True

    def leave(self, at: Address, eqn: JaxprEqn, values: list[V], outs: list[V], note: Note[N]) -> list[V] | None:
        """What is known of the results of an equation whose bodies gave `outs`; None to have it treated as one."""
        return outs

    def decide(self, eqn: JaxprEqn, predicate: V, values: list[V], note: Note[N]) -> None:
        """Take down what is to be said of a value that chooses a branch or ends a loop, given the operands."""

    def carried(self, at: Address, value: V) -> V:
        """What is known in the first iteration of a value that the loop at an address carries and changes."""
        return value

    def widen(self, eqn: JaxprEqn, old: list[V], new: list[V], rounds: int) -> list[V]:
        """Something larger than the new carry of a loop, where growing step by step would take too long."""
        return new

    def settled(self, old: list[V], new: list[V]) -> bool:
        """Whether a round has taught nothing new about the carry."""
        return old == new

    def follows(self, scan: ScanParts, slices: list[V]) -> bool:
        """Whether to walk a scan iteration by iteration, each with its own slices."""
        return False

    def sliced(self, at: Address, eqn: JaxprEqn, value: V, i: int | None) -> V:
        """What is known of slice i along the first axis; of every slice, if i is None."""
        return value

    def stacked(self, values: Sequence[V], var: Var) -> V:
        """What is known of the slices of a result, put together; of one slice that stands for all, if there is one."""
        return values[0]


class Solver(Generic[V, N]):
    """Takes the values of a domain through programs; `notes` are what the domain took down, in program order."""

    def __init__(self, domain: Domain[V, N], notes: list[N] | None = None):
        self.domain = domain
        self.notes: list[N] = [] if notes is None else notes

    def run(self, jaxpr: Jaxpr, consts: Sequence[object], args: Sequence[V], at: Address = ()) -> list[V]:
        """What is known of the results of a program, given what is known of its arguments."""
        constant = self.domain.constant
        return interpret(jaxpr, [constant(c) for c in consts], args, self.equation, at, constant)

    def variables(self, jaxpr: Jaxpr, consts: Sequence[object], args: Sequence[V]) -> dict[Var, V]:
        """What is known of every variable of a program, but for those inside its bodies."""
        constants = [self.domain.constant(c) for c in consts]
        variables = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *args], strict=True))

        def handle(at: Address, eqn: JaxprEqn, values: list[V]) -> list[V]:
            outs = self.equation(at, eqn, values)
            variables.update(zip(eqn.outvars, outs, strict=True))
            return outs

        interpret(jaxpr, constants, args, handle, (), self.domain.constant)
        return variables

    def equation(self, at: Address, eqn: JaxprEqn, values: list[V]) -> list[V]:
        name = eqn.primitive.name
        if name in INLINED:
            return self.run(*inner_jaxpr(eqn), values, at)
        walk = _WALKS.get(name)
        if walk is not None and self.domain.enters(at, eqn, values):
            first = len(self.notes)
            outs = self.domain.leave(at, eqn, values, walk(self, at, eqn, values), self.notes.append)
            if outs is not None:
                return outs
            del self.notes[first:]
        return self.domain.transfer(at, eqn, values, self.notes.append)

    def _call(self, at: Address, eqn: JaxprEqn, values: list[V]) -> list[V]:
        return self.run(*inner_jaxpr(eqn), values, at)

    def _shard_map(self, at: Address, eqn: JaxprEqn, values: list[V]) -> list[V]:
        return self.run(*over_all_devices(eqn), values, at)

    def _each(self, at: Address, eqn: JaxprEqn, values: list[V]) -> list[V]:
        return values

    def _cond(self, at: Address, eqn: JaxprEqn, values: list[V]) -> list[V]:
        predicate, *operands = values
        self.domain.decide(eqn, predicate, values, self.notes.append)
        first, *others = (
            self.run(*branch, operands, (*at, number)) for number, branch in enumerate(cond_branches(eqn))
        )
        for outs in others:
            first = [self.domain.join(a, b) for a, b in zip(first, outs, strict=True)]
        return first

    def _while(self, at: Address, eqn: JaxprEqn, values: list[V]) -> list[V]:
        parts = while_parts(eqn)
        n, m = parts.cond_consts, parts.cond_consts + parts.body_consts
        carry, _ = self._loop(at, eqn, parts.body, values[n:m], values[m:], [])
        (predicate,) = self.run(*parts.cond, [*values[:n], *carry], at)
        self.domain.decide(eqn, predicate, values, self.notes.append)
        return carry

    def _scan(self, at: Address, eqn: JaxprEqn, values: list[V]) -> list[V]:
        scan = scan_parts(eqn)
        n, m = scan.num_consts, scan.num_consts + scan.num_carry
        fixed, carry, slices = values[:n], values[n:m], values[m:]
        results = eqn.outvars[scan.num_carry :]
        if self.domain.follows(scan, slices):
            return self._followed(at, eqn, scan, fixed, carry, slices)
        every = [self.domain.sliced(at, eqn, v, None) for v in slices]
        carry, outs = self._loop(at, eqn, (scan.jaxpr, scan.consts), fixed, carry, every)
        ends = outs[: scan.num_carry] if scan.length else carry
        stacked = [self.domain.stacked([v], var) for v, var in zip(outs[scan.num_carry :], results, strict=True)]
        return [*ends, *stacked]

    def _followed(
        self, at: Address, eqn: JaxprEqn, scan: ScanParts, fixed: list[V], carry: list[V], slices: list[V]
    ) -> list[V]:
        """A scan iteration by iteration."""
        pieces: list[list[V]] = []
        steps = range(scan.length)
        for t in reversed(steps) if scan.reverse else steps:
            now = [self.domain.sliced(at, eqn, v, t) for v in slices]
            outs = self.run(scan.jaxpr, scan.consts, [*fixed, *carry, *now], at)
            carry = outs[: scan.num_carry]
            pieces.append(outs[scan.num_carry :])
        in_order = reversed(pieces) if scan.reverse else pieces
        results = eqn.outvars[scan.num_carry :]
        return [*carry, *map(self.domain.stacked, zip(*in_order, strict=True), results)]

    def _loop(
        self, at: Address, eqn: JaxprEqn, body: Body, fixed: list[V], carry: list[V], slices: list[V]
    ) -> tuple[list[V], list[V]]:
        """What is known of the carry before each iteration of a loop, and of the body's results in each."""
        jaxpr, first = body[0], len(self.notes)
        # The carry stands behind the constants of the body; what is handed on as it came never changes.
        passed = [jaxpr.invars[len(fixed) + k] is jaxpr.outvars[k] for k in range(len(carry))]
        carry = [v if same else self.domain.carried(at, v) for v, same in zip(carry, passed, strict=True)]
        rounds = 0
        while True:
            del self.notes[first:]  # those of a round that did not hold for all iterations
            outs, rounds = self.run(*body, [*fixed, *carry, *slices], at), rounds + 1
            new = [a if same else self.domain.join(a, b) for a, b, same in zip(carry, outs, passed, strict=False)]
            if self.domain.settled(carry, new):
                return carry, outs
            wider = self.domain.widen(eqn, carry, new, rounds)
            # Widened once more, what a round adds to a widened carry may be nothing new.
            if wider is not new and self.domain.settled(carry, wider):
                return carry, outs
            carry = wider


_WALKS: dict[str, Callable[..., list]] = {
    "cond": Solver._cond, "scan": Solver._scan, "while": Solver._while, "shard_map": Solver._shard_map,
    "optimization_barrier": Solver._each, **dict.fromkeys((*CUSTOM, "linear_call"), Solver._call),
}  # fmt: skip
