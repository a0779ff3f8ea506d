"""The learner: a compiled model and a rule, as pure functions over one `LearnerState`."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .._arguments import check_flag, check_whole, shown_by_treescope
from .._compat import is_concrete, staged_copy, transfers_meant
from .._errors import ArgumentError, ArgumentTypeError, NotSupportedError
from ..compiler.ir import Bound, LossFunction, PyTree
from ..rules import Rule, as_rule
from ._checks import Optimizer, check_optimizer, check_remat, check_weights, check_window
from ._choice import projected, resolved
from ._devices import Devices, OneDevice, on_mesh
from ._finite import raise_if_bad_gradient, raise_if_bad_update, raise_if_broken
from ._functions import Gradient, Train, gradient_function, step_function, train_function
from ._memory import Memory, default_budget, fitting_window
from ._model import Model
from ._online import Online
from ._options import Options
from ._program import LearnerState, Program, check_like, register_for_export
from ._resets import Resets
from ._sequence import Losses
from ._warnings import FirstWarnings, NewLosses
from ._watch import watched

if TYPE_CHECKING:
    from jax.sharding import Mesh

Window = int | Literal["auto"]
_T = TypeVar("_T")


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

    def __init__(self, model: Model, rule: Rule, options: Options):
        rule = resolved(model, rule, options)
        self.facts = facts = rule.facts_for(model.facts)
        self.model, self.rule, self.options = model, rule, options
        transport = rule.transport(facts, None, options.trace_dtype)
        transport = watched(facts, transport) if options.check_finite else transport
        bound = model.bound
        program = Program(
            facts, transport, str(rule), rule.frozen(facts), self.hidden, bound.encode, bound.decode_output,
            by_call=projected(model, rule, options, lambda member: Learner(model, member, options).program),
        )  # fmt: skip
        self.devices: Devices = OneDevice(program) if options.mesh is None else on_mesh(program, rule, options)
        self.program = program = self.devices.program
        check_weights(facts.step, lambda params: program.weights(params).weight, facts.sites, program.frozen)
        register_for_export(jax.eval_shape(lambda: LearnerState(None, program.transport.init(), jnp.zeros(()))))
        self._once = lru_cache(96)(lambda make, *key: make(self, *key))
        self.resets, self.warn, self.new_losses = Resets(self), FirstWarnings(facts, rule), NewLosses()
        self._step = step_function(self)

    def with_rule(self, rule: Rule | str) -> Learner:
        """This model under another rule; nothing is traced or analysed again."""
        return Learner(self.model, as_rule(rule), self.options)

    def with_model(self, model: Model) -> Learner:
        """This rule, with its options, for another form of the model."""
        return Learner(model, self.rule, self.options)

    def once(self, make: Callable[..., _T], *key: Hashable) -> _T:
        """`make(learner, *key)`, made the first time that it is asked for.

        There is one compiled function for each loss, optimizer and set of options, however often users ask for it.
        """
        return self._once(make, *key)

    def __repr__(self) -> str:
        return f"Learner of {self.report.summary()}"

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    def __treescope_repr__(self, path: str | None, subtree_renderer: Callable[..., object]) -> object:
        """What treescope shows: parameters, states and the report as trees to open."""
        return shown_by_treescope(self, ("params", "hidden", "report"), path, subtree_renderer)

    @property
    def params(self) -> PyTree:
        """The parameters that the model was compiled with."""
        return self.model.initial()[0]

    @property
    def hidden(self) -> PyTree:
        """The hidden state that the model was compiled with."""
        return self.model.initial()[1]

    @property
    def bound(self) -> Bound:
        """The way between the model's own values and plain arrays."""
        return self.model.bound

    @property
    def mesh(self) -> Mesh | None:
        """The devices that the model was compiled for, if there are several."""
        return self.options.mesh

    @property
    def shardings(self) -> PyTree:
        """Trees of `NamedSharding` for parameters, hidden state, trace, and inputs of a sequence."""
        return self.devices.shardings

    @cached_property
    def graph(self) -> Any:
        """The `ETraceGraph`: groups, relations, diagnostics."""
        from ..graph import build_graph

        return build_graph(self.bound, self.model.facts, include_hidden_perturb=True)

    @cached_property
    def report(self) -> Any:
        """How each parameter's gradient under this rule relates to BPTT's, and why."""
        from ..report import Report

        nbytes, notes = self.program.transport.nbytes, self.devices.notes()
        return Report.of(self.facts, self.rule, nbytes, self.options.trace_dtype, notes)

    def init(
        self, params: PyTree = None, hidden: PyTree = None, learned: PyTree = None, *, lanes: bool = False
    ) -> LearnerState:
        """The state before the first step; parameters and hidden state default to those of the compiled model.

        - `params`, `hidden`: by default `learner.params` and `learner.hidden`.
        - `learned`: what `learner.learned(state)` returned at the end of another sequence.
        - `lanes`: True if the trace is to have separate numbers for each lane of the batch, as after a `reset` of shape
          (T, B). A loop such as `lax.scan` needs these shapes from the start.
        """
        if check_flag("lanes", lanes) and self.facts.lanes is None:
            return self.resets.by_lane.init(params, hidden, learned)
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
        trace = self.devices.new_trace()
        if learned is not None:
            check_like("learned", learned, transport.persistent.learned(trace), "`learner.learned(state)`")
            trace = transport.persistent.renew(trace, jax.tree.map(staged_copy, learned))
        with transfers_meant():
            state = LearnerState(program.hidden_of(states), trace, jnp.zeros((), jnp.int32))
        return self.devices.place(state=state)["state"]

    def _refuse_swapped(self, params: PyTree, hidden: PyTree) -> None:
        first, second, of_params, of_hidden = map(jax.tree.structure, (params, hidden, self.params, self.hidden))
        if hidden is not None and (first, second) == (of_hidden, of_params) and of_params != of_hidden:
            raise ArgumentError("`params` and `hidden` are swapped: pass the parameters first, then the hidden state.")

    def learned(self, state: LearnerState) -> PyTree:
        """What a rule keeps from one sequence to the next: trained matrices, a random key; () for most rules."""
        self.program.check_state(state, shapes=False)
        return self.program.transport.persistent.learned(state.trace)

    def step(
        self, params: PyTree, state: LearnerState, *inputs: PyTree, reset: PyTree = None, initial: PyTree = None
    ) -> tuple[LearnerState, PyTree]:
        """Advance hidden state and trace by one step, without a gradient.

        - `inputs`: the inputs of one step.
        - `reset`: True, or a boolean for each lane (B,), restarts the stream before the step; see `value_and_grad`.
        - `initial`: the hidden state to return to; by default that of `init()`.
        """
        return self._step(params, state, inputs, reset, initial)

    def check(self, state: LearnerState) -> None:
        """Raise `NonFiniteError` if NaN or infinity appeared on the way to this state, naming the step and where.

        For a model compiled with `check_finite=True`. Outside `jit` the other functions check automatically.
        """
        if not self.options.check_finite:
            raise ArgumentError("`check` needs a model that was compiled with `check_finite=True`.")
        self.program.check_state(state, shapes=False)
        raise_if_broken(self.facts, state.trace)

    def plain_step(self, params: PyTree, hidden: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
        """The model's own step `(params, hidden, inputs) -> (hidden, output)`, without a trace: for inference."""
        program = self.program
        outs = self.facts.step.run([*program.params(params), *program.states(hidden), *program.inputs_of_step(inputs)])
        n = len(self.facts.states)
        return program.hidden_of(outs[:n]), program.output_of(outs[n:])

    def memory(
        self, window: int, *, steps: int | None = None, batch: int | None = None, donate: bool = False,
        remat: int | None = None,
    ) -> Memory:  # fmt: skip
        """The bytes that a gradient will take, computed before anything is allocated.

        - `steps`: the length of the sequence; by default one window.
        - `batch`: the batch size, if it is not that of the compiled model.
        - `window`, `donate`, `remat`: as in `value_and_grad`.

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
            other = self.with_model(self.model.at_batch(batch))
            return other.memory(window, steps=steps, donate=donate, remat=remat)
        return self.devices.memory(window, window if steps is None else steps, donate, self._remat(remat))

    def value_and_grad(
        self, loss_fn: LossFunction, window: Window, reduction: str = "mean", *, donate: bool = False,
        remat: int | None = None,
    ) -> Gradient:  # fmt: skip
        """`f(params, state, inputs, targets, mask=None, reset=None) -> ((loss, grads), state)`.

        It runs over a whole sequence, window by window, and returns the loss, its gradient (in the structure of
        `params`), and the state from which the next piece of the sequence continues.

        - `loss_fn`: `loss_fn(output, target) -> scalar`, the loss of one step.
        - `window`: the number of steps K that are differentiated together. "auto" takes 64 steps; more if the trace is
          larger than the buffers of 64 steps (updating it would otherwise take most of the time), fewer if the memory
          budget requires it. `f.window` is the number chosen.
        - `reduction`: "mean" over the steps, weighted by the mask if there is one, or "sum".
        - `donate`: True overwrites the state that is passed, so that only one trace is in memory.
        - `remat`: 64, say, stores the states every 64 steps of a window and recomputes the rest, at the cost of one
          more forward pass. The gradients are equal and take the memory of 64 steps and K/64 states, so windows may
          have thousands of steps.

        Where the mask, (T,) or (T, B), is zero, targets and inputs may be NaN: the loss is ignored, and a NaN in an
        input is read as zero, since hidden state and trace still evolve. Before a step that `reset` (T,) flags, or in
        the lanes that a `reset` (T, B) flags, hidden state and trace return to those of `learner.init()` (or to the
        hidden state `initial=`), and no gradient passes: the result is that of separate sequences.

        A second call with the same loss and options returns the same function: nothing is compiled twice.
        """
        check_flag("donate", donate)
        losses, k = Losses(self.facts.step, loss_fn, reduction, self.program.decode), self._window(window)
        return self.once(gradient_function, losses, k, donate, self._remat(remat))

    def train(
        self, optimizer: Optimizer, loss_fn: LossFunction, window: Window, reduction: str = "mean", *,
        donate: bool = False, remat: int | None = None,
    ) -> Train:  # fmt: skip
        """`f(params, opt_state, state, inputs, targets, mask=None, reset=None) -> (params, opt_state, state, losses)`.

        It runs over a whole sequence and updates the parameters after every window. `losses` has one loss per window.

        - `optimizer`: an optax optimizer.
        - `window`: the number of steps between two updates, or "auto".
        - `reduction`: whether the loss of a window is the "mean" of its steps or their "sum".
        - `loss_fn`, `donate`, `remat`: as in `value_and_grad`.
        """
        check_optimizer(optimizer)
        check_flag("donate", donate)
        losses, k = Losses(self.facts.step, loss_fn, reduction, self.program.decode), self._window(window)
        return self.once(train_function, optimizer, losses, k, donate, self._remat(remat))

    def online(
        self, optimizer: Optimizer, loss_fn: LossFunction, window: int = 1, params: PyTree = None,
        state: LearnerState | None = None, *, opt_state: PyTree = None, donate: bool = False,
    ) -> Online:  # fmt: skip
        """A stream for a Python loop: `feed(x, y)` takes one sample at a time, with an update after every window.

        - `optimizer`, `loss_fn`: as in `train`.
        - `window`: the number of samples between two updates.
        - `params`, `state`, `opt_state`: where an earlier run ended; by default the learner's parameters, a new state
          and a new optimizer state.
        - `donate`: True overwrites the trace, so that only one is in memory. Otherwise a call that fails leaves the
          stream as it was.
        """
        self.refuse_by_call("online")
        return Online(self, optimizer, loss_fn, window, params, state, opt_state, donate)

    def meter(self, loss_fn: LossFunction, window: int = 1, probes: int = 8) -> Any:
        """Measure how far this learner's gradient is from the true one, without BPTT; returns an `etrax.meter.Meter`.

        - `loss_fn`, `window`: as in `value_and_grad`.
        - `probes`: the number of random directions of each parameter along which tangents run forward in time. Each
          costs about one more forward pass.
        """
        from ..meter import meter

        return meter(self, loss_fn, window, probes)

    def correction(self) -> Any:
        """Bring traces up to date after each update, to first order; returns an `etrax.meter.Correction`.

        For states that decay by parameters alone, with one leak for each unit (LRU, S5, RTU without an activation,
        leaky integrators). For each such parameter it takes as much memory as the trace and about as much time as its
        step.
        """
        from ..meter import Correction

        return Correction(self)

    def export(
        self, path: str | os.PathLike[str], optimizer: Optimizer, loss_fn: LossFunction, window: int = 1, *,
        target: PyTree = None, platforms: Sequence[str] | None = None, reset: PyTree = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Write the whole update as one file, which `etrax.load` runs without the model's code; returns its manifest.

        - `path`: the file to write.
        - `optimizer`, `loss_fn`, `window`: as in `train`.
        - `target`: an example of the target of one step; by default one like the output.
        - `platforms`: what the program may run on, `("cpu", "cuda")`; by default the platform that exports it.
        - `reset`: an example of the reset of one step, if the program is to take resets: False, or an array with one
          for each lane, which needs states of `learner.init(lanes=True)`.

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
        from ..artifact import save_artifact

        self.refuse_by_call("export")
        return save_artifact(self, path, optimizer, loss_fn, window, target, platforms, reset)

    def refuse_by_call(self, what: str) -> None:
        """Raise for a rule whose gradient is that of a whole call, where calls are as short as a window."""
        if self.program.by_call is not None:
            raise NotSupportedError(
                f"`{what}` learns window by window, and `directional` carries nothing from one call to the next: use "
                "`learner.train` or `learner.value_and_grad` over whole sequences, or another rule."
            )

    def place(self, params: PyTree, opt_state: PyTree = ()) -> tuple[PyTree, PyTree]:
        """Parameters and the state of their optimizer on the devices of the mesh, if there is one."""
        values = self.devices.place(params=params, opt_state=opt_state)
        return values["params"], values["opt_state"]

    def place_batch(self, inputs: PyTree, targets: PyTree, mask: np.ndarray, samples: np.ndarray) -> PyTree:
        """A batch on the devices of the mesh: `samples` of inputs and targets (time, sample, …), and their mask (T, B).

        Each process reads only the samples that its own devices need.
        """
        return self.devices.place_batch(self.program.as_tuple(inputs), targets, mask, samples)

    def _window(self, window: Window) -> int:
        if not isinstance(window, str) or window != "auto":
            return check_window(window)
        budget = self.options.memory_budget
        return fitting_window(self.program, default_budget() if budget is None else budget)

    def _remat(self, remat: int | None) -> int | None:
        return check_remat(remat, self.program.transport, str(self.rule))

    def raise_if_not_finite(
        self, state: LearnerState, loss: jax.Array | float = 0.0, grads: PyTree = None, params: PyTree = None
    ) -> None:
        """Nothing unless asked for, and nothing inside a transformation, where there are no numbers yet."""
        if self.options.check_finite and is_concrete((state, loss, grads, params)):
            self.check(state)
            last = int(np.max(jax.device_get(state.step))) - 1
            raise_if_bad_gradient(self.facts, loss, grads, last)
            if params is not None:
                raise_if_bad_update(self.facts, params, last)


def check_learner(learner: object) -> None:
    if not isinstance(learner, Learner):
        inner = "its `.learner`" if isinstance(getattr(learner, "learner", None), Learner) else ""
        raise ArgumentTypeError(
            f"`learner` is a {type(learner).__name__}; pass {inner or 'what `etrax.compile` returns'}."
        )
