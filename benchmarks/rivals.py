"""Who runs: `jax.grad` over the whole sequence, with and without checkpoints, Etrax, and others from their own files.

Each takes a workload, inputs and targets and gives the gradient of the mean loss over the sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from benchmarks.workload import PLAIN, Array, Workload, loss
from jax import lax

import etrax


class Program(NamedTuple):
    """A compiled program, how it is called, and its arguments; `gradients(result)` are those of its parameters."""

    compiled: Any
    call: Callable[..., Any]
    args: tuple[Any, ...]
    trace_bytes: int
    gradients: Callable[[Any], dict[str, Array] | None]

    def run(self) -> Any:
        return jax.block_until_ready(self.call(*self.args))


class Rival(NamedTuple):
    """`build(workload, inputs, targets)` compiles; a slow one is measured on fewer `steps`, and compared per step.

    `products` says how many a weight op needs: forward, to data, to weights.
    """

    name: str
    build: Callable[[Workload, Array, Array], Program]
    window: int | None = None
    steps: int | None = None
    products: int = 3


def compiled(run: Callable[..., Any], workload: Workload, inputs: Array, targets: Array, trace: int = 0) -> Program:
    """`run(params, inputs, targets) -> gradients`, compiled."""
    args = (workload.params, inputs, targets)
    program = jax.jit(run).lower(*args).compile()
    return Program(program, program, args, trace, lambda found: found)


def _bptt(workload: Workload, inputs: Array, targets: Array, segment: int | None) -> Program:
    step = partial(workload.step, PLAIN)

    def run(params: Any, inputs: Array, targets: Array) -> Any:
        def total(params: Any) -> Array:
            def body(hidden: Any, xy: tuple[Array, Array]) -> tuple[Any, Array]:
                hidden, output = step(params, hidden, xy[0])
                return hidden, loss(output, xy[1])

            if segment is None:
                return lax.scan(body, workload.hidden, (inputs, targets))[1].mean()
            cut = jax.tree.map(lambda a: a.reshape(-1, segment, *a.shape[1:]), (inputs, targets))
            part = jax.checkpoint(lambda hidden, xy: lax.scan(body, hidden, xy))
            return lax.scan(part, workload.hidden, cut)[1].mean()

        return jax.grad(total)(params)

    return compiled(run, workload, inputs, targets)


def bptt() -> Rival:
    return Rival("BPTT", partial(_bptt, segment=None))


def checkpointed(steps: int) -> Rival:
    """√T segments, of which only the first state is kept and the rest computed again: memory ~ √T, one more forward."""
    segment = next(s for s in range(round(steps**0.5), 0, -1) if steps % s == 0)
    return Rival("BPTT checkpointed", partial(_bptt, segment=segment))


def _forward(workload: Workload, inputs: Array, targets: Array) -> Program:
    step = partial(workload.step, PLAIN)

    def run(params: Any, inputs: Array, targets: Array) -> Any:
        def body(hidden: Any, xy: tuple[Array, Array]) -> tuple[Any, Array]:
            hidden, output = step(params, hidden, xy[0])
            return hidden, loss(output, xy[1])

        return lax.scan(body, workload.hidden, (inputs, targets))[1].mean()

    return compiled(run, workload, inputs, targets)._replace(gradients=lambda found: None)


def forward() -> Rival:
    """No gradient at all: what nobody who runs the model can do without."""
    return Rival("forward alone", _forward, products=1)


def ours(
    rule: str | etrax.Rule, window: int, steps: int | None = None, label: str | None = None,
    remat: int | None = None, **options: Any,
) -> Rival:  # fmt: skip
    """Etrax over windows of `window` steps, from a fresh state; `options` are those of `etrax.compile`."""

    def build(workload: Workload, inputs: Array, targets: Array) -> Program:
        step = partial(workload.step, PLAIN)
        learner = etrax.compile(step, rule, inputs[0], params=workload.params, hidden=workload.hidden, **options)
        value_and_grad = learner.value_and_grad(loss, window=window, remat=remat)
        trace = jax.eval_shape(learner.init).trace
        nbytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(trace))

        def run(params: Any, inputs: Array, targets: Array) -> Any:
            return value_and_grad(params, learner.init(), inputs, targets)[0][1]

        return compiled(run, workload, inputs, targets, nbytes)

    name = label or (rule if isinstance(rule, str) else rule.name)
    return Rival(f"etrax {name} K={window}", build, window, steps)
