"""Rivals measured against each other: compiled one by one, then run in turns, so that a noisy machine moves them
together. Ratios are medians over the turns.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax
import numpy as np
from benchmarks.machine import Machine
from benchmarks.rivals import Program, Rival
from benchmarks.workload import Workload

REFERENCE, BY_HAND = "BPTT", "by hand"


class Case(NamedTuple):
    """A workload of given sizes and who runs it; `sweep` names the size that is varied, for the plots.

    There are at least `turns` turns, and more within a budget of seconds.
    """

    name: str
    workload: Any
    steps: int
    rivals: tuple[Rival, ...]
    sizes: dict[str, int]
    sweep: str = ""
    turns: int = 3
    budget: float = 4.0


class Row(NamedTuple):
    """One rival in one case. Seconds are those of a whole run of `steps`, one per turn; memory is in bytes."""

    case: str
    rival: str
    sizes: dict[str, int]
    sweep: str
    steps: int
    seconds: list[float]
    compile: float
    working: int
    resident: int | None
    trace: int
    cosine: float | None
    matmul: float
    bandwidth: float
    error: str = ""

    @property
    def per_step(self) -> float:
        return median(self.seconds) / self.steps if self.seconds else float("nan")


def base_of(rows: Sequence[Row]) -> Row | None:
    """What the others of a case are measured against: BPTT, or a learner written by hand for the cell."""
    ran = {row.rival: row for row in rows}
    return ran.get(REFERENCE, ran.get(BY_HAND))


def ratios(row: Row, other: Row) -> list[float]:
    """Time per step of one against the other, turn by turn."""
    return [a / row.steps / (b / other.steps) for a, b in zip(row.seconds, other.seconds, strict=True)]


def _resident(program: Program) -> tuple[Any, int | None]:
    """Run once; by how much the resident set grew at its highest. None where the kernel does not tell."""
    clear, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")

    def read(field: str) -> int:
        line = next(s for s in status.read_text().splitlines() if s.startswith(field))
        return int(line.split()[1]) * 1024

    gc.collect()
    try:
        clear.write_text("5")  # forget the highest mark so far
        before = read("VmRSS:")
    except (OSError, StopIteration):
        return program.run(), None
    found = program.run()
    return found, max(0, read("VmHWM:") - before)


def _cosine(a: dict[str, Any], b: dict[str, Any]) -> float:
    """Between the gradients of all parameters, laid end to end."""
    x, y = (np.concatenate([np.asarray(tree[k], np.float64).ravel() for k in sorted(b)]) for tree in (a, b))
    return float(x @ y / max(np.linalg.norm(x) * np.linalg.norm(y), 1e-300))


def _fractions(row: Row, rival: Rival, workload: Workload, machine: Machine) -> Row:
    """Of the machine's peaks: the products that a gradient needs (forward, to data, to weights), and the trace read and
    written once a window.
    """
    seconds = row.per_step
    flops = rival.products * 2 * workload.products * workload.batch
    traffic = 2 * row.trace / (rival.window or 1)
    return row._replace(matmul=flops / seconds / machine.flops, bandwidth=traffic / seconds / machine.bandwidth)


def _blank(case: Case, rival: Rival, error: str = "") -> Row:
    steps = rival.steps or case.steps
    return Row(case.name, rival.name, case.sizes, case.sweep, steps, [], 0.0, 0, None, 0, None, 0.0, 0.0, error)


def _prepared(case: Case, rival: Rival, workload: Workload, data: Any) -> tuple[Row, Program | None, Any]:
    """Compile and run once; what cannot be built is a row with the reason."""
    row = _blank(case, rival)
    inputs, targets = (a[: row.steps] for a in data)
    start = time.perf_counter()
    try:
        program = rival.build(workload, inputs, targets)
        took = time.perf_counter() - start
        found, resident = _resident(program)
    except Exception as error:  # of another library: its failure is a result
        if rival.name.startswith((REFERENCE, BY_HAND, "etrax", "forward")):
            raise
        return _blank(case, rival, f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"), None, None
    memory = program.compiled.memory_analysis()
    # All return the gradients; whoever also returns states has to hold them.
    result = sum(a.nbytes for a in workload.params.values())
    working = memory.temp_size_in_bytes + max(memory.output_size_in_bytes - result, 0)
    row = row._replace(compile=took, working=working, resident=resident, trace=program.trace_bytes)
    return row, program, jax.tree.map(np.asarray, program.gradients(found))


def _references(case: Case, workload: Workload, data: Any, known: dict[str, Any]) -> dict[int, Any]:
    """The gradient of BPTT for every number of steps that a rival ran; none where BPTT is not asked to run."""
    bptt = next((r for r in case.rivals if r.name == REFERENCE), None)
    if bptt is None:
        return {}
    found = {case.steps: known[REFERENCE]}
    for steps in {r.steps or case.steps for r in case.rivals} - {case.steps}:
        program = bptt.build(workload, *(a[:steps] for a in data))
        found[steps] = jax.tree.map(np.asarray, program.gradients(program.run()))
    return found


def measure(case: Case, machine: Machine, most: int = 9) -> list[Row]:
    """All rivals of a case in turns."""
    workload = case.workload()
    data = workload.data(case.steps)
    prepared = [_prepared(case, rival, workload, data) for rival in case.rivals]
    programs = [program for _, program, _ in prepared]
    seconds: list[list[float]] = [[] for _ in programs]
    turns, spent = 0, 0.0
    while turns < most and (turns < case.turns or spent / turns * (turns + 1) < case.budget):
        for found, program in zip(seconds, programs, strict=True):
            if program is None:
                continue
            start = time.perf_counter()
            program.run()
            found.append(time.perf_counter() - start)
            spent += found[-1]
        turns += 1
    reference = _references(case, workload, data, {row.rival: found for row, _, found in prepared})
    rows = []
    for (row, program, gradients), rival, times in zip(prepared, case.rivals, seconds, strict=True):
        if program is not None:
            cosine = _cosine(gradients, reference[row.steps]) if reference and gradients else None
            row = _fractions(row._replace(seconds=times, cosine=cosine), rival, workload, machine)
        rows.append(row)
    return rows
