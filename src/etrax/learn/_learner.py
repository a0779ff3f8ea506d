"""The learner: a compiled model and a rule, as pure functions over one `LearnerState`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._arguments import check_arrays, check_flag, check_whole, short
from .._compat import is_concrete, shape_struct, staged_copy
from .._errors import ArgumentError, ArgumentTypeError
from ..analysis import Facts
from ..engine import Transport, Weights, evolve, prepared, watched, weights
from ..ir import Role, leaves_with_paths
from ..rules import Rule, RuleWarning
from ._checks import (
    check_inputs,
    check_leaves,
    check_length,
    check_mask,
    check_opt_state,
    check_optimizer,
    check_targets,
    check_weights,
    check_window,
    describe,
)
from ._finite import raise_if_bad_gradient, raise_if_broken
from ._memory import Memory, default_budget, fitting_window, predict
from ._online import Online
from ._sequence import Losses, run_sequence, steps_of, train_sequence


class LearnerState(NamedTuple):
    """What the next step needs: hidden state, trace, and the number of steps taken."""

    hidden: Any
    trace: Any
    step: Any


class Learner:
    """What `etrax.compile` returns. All methods are pure and run under `jit`, `vmap` and `scan`."""

    def __init__(
        self,
        facts: Facts,
        rule: Rule,
        initial: Callable[[], tuple[Any, Any]],
        *,
        encode: Callable[..., tuple[Any, ...]],
        decode: Callable[[Any], Any],
        graph: Callable[[], Any],
        report: Callable[..., Any],
        trace_dtype: Any = None,
        check_finite: bool = False,
        memory_budget: float | None = None,
        at_batch: Callable[[int], Learner] | None = None,
    ):
        """`encode` and `decode` lead from the model's own arguments to the step's and back (units, for one).

        `initial` gives the parameters and states of the model.
        """
        self.facts, self.rule, self._initial = facts, rule, initial
        self._encode, self._decode, self._make_graph, self._make_report = encode, decode, graph, report
        self._transport: Transport = rule.transport(facts, None, trace_dtype)
        if check_finite:
            self._transport = watched(facts, self._transport)
        self._watches, self._trace_dtype = check_finite, trace_dtype
        self._warned = False
        self._budget, self._at_batch = memory_budget, at_batch
        self._frozen = rule.frozen(facts)
        check_weights(facts.step, lambda params: self._weights(params).weight, facts.sites)
        hidden = self.hidden
        self._hidden_tree = jax.tree.structure(hidden)
        paths = [path for path, _ in leaves_with_paths(hidden)]
        # The hidden tree may hold its leaves in another order than the step (which puts other states last).
        self._order = [paths.index(leaf.path) for leaf in facts.states]

    @property
    def params(self) -> Any:
        """The parameters that the model was compiled with."""
        return self._initial()[0]

    @property
    def hidden(self) -> Any:
        """The states that the model was compiled with."""
        return self._initial()[1]

    @cached_property
    def graph(self) -> Any:
        """The `ETraceGraph`: groups, relations, diagnostics."""
        return self._make_graph()

    @cached_property
    def report(self) -> Any:
        """What each parameter's gradient is worth under this rule, and why."""
        return self._make_report(self.facts, self.rule, self._transport.nbytes, self._trace_dtype)

    def init(self, params: Any = None, hidden: Any = None, learned: Any = None) -> LearnerState:
        """The state before the first step; parameters and hidden state default to those of the compiled model.

        `learned` is what `learner.learned(state)` gave at the end of another sequence.
        """
        if params is not None:
            self._params(params)
        if hidden is None and any(isinstance(a, jax.ShapeDtypeStruct) for a in jax.tree.leaves(self.hidden)):
            raise ArgumentError(
                "the model was compiled with shapes only, without values for `hidden`: pass them, "
                "`learner.init(params, hidden)`."
            )
        hidden = self.hidden if hidden is None else hidden
        # Arrays of its own: a state may be given away.
        states = jax.tree.map(staged_copy, self._states(hidden))
        trace = self._transport.init()
        if learned is not None:
            self._check_like("learned", learned, self._transport.learned(trace), "`learner.learned(state)`")
            trace = self._transport.renew(trace, jax.tree.map(staged_copy, learned))
        return LearnerState(self._tree(states), trace, jnp.zeros((), jnp.int32))

    def learned(self, state: LearnerState) -> Any:
        """What outlives a sequence besides parameters: matrices that a rule trains, its random key; () for most."""
        self._check_state(state, shapes=False)
        return self._transport.learned(state.trace)

    def step(self, params: Any, state: LearnerState, *inputs: Any) -> tuple[LearnerState, Any]:
        """Evolve hidden state and trace by one step; no gradient."""
        self._check_both(params, state)
        step, leaves = self.facts.step, self._one_step(inputs)
        p, states = self._params(params), self._states(state.hidden)
        w = prepared(self.facts, self._weights(p))
        end, trace, outs = evolve(self.facts, self._transport, p, w, states, state.trace, [x[None] for x in leaves])
        output = self._decode(jax.tree.unflatten(step.trees[Role.OUTPUT], [o[0] for o in outs]))
        state = LearnerState(self._tree(end), trace, state.step + 1)
        self._check_finite(state)
        return state, output

    def check(self, state: LearnerState) -> None:
        """Raise `NonFiniteError` if NaN or infinity appeared on the way to this state, naming the step and where.

        For a model compiled with `check_finite=True`. Outside `jit` the other functions do this by themselves.
        """
        if not self._watches:
            raise ArgumentError("`check` needs a model that was compiled with `check_finite=True`.")
        self._check_state(state, shapes=False)
        raise_if_broken(self.facts, state.trace)

    def plain_step(self, params: Any, hidden: Any, inputs: Any) -> tuple[Any, Any]:
        """The model's own step over this learner's trees, with nothing opened or cut: for oracles and inference."""
        step = self.facts.step
        outs = step.run([*self._params(params), *self._states(hidden), *self._one_step(self._as_tuple(inputs))])
        n = len(self.facts.states)
        return self._tree(outs[:n]), self._decode(jax.tree.unflatten(step.trees[Role.OUTPUT], outs[n:]))

    def memory(
        self, window: int, *, steps: int | None = None, batch: int | None = None, donate: bool = False
    ) -> Memory:
        """Bytes that a gradient over `steps` steps (by default one window) takes, before anything is allocated.

        `batch` asks for another batch size than that of the compiled model, `donate` for a state that is used up.

        >>> import etrax, jax.numpy as jnp
        >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
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
        return predict(self, window, window if steps is None else steps, donate)

    def value_and_grad(
        self, loss_fn: Callable[[Any, Any], Any], window: int | Literal["auto"], reduction: str = "mean", *,
        donate: bool = False,
    ) -> Callable[..., Any]:  # fmt: skip
        """`f(params, state, inputs, targets, mask=None) -> ((loss, grads), state)` over a sequence cut into windows.

        `window="auto"` takes the longest of up to 64 steps that fits the memory budget; `f.window` says which. With
        `donate=True` the given state is used up: its trace is moved in its place, and there is one less in memory.
        """
        check_flag("donate", donate)
        losses, k = Losses(self.facts.step, loss_fn, reduction, self._decode), self._window(window)

        @partial(jax.jit, donate_argnums=1 if donate else ())
        def run(params: Any, state: LearnerState, inputs: Any, targets: Any, mask: Any) -> Any:
            p, states, x, weight = self._arguments(params, state, inputs, targets, mask, losses)
            along = targets, weight
            loss, grads, end, trace = run_sequence(self, p, states, state.trace, x, along, losses, k)
            grads = jax.tree.unflatten(self.facts.step.trees[Role.PARAM], grads)
            return (loss, grads), LearnerState(self._tree(end), trace, state.step + steps_of(x, along))

        def value_and_grad(params: Any, state: LearnerState, inputs: Any, targets: Any = None, mask: Any = None) -> Any:
            self._check_given(params, state, inputs, targets, mask)
            self._warn(inputs)
            (loss, grads), state = run(params, state, inputs, targets, mask)
            self._check_finite(state, loss, grads)
            return (loss, grads), state

        return _with_window(value_and_grad, k)

    def train(
        self, optimizer: Any, loss_fn: Callable[[Any, Any], Any], window: int | Literal["auto"],
        reduction: str = "mean", *, donate: bool = False,
    ) -> Callable[..., Any]:  # fmt: skip
        """`f(params, opt_state, state, inputs, targets, mask=None) -> (params, opt_state, state, losses)`.

        Parameters are updated after every window by an optax optimizer; `losses` holds one loss per window. With
        `donate=True` the given state is used up, see `value_and_grad`.
        """
        check_optimizer(optimizer)
        check_flag("donate", donate)
        losses, k = Losses(self.facts.step, loss_fn, reduction, self._decode), self._window(window)

        @partial(jax.jit, donate_argnums=2 if donate else ())
        def run(params: Any, opt_state: Any, state: LearnerState, inputs: Any, targets: Any, mask: Any) -> Any:
            _, states, x, weight = self._arguments(params, state, inputs, targets, mask, losses)
            check_opt_state(optimizer, params, opt_state)
            start, along = (params, opt_state, states, state.trace), (targets, weight)
            (params, opt_state, end, trace), found = train_sequence(self, optimizer, start, x, along, losses, k)
            return params, opt_state, LearnerState(self._tree(end), trace, state.step + steps_of(x, along)), found

        def train(
            params: Any, opt_state: Any, state: LearnerState, inputs: Any, targets: Any = None, mask: Any = None
        ) -> Any:
            self._check_given(params, state, inputs, targets, mask)
            check_arrays("opt_state", opt_state)
            self._warn(inputs)
            params, opt_state, state, found = run(params, opt_state, state, inputs, targets, mask)
            self._check_finite(state, found)
            return params, opt_state, state, found

        return _with_window(train, k)

    def online(
        self, optimizer: Any, loss_fn: Callable[[Any, Any], Any], window: int = 1, params: Any = None, state: Any = None
    ) -> Online:
        """A stream for a Python loop: `feed(x, y)` one sample at a time; updates after every window."""
        return Online(self, optimizer, loss_fn, window, params, state)

    def _arguments(self, params: Any, state: LearnerState, inputs: Any, targets: Any, mask: Any, losses: Losses) -> Any:
        x, length = check_inputs(self.facts.step, self._encode(self._as_tuple(inputs), {}, 1))
        length = check_length(length, targets, mask)
        check_targets(targets, length)
        weight = check_mask(mask, length)
        p, states = self._params(params), self._states(state.hidden)
        losses.check(targets, weight)
        return p, states, x, weight

    def _window(self, window: int | Literal["auto"]) -> int:
        if not isinstance(window, str) or window != "auto":
            return check_window(window)
        return fitting_window(self, default_budget() if self._budget is None else self._budget)

    def _warn(self, inputs: Any) -> None:
        """What the rule has to say of the first sequence, once."""
        if not self._warned and is_concrete(inputs):
            self._warned = True
            for text in self.rule.warns(self.facts, jax.tree.leaves(inputs)):
                warnings.warn(text, RuleWarning, stacklevel=3)

    def _check_finite(self, state: LearnerState, loss: Any = 0.0, grads: Any = None) -> None:
        """Nothing unless asked for, and nothing inside a transformation, where there are no numbers yet."""
        if self._watches and is_concrete((state, loss, grads)):
            self.check(state)
            raise_if_bad_gradient(self.facts, loss, grads, int(np.max(state.step)) - 1)

    def _as_tuple(self, inputs: Any) -> tuple[Any, ...]:
        """The tuple of the step's inputs; a single one may be passed bare, none as None."""
        if isinstance(inputs, tuple):
            return inputs
        return () if inputs is None and not self.facts.step.trees[Role.INPUT].children() else (inputs,)

    def _one_step(self, inputs: tuple[Any, ...]) -> list[Any]:
        step = self.facts.step
        check_arrays("inputs", inputs)
        return check_leaves("inputs", self._encode(inputs, {}), step.select(Role.INPUT), step.trees[Role.INPUT])

    def _check_given(self, params: Any, state: Any, inputs: Any, targets: Any, mask: Any) -> None:
        """What can be seen only outside `jit`, which takes arrays alone."""
        self._check_both(params, state)
        for what, tree in (("params", params), ("inputs", inputs), ("targets", targets), ("mask", mask)):
            check_arrays(what, tree)

    def _check_both(self, params: Any, state: Any) -> None:
        if isinstance(params, LearnerState) and not isinstance(state, LearnerState):
            raise ArgumentTypeError("`params` and `state` are swapped: pass the parameters first, then the state.")
        self._check_state(state)

    def _check_state(self, state: Any, shapes: bool = True) -> None:
        """Without `shapes`, of many streams at once: the state may have come out of `vmap`."""
        if not isinstance(state, LearnerState):
            found = "an array" if isinstance(state, jax.Array) else short(state)
            raise ArgumentTypeError(
                f"`state` is {found}; pass a `LearnerState`, as `learner.init()` makes it and every other function "
                "returns it."
            )
        want = jax.eval_shape(self._transport.init)
        self._check_like("state.trace", state.trace, want, f"`init` of this learner ({self.rule})", shapes)
        self._check_like("state.step", state.step, jnp.zeros((), jnp.int32), "`init`", shapes)

    def _check_like(self, what: str, got: Any, want: Any, made_by: str, shapes: bool = True) -> None:
        """The structure, shapes and dtypes that were made elsewhere."""
        check_arrays(what, got)
        a, b = jax.tree.leaves(want), jax.tree.leaves(got)
        same = jax.tree.structure(want) == jax.tree.structure(got) and all(
            p.dtype == q.dtype and (p.shape == q.shape or not shapes)
            for p, q in ((shape_struct(p), shape_struct(q)) for p, q in zip(a, b, strict=True))
        )
        if not same:
            raise ArgumentError(
                f"`{what}` is another than this learner's: it holds {describe(got, what)}, expected "
                f"{describe(want, what)}. Make it with {made_by}."
            )

    def _params(self, params: Any) -> list[Any]:
        step = self.facts.step
        return check_leaves("params", params, step.select(Role.PARAM), step.trees[Role.PARAM])

    def _states(self, hidden: Any) -> list[Any]:
        found = {path: i for i, (path, _) in enumerate(leaves_with_paths(hidden))}
        in_tree = sorted(self.facts.states, key=lambda leaf: found.get(leaf.path, 0))
        leaves = check_leaves("hidden", hidden, in_tree, self._hidden_tree)
        return [leaves[i] for i in self._order]

    def _tree(self, states: Sequence[Any]) -> Any:
        leaves: list[Any] = [None] * len(states)
        for i, value in zip(self._order, states, strict=True):
            leaves[i] = value
        return jax.tree.unflatten(self._hidden_tree, leaves)

    def _weights(self, params: Sequence[Any]) -> Weights:
        held = [lax.stop_gradient(p) if i in self._frozen else p for i, p in enumerate(params)]
        return weights(self.facts.step, self.facts.sites, held)


def _with_window(function: Callable[..., Any], window: int) -> Callable[..., Any]:
    """The function says how many steps its windows have."""
    function.window = window  # type: ignore[attr-defined]
    return function
