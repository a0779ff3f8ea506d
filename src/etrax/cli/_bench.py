"""`etrax bench`: time and memory of one gradient over sequences of growing length, a rule beside BPTT."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import jax

from .._arguments import format_bytes
from ..testing import bptt
from ._model import Model, sequence_like, squares

TURNS = 3
HEAD = f"{'steps':>7}  {'rule, time':>12}  {'BPTT, time':>12}  {'rule, memory':>13}  {'BPTT, memory':>13}"


def rows(model: Model, rule: str | None, window: int, lengths: Sequence[int], seed: int) -> Iterator[str]:
    """One row of the table for each length; both take turns, the best time of each counts."""
    learner = model.learner(rule)
    state = learner.init()
    gradient, oracle = learner.value_and_grad(squares, window), bptt(learner, squares)

    def by_rule(inputs: object) -> object:
        return gradient(learner.params, state, inputs)[0]

    def by_bptt(inputs: object) -> object:
        return oracle(learner.params, learner.hidden, inputs)

    yield HEAD
    for steps in lengths:
        inputs = sequence_like(learner, model.inputs, steps, seed)
        both = [_compiled(f, inputs) for f in (by_rule, by_bptt)]
        turns = [[_seconds(run, inputs) for run, _ in both] for _ in range(TURNS)]
        times = [min(turn[i] for turn in turns) for i in range(2)]
        shown = [f"{t * 1e3:9.2f} ms" for t in times] + [format_bytes(n) for _, n in both]
        yield f"{steps:>7}  {shown[0]:>12}  {shown[1]:>12}  {shown[2]:>13}  {shown[3]:>13}"


def _compiled(function: Callable[[object], object], inputs: object) -> tuple[Callable[[object], object], float]:
    """The compiled program, and the bytes that it allocates besides its arguments and results."""
    run = jax.jit(function).lower(inputs).compile()
    memory = run.memory_analysis()
    jax.block_until_ready(run(inputs))
    return run, float(memory.temp_size_in_bytes) if memory is not None else float("nan")


def _seconds(run: Callable[[object], object], inputs: object) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(run(inputs))
    return time.perf_counter() - begin
