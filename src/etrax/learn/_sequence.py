"""A sequence cut into windows: scan over whole windows, then what is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from .._arguments import check_function, short
from .._compat import common_dtype, shape_struct
from .._errors import ArgumentError, EtraxError
from .._machine import machine
from ..compiler.ir import LossFunction, PyTree, Role, Step, describe, explain, explained
from ..runtime import Rows, WindowResult, WindowRun, add_rows, live_sites, row_size, run_window
from ._checks import Optimizer
from ._masks import differentiated_where, weighed, without_masked_nans
from ._pieces import Pieces, run_in_pieces
from ._project import updated
from ._surrogates import without_derivatives

if TYPE_CHECKING:
    from ..compiler.analysis import Facts
    from ..compiler.opened import Weights
    from ._program import Arguments, Program

Carry = TypeVar("Carry")


class Losses:
    """The loss of one step, weighted by the mask.

    With a mask of shape (T, B) the loss function is applied to each sample apart (with a batch axis of one).
    `keep_outputs` asks for the leaves of every step's output beside its loss.
    """

    def __init__(
        self, step: Step, loss_fn: LossFunction, reduction: str, decode: Callable[[PyTree], PyTree],
        keep_outputs: bool = False,
    ):  # fmt: skip
        check_function("loss_fn", loss_fn, "(output, target)")
        if not isinstance(reduction, str) or reduction not in ("mean", "sum"):
            raise ArgumentError(f"`reduction` is {short(reduction)}; expected 'mean' or 'sum'.")
        self.step, self.loss_fn, self.reduction, self.decode = step, loss_fn, reduction, decode
        self.keep_outputs = keep_outputs
        try:
            hash(loss_fn)
            self._key: tuple[object, ...] = (loss_fn, reduction, keep_outputs)
        except TypeError:  # an object that can be called but not hashed is equal to itself alone
            self._key = (id(loss_fn), reduction, keep_outputs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Losses) and self.step is other.step and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def check(self, targets: PyTree, weight: jax.Array | None) -> None:
        """The loss must be a real scalar, and a (T, B) mask must fit the outputs."""
        output = jax.tree.unflatten(self.step.trees[Role.OUTPUT], [leaf.aval for leaf in self.step.select(Role.OUTPUT)])
        target = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), jax.tree.map(shape_struct, targets))
        if weight is not None and weight.ndim == 2:
            for leaf in self.step.select(Role.OUTPUT):
                if not leaf.aval.shape or leaf.aval.shape[0] != weight.shape[1]:
                    raise ArgumentError(
                        f"`mask` has shape {list(weight.shape)}, one weight per step and sample, but the output has "
                        f"shape {list(leaf.aval.shape)}: its first axis must be the batch."
                    )
        loss = self._of_one_step(output, target)
        plain = isinstance(loss, jax.ShapeDtypeStruct)
        if not plain or loss.shape != () or not jnp.issubdtype(loss.dtype, jnp.floating):
            shown = f"{loss.dtype}{list(loss.shape)}" if plain else describe(loss, "its result")
            unit = getattr(loss, "unit", None)
            more = ". Take a mean or a sum" if unit is None else ": divide it by its unit"
            raise ArgumentError(f"`loss_fn` must return one real number per step, it returned {shown}{more}.")

    def takes_no_target(self) -> bool:
        """Whether the loss is one of the output alone, which takes None as its target."""
        output = jax.tree.unflatten(self.step.trees[Role.OUTPUT], [leaf.aval for leaf in self.step.select(Role.OUTPUT)])
        try:
            jax.eval_shape(lambda o: self.loss_fn(self.decode(o), None), output)
        except Exception:  # the user's code may raise anything
            return False
        return True

    def _of_one_step(self, output: PyTree, target: PyTree) -> PyTree:
        try:
            return jax.eval_shape(lambda o, t: self.loss_fn(self.decode(o), t), output, target)
        except EtraxError:
            raise
        except Exception as error:  # the user's code may raise anything
            text = explain("`loss_fn`", error, {"output": self.decode(output), "target": target})
            more = "" if jax.tree.leaves(target) else " (`targets` was not given)"
            text += f"{more}\nIt is called at every step, as `loss_fn(output, target)`, without the time axis."
            raise explained(ArgumentError, error, text) from error

    def dtype(self, step_data: PyTree) -> jnp.dtype:
        """The type of the weighted loss of one step."""
        outs = [leaf.aval for leaf in self.step.select(Role.OUTPUT)]
        return jax.eval_shape(lambda o, a: self(o, jax.tree.map(lambda v: v[0], a))[0], outs, step_data).dtype

    def __call__(self, outs: list[jax.Array], step_data: PyTree) -> tuple[jax.Array, list[jax.Array]]:
        target, weight = step_data
        output, outputs = self.output(outs), outs if self.keep_outputs else []
        if weight is None:
            return self.loss_fn(output, target), outputs
        output, target = differentiated_where(weight != 0, (output, target))
        if weight.ndim == 0:
            return weighed(self.loss_fn(output, target), weight), outputs
        each = jax.vmap(lambda o, t: self.loss_fn(*jax.tree.map(lambda a: a[None], (o, t))))(output, target)
        return weighed(each, weight).sum(), outputs

    def output(self, outs: list[jax.Array]) -> PyTree:
        """The model's own output, with its units, from its leaves."""
        return self.decode(jax.tree.unflatten(self.step.trees[Role.OUTPUT], outs))

    def read(self, f: Callable[[PyTree, PyTree], PyTree], outs: list[jax.Array], step_data: PyTree) -> PyTree:
        """What another function of output and target gives."""
        return f(self.output(outs), step_data[0])

    def whole(self, loss: jax.Array) -> jax.Array:
        return loss

    def total(self, step_data: PyTree, steps: int) -> jax.Array | int:
        """What the summed loss is divided by; 1 where every step is masked."""
        if self.reduction == "sum":
            return 1
        weight = step_data[1]
        if weight is None:
            return steps
        sum_of_weights = weight.sum()
        return jnp.where(sum_of_weights == 0, 1, sum_of_weights)

    def seen(self, step_data: PyTree) -> jax.Array:
        """Whether a step of a window is not masked."""
        return (step_data[1] != 0).any()


def steps_of(inputs: list[jax.Array], step_data: PyTree) -> int:
    """The number of steps: of the inputs, or of the targets and mask where there are none."""
    return jax.tree.leaves((inputs, step_data))[0].shape[0]


class _Span(NamedTuple):
    """So many steps of a sequence, from one that only the running program may know; read where they are."""

    xs: PyTree
    start: jax.Array | int
    steps: int

    def read(self, offset: jax.Array | int, steps: int) -> PyTree:
        """Data of some of the steps."""
        start = self.start + offset
        if isinstance(start, int):
            return jax.tree.map(lambda a: a[start : start + steps], self.xs)
        return jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, start, steps), self.xs)

    @property
    def step_data(self) -> PyTree:
        """Targets and mask of all steps."""
        return self.read(0, self.steps)[1]


def _run_span(program: Program, span: _Span, run: WindowRun, remat: int | None) -> WindowResult:
    """A window over a span of steps, in pieces of `remat` steps if it is longer than that."""

    def read(offset: jax.Array | int, steps: int) -> PyTree:
        x, step_data, reset = span.read(offset, steps)
        return without_masked_nans(x, step_data[1]), step_data, reset

    facts, transport = program.facts, program.transport
    if remat is not None and remat < span.steps:
        return run_in_pieces(facts, transport, run, Pieces(read, span.steps, remat))
    x, step_data, reset = read(0, span.steps)
    return run_window(facts, transport, run._replace(inputs=x, step_data=step_data, resets=reset))


def _over_windows(
    body: Callable[[Carry, _Span], tuple[Carry, PyTree]], carry: Carry, xs: PyTree, length: int, k: int
) -> tuple[Carry, list[PyTree]]:
    """Scan over whole windows, each read where it is, then run the shorter last one."""
    pieces = []

    def one_window(counted: tuple[Carry, jax.Array], _: None) -> tuple[tuple[Carry, jax.Array], PyTree]:
        carry, start = counted
        carry, y = body(carry, _Span(xs, start, k))
        return (carry, start + k), y

    if length // k:
        (carry, _), ys = lax.scan(one_window, (carry, jnp.zeros((), jnp.int32)), None, length // k)
        pieces.append(ys)
    if length % k:
        carry, y = body(carry, _Span(xs, length // k * k, length % k))
        pieces.append(jax.tree.map(lambda a: a[None], y))
    return carry, pieces


def run_sequence(
    program: Program, arguments: Arguments, trace: PyTree, targets: PyTree, losses: Losses, k: int,
    remat: int | None = None,
) -> tuple[jax.Array, PyTree, list[jax.Array], PyTree]:  # fmt: skip
    """Loss, gradients of the parameters, states and trace at the end of a sequence.

    Weights are computed once, and their gradients turned into those of the parameters once. In windows that are longer
    than `remat` steps, states are stored every so many steps and the rest is computed again.
    """
    step_data = targets, arguments.weight
    length = steps_of(arguments.inputs, (step_data, arguments.reset))
    w = program.with_kernels(arguments.params)
    scale = losses.total(step_data, length)
    loss_weight = 1 / jnp.asarray(scale, losses.dtype(step_data))  # as fine as the loss, however coarse a mask may be

    many = _joined_windows(program.facts, w, length // k, k) if remat is None or remat >= k else _Joined()

    def one(carry: PyTree, span: _Span) -> tuple[PyTree, Mapping[int, Rows]]:
        states, trace, total, grads = carry
        run = WindowRun(
            arguments.params, w, states, trace, (), (), losses, loss_weight, grads_before=grads,
            initial=arguments.initial, by_rows=many.by_rows if span.steps == k else frozenset(),
        )  # fmt: skip
        out = _run_span(program, span, run, remat)
        return (out.states, program.place_trace(out.trace), total + out.loss, out.grads), out.rows

    def body(carry: PyTree, span: _Span) -> tuple[PyTree, tuple[()]]:
        if span.steps <= k:
            return one(carry, span)[0], ()
        starts = span.start + k * jnp.arange(many.windows, dtype=jnp.int32)
        (*moved, grads), rows = lax.scan(lambda c, at: one(c, _Span(span.xs, at, k)), carry, starts)
        return (*moved, add_rows(program.facts, w, grads, rows)), ()

    grads = _no_grads(program, w)
    start = arguments.states, trace, jnp.zeros((), losses.dtype(step_data)), grads
    xs = (arguments.inputs, step_data, arguments.reset)
    (states, trace, total, grads), _ = _over_windows(body, start, xs, length, k * many.windows)
    return total / scale, program.param_grads(arguments.params, grads), states, trace


class _Joined(NamedTuple):
    """How many windows have their gradients added up at once, and the sites of which this is one product."""

    windows: int = 1
    by_rows: frozenset[int] = frozenset()


def _joined_windows(facts: Facts, w: Weights, windows: int, k: int) -> _Joined:
    """Windows in equal parts, as large as pays, and the sites whose rows in a part are smaller than their gradient."""
    for n in range(min(machine().windows_together, windows), 1, -1):
        by_rows = {j for j in live_sites(facts) if n * k * row_size(facts, j) <= w.weight[j].size}
        if windows % n == 0 and by_rows:
            return _Joined(n, frozenset(by_rows))
    return _Joined()


def _no_grads(program: Program, w: Weights) -> dict[int, jax.Array]:
    """Zeros to which gradients of the weights are added, over windows or pieces of one, in at least float32."""
    sites = live_sites(program.facts)
    return {j: jnp.zeros(w.weight[j].shape, common_dtype(w.weight[j].dtype, jnp.float32)) for j in sites}


def train_sequence(
    program: Program, optimizer: Optimizer, arguments: Arguments, start: PyTree, targets: PyTree, losses: Losses,
    k: int, remat: int | None = None,
) -> tuple[PyTree, jax.Array, list[jax.Array]]:  # fmt: skip
    """Update the parameters after every window; a fully masked window leaves them and the optimizer as they are.

    `start` holds parameters, optimizer and trace. The answer: parameters, optimizer, states and trace; losses; the
    outputs of all steps, if `losses` keeps them.
    """
    facts, step_data = program.facts, (targets, arguments.weight)

    def body(carry: PyTree, span: _Span) -> tuple[PyTree, tuple[jax.Array, list[jax.Array]]]:
        params, opt_state, states, trace = carry
        window_data = span.step_data
        # Those of all windows but the first depend on targets, mask, and whatever loss and optimizer close over.
        params = without_derivatives(facts.step, params)
        p = program.params(params)
        w = program.with_kernels(p)
        scale = losses.total(window_data, span.steps)
        loss_weight = 1 / jnp.asarray(scale, losses.dtype(window_data))
        run = WindowRun(p, w, states, trace, (), (), losses, loss_weight, initial=arguments.initial)
        if remat is not None and remat < span.steps:
            run = run._replace(grads_before=_no_grads(program, w))
        out = _run_span(program, span, run, remat)
        loss, grads = out.loss / scale, program.param_grads(p, out.grads)
        new, new_opt = _updated_if_seen(optimizer, params, opt_state, loss, grads, losses, window_data)
        return (new, new_opt, out.states, program.place_trace(out.trace)), (loss, out.extras)

    params, opt_state, trace = start
    carry = (jax.tree.map(jnp.asarray, params), opt_state, arguments.states, trace)
    xs = (arguments.inputs, step_data, arguments.reset)
    carry, pieces = _over_windows(body, carry, xs, steps_of(arguments.inputs, xs), k)
    outputs = [jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), o) for _, o in pieces]
    return carry, jnp.concatenate([loss for loss, _ in pieces]), jax.tree.map(lambda *a: jnp.concatenate(a), *outputs)


def train_call(
    program: Program,
    optimizer: Optimizer,
    arguments: Arguments,
    start: PyTree,
    targets: PyTree,
    losses: Losses,
    k: int,
    remat: int | None = None,
) -> tuple[PyTree, jax.Array, list[jax.Array]]:
    """Train under a rule whose gradient is that of a whole call: one update at its end, and one loss."""
    params, opt_state, trace = start
    params = jax.tree.map(jnp.asarray, params)
    loss, grads, states, trace = program.gradient(arguments, trace, targets, losses, k, remat)
    data = (targets, arguments.weight)
    params, opt_state = _updated_if_seen(optimizer, params, opt_state, loss, grads, losses, data)
    return (params, opt_state, states, trace), loss[None], []


def _updated_if_seen(
    optimizer: Optimizer, params: PyTree, opt_state: PyTree, loss: jax.Array, grads: PyTree, losses: Losses,
    step_data: PyTree,
) -> tuple[PyTree, PyTree]:  # fmt: skip
    """Parameters and optimizer after an update; as they were if every step is masked."""
    new, new_opt = updated(optimizer, loss, grads, opt_state, params)
    if step_data[1] is None:
        return new, new_opt
    counts = losses.seen(step_data)
    return jax.tree.map(lambda a, b: jnp.where(counts, a, b), (new, new_opt), (params, opt_state))
