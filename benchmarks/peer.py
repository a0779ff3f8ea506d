"""braintrace on the same workloads, through its own ops, states and sequence driver."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.rivals import Program, Rival
from benchmarks.workload import F32, NHWC, Array, Connections, Ops, Tree, Workload, loss

from etrax._install import install_command

NEEDED = f"braintrace is not installed: {install_command('compare')}"


def present() -> bool:
    return find_spec("braintrace") is not None


def _structure(at: Connections) -> Any:
    """The matrix without its values; made outside the step that is traced, as the library asks."""
    import brainevent

    starts = np.searchsorted(at.pre, np.arange(at.sources + 1)).astype(np.int32)
    with jax.ensure_compile_time_eval():
        parts = jnp.zeros(len(at.pre), F32), jnp.asarray(at.post), jnp.asarray(starts)
        return brainevent.CSR(parts, shape=(at.sources, at.targets))


def _ops() -> Ops:
    import braintrace

    structures: dict[str, Any] = {}

    def conv(x: Array, kernel: Array, stride: int) -> Array:
        return braintrace.conv(x, kernel, strides=(stride, stride), padding="SAME", dimension_numbers=NHWC)

    def sparse(x: Array, values: Array, at: Connections) -> Array:
        if at.name not in structures:
            structures[at.name] = _structure(at)
        return braintrace.sparse_matmul(x, values, sparse_mat=structures[at.name])

    return Ops(braintrace.matmul, conv, sparse, braintrace.element_wise)


def _module(workload: Workload) -> Any:
    """The workload as a module: a `ParamState` per parameter, a `HiddenState` per hidden leaf."""
    import brainstate

    step, hidden = workload.real_step or workload.step, workload.real_hidden or workload.hidden
    ops = _ops()

    class Net(brainstate.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = {k: brainstate.ParamState(v) for k, v in workload.params.items()}

        def init_state(self, *_: Any, **__: Any) -> None:
            self.states = {k: brainstate.HiddenState(v) for k, v in hidden.items()}

        def update(self, x: Array) -> Array:
            values: Tree = {k: s.value for k, s in self.weights.items()}
            new, output = step(ops, values, {k: s.value for k, s in self.states.items()}, x)
            for k, s in self.states.items():
                s.value = new[k]
            return output

    return Net()


def _build(workload: Workload, inputs: Array, targets: Array, rule: str, window: int | None, options: Any) -> Program:
    import brainevent
    import brainstate
    import braintrace

    if find_spec("numba") is None:  # its default on CPU, on which it does not depend
        brainevent.config.set_backend("cpu", "jax_raw")
    method = {} if window is None else {"vjp_method": "multi-step"}
    algorithm = getattr(braintrace, rule)
    learner = braintrace.compile(
        _module(workload), algorithm, inputs[0], batch_size=workload.batch, **method, **options
    )  # fmt: skip

    def one(x: Array, y: Array) -> Array:
        return loss(learner(x), y)

    def many(x: Array, y: Array) -> Array:
        return jax.vmap(loss)(learner(braintrace.MultiStepData(x)), y)

    @brainstate.transform.jit
    def run(inputs: Array, targets: Array) -> Any:
        return learner.etrace_grad(inputs, targets, step_fn=one if window is None else many, chunk_size=window)

    # Called with its states as arguments, every run starts from the same ones. `compiled` itself cannot be called where
    # the step closes over arrays.
    compiled = run.lower(inputs, targets).compile()
    states = run.stateful_fun.get_state_trace(inputs, targets, compile_if_miss=True)
    traces = [s.value for s in states.states if isinstance(s, braintrace.EligibilityTrace)]
    nbytes = sum(leaf.nbytes for leaf in jax.tree.leaves(traces))

    def gradients(found: Any) -> dict[str, Array]:
        return {path[-1]: value for path, value in found[1].items()}

    return Program(compiled, run.jitted_fun, (states.get_state_values(), inputs, targets), nbytes, gradients)


def theirs(
    rule: str, window: int | None = None, steps: int | None = None, label: str | None = None, **options: Any
) -> Rival:
    """`rule` is a class of braintrace; with a window, its multi-step mode, else its default."""

    def build(workload: Workload, inputs: Array, targets: Array) -> Program:
        return _build(workload, inputs, targets, rule, window, options)

    how = "default" if window is None else f"K={window}"
    return Rival(f"braintrace {label or rule} {how}", build, window or 1, steps)
