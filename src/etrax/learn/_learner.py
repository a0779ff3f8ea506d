"""The learner: a compiled model and a rule, as pure functions over one `LearnerState`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from .._arguments import check_arrays, check_flag, check_whole
from .._compat import is_concrete, staged_copy
from .._errors import ArgumentError, ArgumentTypeError
from .._machine import compiling_for, meshed_machine
from ..analysis import Facts
from ..engine import count_on, evolve, watched
from ..ir import Bound, LossFunction, PyTree
from ..rules import Rule, RuleWarning, as_rule, without_credit
from ._artifact import register_for_export, save_artifact
from ._checks import Optimizer, check_opt_state, check_optimizer, check_weights, check_window
from ._finite import raise_if_bad_gradient, raise_if_broken
from ._memory import Memory, default_budget, fitting_window, predict
from ._mesh import Shardings, meshed
from ._new_losses import NewLosses
from ._online import Online
from ._processes import place_batch
from ._program import LearnerState, Program, check_like
from ._sequence import Losses, run_sequence, steps_of, train_sequence
from ._surrogates import has_user_rules, refuse_derivatives

Window = int | Literal["auto"]
_NEEDS_MESH = "needs a model compiled for many devices: `etrax.compile(..., mesh=, shard=)`."


class Learner:
    """What `etrax.compile` returns. All methods are pure and run under `jit`, `vmap` and `scan`.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> loss = lambda output, target: ((output - target) ** 2).mean()
    >>> grad = learner.value_and_grad(loss, window=5)
    >>> (value, grads), state = grad(learner.params, learner.init(), jnp.ones((20, 3)), jnp.zeros((20, 4)))
    >>> grads.shape, int(state.step)
    ((3, 4), 20)
    """

    def __init__(
        self,
        facts: Facts,
        rule: Rule,
        initial: Callable[[], tuple[PyTree, PyTree]],
        *,
        bound: Bound,
        graph: Callable[[], Any],
        report: Callable[..., Any],
        trace_dtype: jnp.dtype | None = None,
        check_finite: bool = False,
        memory_budget: float | None = None,
        at_batch: Callable[[int], Learner] | None = None,
        mesh: Mesh | None = None,
        shard: str | Mapping[str, PartitionSpec] | None = None,
    ):
        """`initial` gives the parameters and states of the model, `bound` the way between its own values and leaves."""
        self.facts, self.rule, self._initial, self.bound = facts, rule, initial, bound
        self._make_graph, self._make_report = graph, report
        transport = rule.transport(facts, None, trace_dtype)
        transport = watched(facts, transport) if check_finite else transport
        if mesh is not None and shard is not None:
            transport = replace(transport, init=_for_mesh(transport.init, mesh))
        frozen, ways = rule.frozen(facts), (bound.encode, bound.decode_output)
        self.program = Program(facts, transport, str(rule), frozen, self.hidden, *ways)
        self.check_finite, self.trace_dtype = check_finite, trace_dtype
        self._warned = self._warned_of_window = False
        self._budget, self._at_batch = memory_budget, at_batch
        # Of values that this learner's functions read: the same values, without derivatives where those would be wrong.
        self.guard: Callable[[PyTree], PyTree] = refuse_derivatives if has_user_rules(facts.step) else lambda tree: tree
        self.mesh, self._shard = mesh, shard
        self._meshed = None if mesh is None or shard is None else meshed(self.program, rule, mesh, shard)
        if self._meshed is not None:
            self.program = replace(self.program, place_trace=self._meshed.place_trace)
        check_weights(facts.step, lambda params: self.program.weights(params).weight, facts.sites, frozen)
        register_for_export(jax.eval_shape(lambda: LearnerState(None, transport.init(), jnp.zeros((), jnp.int32))))
        # One compiled function for each loss, optimizer and set of options, however often it is asked for.
        self._gradient_of = lru_cache(32)(self._new_gradient)
        self._train_by = lru_cache(32)(self._new_train)
        self.once = lru_cache(32)(lambda make, losses: make(self, losses))
        self._new_losses = NewLosses()
        self._evolve = jax.jit(self._on_mesh(self._plain_evolve))

    def with_rule(self, rule: Rule | str) -> Learner:
        """The same model under another rule; nothing is traced or analysed again."""
        rule, at_batch = as_rule(rule), self._at_batch
        return Learner(
            self.facts, rule, self._initial, bound=self.bound, graph=self._make_graph,
            report=self._make_report, trace_dtype=self.trace_dtype, check_finite=self.check_finite,
            memory_budget=self._budget, at_batch=at_batch and (lambda batch: at_batch(batch).with_rule(rule)),
            mesh=self.mesh, shard=self._shard,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"Learner of {self.report.summary()}"

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    @property
    def params(self) -> PyTree:
        """The parameters that the model was compiled with."""
        return self._initial()[0]

    @property
    def hidden(self) -> PyTree:
        """The states that the model was compiled with."""
        return self._initial()[1]

    @property
    def shardings(self) -> Shardings:
        """Trees of `NamedSharding` for parameters, hidden state, trace, and inputs of a sequence."""
        if self._meshed is None:
            raise ArgumentError(
                "`shardings` needs a model compiled for many devices: `etrax.compile(..., mesh=, shard=)`."
            )
        return self._meshed.shardings

    @cached_property
    def graph(self) -> Any:
        """The `ETraceGraph`: groups, relations, diagnostics."""
        return self._make_graph()

    @cached_property
    def report(self) -> Any:
        """What each parameter's gradient is worth under this rule, and why."""
        more = () if self._meshed is None else self._meshed.notes()
        return self._make_report(self.facts, self.rule, self.program.transport.nbytes, self.trace_dtype, more)

    def init(self, params: PyTree = None, hidden: PyTree = None, learned: PyTree = None) -> LearnerState:
        """The state before the first step; parameters and hidden state default to those of the compiled model.

        `learned` is what `learner.learned(state)` gave at the end of another sequence.
        """
        program, transport = self.program, self.program.transport
        if params is not None:
            self._refuse_swapped(params, hidden)
            program.params(params)
        if hidden is None and any(isinstance(a, jax.ShapeDtypeStruct) for a in jax.tree.leaves(self.hidden)):
            raise ArgumentError(
                "the model was compiled with shapes only, without values for `hidden`: pass them, "
                "`learner.init(params, hidden)`."
            )
        hidden = self.hidden if hidden is None else hidden
        # Arrays of its own: a state may be given away.
        states = jax.tree.map(staged_copy, program.states(hidden))
        trace = program.new_trace() if self._meshed is None else self._meshed.init_trace()
        if learned is not None:
            check_like("learned", learned, transport.lasting.learned(trace), "`learner.learned(state)`")
            trace = transport.lasting.renew(trace, jax.tree.map(staged_copy, learned))
        hidden = program.hidden_of(states)
        if self._meshed is not None:
            state = LearnerState(hidden, trace, jnp.zeros((), jnp.int32))
            return self._meshed.place(state=state)["state"]
        return LearnerState(hidden, trace, jnp.zeros((), jnp.int32))

    def _refuse_swapped(self, params: PyTree, hidden: PyTree) -> None:
        given, own = map(jax.tree.structure, (params, hidden)), map(jax.tree.structure, (self.hidden, self.params))
        if hidden is not None and (trees := tuple(own)) == tuple(given) and trees[0] != trees[1]:
            raise ArgumentError("`params` and `hidden` are swapped: pass the parameters first, then the hidden state.")

    def learned(self, state: LearnerState) -> PyTree:
        """What outlives a sequence besides parameters: matrices that a rule trains, its random key; () for most."""
        self.program.check_state(state, shapes=False)
        return self.program.transport.lasting.learned(state.trace)

    def step(self, params: PyTree, state: LearnerState, *inputs: PyTree) -> tuple[LearnerState, PyTree]:
        """Evolve hidden state and trace by one step; no gradient."""
        program = self.program
        program.check_both(params, state)
        program.params(params)  # checks them
        x, states = program.inputs_of_step(inputs), program.states(state.hidden)
        state = LearnerState(program.hidden_of(states), state.trace, state.step)
        state, outs = self._called(self._evolve, params=params, state=state, inputs=x)
        self._raise_if_not_finite(state)
        return state, program.output_of(outs)

    def _called(self, run: Callable[..., PyTree], **given: PyTree) -> PyTree:
        """`run` of these arguments, on a mesh of arguments that lie where they belong."""
        if self._meshed is None:
            return run(*given.values())
        place = self._meshed.place

        def placed(*args: PyTree) -> PyTree:
            return run(*place(**dict(zip(given, args, strict=True))).values())

        return self._meshed.called(placed, *given.values())

    def _on_mesh(self, run: Callable[..., dict[str, PyTree]]) -> Callable[..., list[PyTree]]:
        """A function whose results, by name, lie on the mesh where they belong, if there is one."""
        if self._meshed is None:
            return lambda *args: list(run(*args).values())
        on_mesh = self._meshed

        def placed(*args: PyTree) -> list[PyTree]:
            with on_mesh.compiling():
                return list(on_mesh.place(**run(*args)).values())

        return placed

    def _plain_evolve(self, params: PyTree, state: LearnerState, inputs: list[jax.Array]) -> dict[str, PyTree]:
        facts, program = self.facts, self.program
        params, state, inputs = self.guard((params, state, inputs))
        p, xs = program.params(params), [x[None] for x in inputs]
        states, w = program.states(state.hidden), program.prepared(p)
        end, trace, outs = evolve(facts, program.transport, p, w, states, state.trace, xs)
        new = LearnerState(program.hidden_of(end), trace, count_on(state.step, 1))
        return {"state": new, "outputs": [o[0] for o in outs]}

    def check(self, state: LearnerState) -> None:
        """Raise `NonFiniteError` if NaN or infinity appeared on the way to this state, naming the step and where.

        For a model compiled with `check_finite=True`. Outside `jit` the other functions do this by themselves.
        """
        if not self.check_finite:
            raise ArgumentError("`check` needs a model that was compiled with `check_finite=True`.")
        self.program.check_state(state, shapes=False)
        raise_if_broken(self.facts, state.trace)

    def plain_step(self, params: PyTree, hidden: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
        """The model's own step over this learner's trees, with nothing opened or cut: for oracles and inference."""
        program = self.program
        outs = self.facts.step.run([*program.params(params), *program.states(hidden), *program.inputs_of_step(inputs)])
        n = len(self.facts.states)
        return program.hidden_of(outs[:n]), program.output_of(outs[n:])

    def memory(
        self, window: int, *, steps: int | None = None, batch: int | None = None, donate: bool = False
    ) -> Memory:
        """Bytes that a gradient over `steps` steps (by default one window) takes, before anything is allocated.

        `batch` asks for another batch size than that of the compiled model, `donate` for a state that is used up.

        >>> import etrax, jax.numpy as jnp
        >>> step = lambda w, h, x: (jnp.tanh(h + x @ w),) * 2
        >>> x, w, h = jnp.ones((8, 3)), jnp.ones((3, 4)), jnp.zeros((8, 4))
        >>> learner = etrax.compile(step, "d_rtrl", x, params=w, hidden=h)
        >>> learner.memory(window=16).trace == 8 * 3 * 4 * 4  # samples, inputs, outputs, bytes
        True
        """
        steps = None if steps is None else check_whole("steps", steps, "steps")
        check_window(window)
        check_flag("donate", donate)
        if batch is not None:
            check_whole("batch", batch, "samples")
            if self._at_batch is None:
                raise ArgumentError("`memory` takes a `batch` only of a model that `etrax.compile` made.")
            return self._at_batch(batch).memory(window, steps=steps, donate=donate)
        return predict(self.program, window, window if steps is None else steps, donate, self._meshed)

    def value_and_grad(
        self, loss_fn: LossFunction, window: Window, reduction: str = "mean", *, donate: bool = False
    ) -> Callable[..., tuple[tuple[jax.Array, PyTree], LearnerState]]:
        """`f(params, state, inputs, targets, mask=None) -> ((loss, grads), state)` over a sequence cut into windows.

        The loss is the mean of `loss_fn(output, target)` over the steps, weighed by the mask if there is one;
        `reduction="sum"` adds them up. Where the mask is zero, targets and inputs may be NaN: the loss is not looked
        at, and NaN of an input is read as zero, since hidden state and trace evolve there too. `window="auto"` takes 64
        steps, more where the trace is larger than the buffers of so many steps (moving it once a window would take most
        of the time), fewer where the memory budget asks for it; `f.window` says which. With `donate=True` the given
        state is used up: its trace is moved in its place, and there is one less in memory. Asked again with the same
        loss and options, it returns the same function: nothing is compiled twice.
        """
        check_flag("donate", donate)
        losses, k = Losses(self.facts.step, loss_fn, reduction, self.program.decode), self._window(window)
        return self._gradient_of(losses, k, donate)

    def _new_gradient(self, losses: Losses, k: int, donate: bool) -> Callable[..., PyTree]:
        program = self.program
        self._new_losses.tell("value_and_grad", losses.loss_fn, (losses.reduction, k, donate))

        @partial(jax.jit, donate_argnums=1 if donate else ())
        @self._on_mesh
        def run(params: PyTree, state: LearnerState, inputs: PyTree, targets: PyTree, mask: jax.Array | None) -> PyTree:
            params, state, inputs = self.guard((params, state, inputs))
            given = program.arguments(params, state.hidden, inputs, targets, mask, losses)
            loss, grads, end, trace = run_sequence(program, given, state.trace, targets, losses, k)
            steps = steps_of(given.inputs, (targets, given.weight))
            state = LearnerState(program.hidden_of(end), trace, count_on(state.step, steps))
            return {"loss": loss, "grads": grads, "state": state}

        def value_and_grad(
            params: PyTree, state: LearnerState, inputs: PyTree, targets: PyTree = None, mask: jax.Array | None = None
        ) -> tuple[tuple[jax.Array, PyTree], LearnerState]:
            program.check_given(params, state, inputs, targets, mask)
            self._check_devices(params=params, state=state, inputs=inputs, targets=targets, mask=mask)
            self.warn(inputs, k)
            given = {"params": params, "state": state, "inputs": inputs, "targets": targets, "mask": mask}
            loss, grads, state = self._called(run, **given)
            self._raise_if_not_finite(state, loss, grads)
            return (loss, grads), state

        return _with_window(value_and_grad, k)

    def train(
        self, optimizer: Optimizer, loss_fn: LossFunction, window: Window, reduction: str = "mean", *,
        donate: bool = False,
    ) -> Callable[..., tuple[PyTree, PyTree, LearnerState, jax.Array]]:  # fmt: skip
        """`f(params, opt_state, state, inputs, targets, mask=None) -> (params, opt_state, state, losses)`.

        Parameters are updated after every window by an optax optimizer; `losses` holds one loss per window, the
        mean of its steps or their sum, as `reduction` says. With `donate=True` the given state is used up, see
        `value_and_grad`.
        """
        check_optimizer(optimizer)
        check_flag("donate", donate)
        losses, k = Losses(self.facts.step, loss_fn, reduction, self.program.decode), self._window(window)
        return self._train_by(optimizer, losses, k, donate)

    def _new_train(self, optimizer: Optimizer, losses: Losses, k: int, donate: bool) -> Callable[..., PyTree]:
        program = self.program
        self._new_losses.tell("train", losses.loss_fn, (losses.reduction, k, donate, optimizer))

        @partial(jax.jit, donate_argnums=2 if donate else ())
        @self._on_mesh
        def run(
            params: PyTree, opt_state: PyTree, state: LearnerState, inputs: PyTree, targets: PyTree,
            mask: jax.Array | None,
        ) -> PyTree:  # fmt: skip
            params, opt_state, state, inputs = self.guard((params, opt_state, state, inputs))
            given = program.arguments(params, state.hidden, inputs, targets, mask, losses)
            check_opt_state(optimizer, params, opt_state)
            start = params, opt_state, state.trace
            ends, found, _ = train_sequence(program, optimizer, given, start, targets, losses, k, self.guard)
            params, opt_state, end, trace = ends
            steps = steps_of(given.inputs, (targets, given.weight))
            state = LearnerState(program.hidden_of(end), trace, count_on(state.step, steps))
            return {"params": params, "opt_state": opt_state, "state": state, "loss": found}

        def train(
            params: PyTree, opt_state: PyTree, state: LearnerState, inputs: PyTree, targets: PyTree = None,
            mask: jax.Array | None = None,
        ) -> tuple[PyTree, PyTree, LearnerState, jax.Array]:  # fmt: skip
            if isinstance(opt_state, LearnerState) and not isinstance(state, LearnerState):
                raise ArgumentTypeError("`opt_state` and `state` are swapped: the optimizer's state is the second.")
            program.check_given(params, state, inputs, targets, mask)
            check_arrays("opt_state", opt_state)
            given = {"params": params, "opt_state": opt_state, "state": state, "inputs": inputs}
            given |= {"targets": targets, "mask": mask}
            self._check_devices(**given)
            self.warn(inputs, k)
            params, opt_state, state, found = self._called(run, **given)
            self._raise_if_not_finite(state, found)
            return params, opt_state, state, found

        return _with_window(train, k)

    def online(
        self, optimizer: Optimizer, loss_fn: LossFunction, window: int = 1, params: PyTree = None,
        state: LearnerState | None = None, *, donate: bool = False,
    ) -> Online:  # fmt: skip
        """A stream for a Python loop: `feed(x, y)` one sample at a time; updates after every window.

        A call that fails leaves the stream as it was. `donate=True` gives that up for memory: the trace is moved in
        its place.
        """
        return Online(self, optimizer, loss_fn, window, params, state, donate)

    def export(
        self, path: str | os.PathLike[str], optimizer: Optimizer, loss_fn: LossFunction, window: int = 1, *,
        target: PyTree = None, platforms: Sequence[str] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Write the whole update as one file, which `etrax.load` runs without the model's code; returns its manifest.

        `target` is an example of the target of one step, by default one like the output. `platforms` names those that
        the program is for (`("cpu", "cuda")`), by default the one it is exported on.

        >>> import etrax, jax.numpy as jnp, optax, tempfile
        >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
        >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
        >>> optimizer, loss = optax.sgd(0.1), lambda o, y: ((o - y) ** 2).mean()
        >>> file = tempfile.mktemp()
        >>> manifest = learner.export(file, optimizer, loss)
        >>> update = etrax.load(file)
        >>> params, opt_state, state = learner.params, optimizer.init(learner.params), learner.init()
        >>> params, opt_state, state, loss, output = update(params, opt_state, state, jnp.ones(3), jnp.zeros(4))
        >>> int(state.step), output.shape
        (1, (4,))
        """
        return save_artifact(self, path, optimizer, loss_fn, window, target, platforms)

    def warn(self, inputs: PyTree, window: int) -> None:
        """What the rule has to say of the first sequence, and of the first one with windows that are too short."""
        leaves = jax.tree.leaves(inputs)
        if not self._warned and is_concrete(leaves):
            self._warned = True
            for text in self.rule.warns(self.facts, leaves):
                warnings.warn(text, RuleWarning, stacklevel=3)
        if not self._warned_of_window:
            steps = [a.shape[0] for a in leaves if getattr(a, "shape", ())]
            text = without_credit(self.facts, self.rule, min([window, *steps]))
            if text:
                self._warned_of_window = True
                warnings.warn(text, RuleWarning, stacklevel=3)

    def _check_devices(self, **given: PyTree) -> None:
        if self._meshed is not None:
            self._meshed.check_devices(given)

    def place(self, params: PyTree, opt_state: PyTree = ()) -> tuple[PyTree, PyTree]:
        """Parameters and the state of their optimizer on the devices of the mesh, if there is one."""
        if self._meshed is None:
            return params, opt_state
        return tuple(self._meshed.place(params=params, opt_state=opt_state).values())  # type: ignore[return-value]

    def place_batch(self, inputs: PyTree, targets: PyTree, mask: np.ndarray, samples: np.ndarray) -> PyTree:
        """A batch on the devices of the mesh: `samples` of inputs and targets (time, sample, …), and their mask (T, B).

        Each process reads only the samples that its own devices need.
        """
        if self._meshed is None:
            raise ArgumentError(f"`place_batch` {_NEEDS_MESH}")
        return place_batch(self._meshed, self.program.as_tuple(inputs), targets, mask, samples)

    def _window(self, window: Window) -> int:
        if not isinstance(window, str) or window != "auto":
            return check_window(window)
        return fitting_window(self.program, default_budget() if self._budget is None else self._budget)

    def _raise_if_not_finite(self, state: LearnerState, loss: jax.Array | float = 0.0, grads: PyTree = None) -> None:
        """Nothing unless asked for, and nothing inside a transformation, where there are no numbers yet."""
        if self.check_finite and is_concrete((state, loss, grads)):
            self.check(state)
            raise_if_bad_gradient(self.facts, loss, grads, int(np.max(jax.device_get(state.step))) - 1)


def _for_mesh(init: Callable[[], PyTree], mesh: Mesh) -> Callable[[], PyTree]:
    """`init` of a transport whose program runs on a mesh: the form of a trace depends on what it is compiled for."""

    def on_mesh() -> PyTree:
        with compiling_for(meshed_machine(mesh)):
            return init()

    return on_mesh


def _with_window(function: Callable[..., PyTree], window: int) -> Callable[..., PyTree]:
    """The function says how many steps its windows have."""
    function.window = window  # type: ignore[attr-defined]
    return function


def check_learner(learner: object) -> None:
    if not isinstance(learner, Learner):
        inner = "its `.learner`" if isinstance(getattr(learner, "learner", None), Learner) else ""
        raise ArgumentTypeError(
            f"`learner` is a {type(learner).__name__}; pass {inner or 'what `etrax.compile` returns'}."
        )
