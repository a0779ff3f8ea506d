"""Which linear maps in series share one trace: `compiler/opened/_series.py` has the mathematics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..compiler.analysis import Facts, analyse, is_steep_by_row, memoised
from ..compiler.ir import Role, Step
from ..compiler.opened import Chain, Rows, find_chains, with_chains
from ..runtime.traces import by_position_transport, chosen_plan
from ._kinds import CHEAP_BYTES, CHEAP_FAN_OUT
from ._verdicts import carried_groups, lost_paths

# Of a table, all rows are computed in each window, whether anybody reads them or not.
MOST_ROWS = 1024
FEW_CHAINS = 4


def in_series(facts: Facts) -> Facts:
    """The facts of a step with maps in series as one, where that makes a parameter exact; else those of the step."""
    return in_series_within(facts, (frozenset(range(len(facts.step.select(Role.PARAM)))),))


def in_series_within(facts: Facts, together: tuple[frozenset[int], ...]) -> Facts:
    """`in_series` of parameters that one and the same rule serves: `together` are the parameters of each rule."""
    return _chosen(facts.as_written, together) or facts.as_written


@memoised
def _chosen(facts: Facts, together: tuple[frozenset[int], ...]) -> Facts | None:
    """The facts with the chains that are worth it as one weight op each; None if there are none.

    Worth it are chains by which a parameter becomes exact, while all traces stay cheap; and those by which a parameter
    without a trace gets one, for no more memory: a scale before a projection.
    """
    waiting = {p for p in range(len(facts.step.select(Role.PARAM))) if lost_paths(facts, p, CHEAP_FAN_OUT)}
    if not waiting:
        return None
    step, every = find_chains(facts.step, facts.sites)
    chains = [c for c in every if c.before & waiting and any(c.params <= params for params in together)]
    chains = [c for c in chains if not isinstance(c, Rows) or _is_sound(c)]
    if not chains:
        return None
    without_trace = {p for p in waiting if not carried_groups(facts, p, CHEAP_FAN_OUT)}
    exact = _Choice(facts, step, lambda fused: {p for p in waiting if not lost_paths(fused, p, CHEAP_FAN_OUT)})
    chosen = exact.among(chains, (), CHEAP_BYTES)
    traced = _Choice(facts, step, lambda fused: {p for p in without_trace if carried_groups(fused, p, CHEAP_FAN_OUT)})
    now = exact.fused(chosen) if chosen else facts
    chosen = traced.among([c for c in chains if c not in chosen], chosen, _trace_bytes(now))
    return exact.fused(chosen) if chosen else None


@dataclass(frozen=True, eq=False)
class _Choice:
    """Chains by which some parameters gain, of a step; `gained` says which, of the facts with chains as one op each."""

    facts: Facts
    step: Step
    gained: Callable[[Facts], set[int]]

    def fused(self, chains: tuple[Chain, ...]) -> Facts:
        return _fused(self.facts, self.step, chains)

    def among(self, chains: Sequence[Chain], besides: tuple[Chain, ...], limit: float) -> tuple[Chain, ...]:
        """The chains to take besides others, such that traces stay within a limit: the largest are left out first."""
        chains = list(chains)
        while chains:
            fused = self.fused((*besides, *chains))
            gained = self.gained(fused)
            used = [c for c in chains if c.before & gained]
            if len(used) == len(chains):
                if _trace_bytes(fused) <= limit:
                    break
                # One by one if they are few, for each takes an analysis; else the larger half.
                used.sort(key=lambda c: c.matrix_size)
                used = used[: min(len(used) - 1, max(FEW_CHAINS, len(used) // 2))]
            chains = [c for c in chains if c in used]
        return (*besides, *chains)


def _is_sound(rows: Rows) -> bool:
    """Whether all rows of a table may be computed: they are not too many, and those that nobody reads do no harm."""
    return rows.table_rows <= MOST_ROWS and not is_steep_by_row(rows)


@memoised
def _fused(facts: Facts, step: Step, chains: tuple[Chain, ...]) -> Facts:
    """The facts of a step with these chains as one weight op each."""
    return replace(analyse(with_chains(step, chains), as_written=True), lanes=facts.lanes, written=facts)


def _trace_bytes(facts: Facts) -> int:
    """Bytes of the traces of D-RTRL, whatever the lanes: these must not change what is carried."""
    plan = chosen_plan(replace(facts, lanes=None), None, None, CHEAP_FAN_OUT)
    return by_position_transport(plan).nbytes
