"""Arguments of a learner's functions, checked before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from .._arguments import _at, check_whole, struct_of
from .._compat import is_extended, is_inexact
from .._errors import ArgumentError, ArgumentTypeError, NotSupportedError
from ..compiler.analysis import Facts, lanes_meet
from ..compiler.ir import Leaf, PyTree, Step, TreeDef, describe, format_path, leaves_with_paths, units_of
from ..compiler.ir import Role as Role
from ..compiler.opened import WeightSite
from ..runtime import Transport


class Optimizer(Protocol):
    """An optimizer as optax defines it."""

    @property
    def init(self) -> Callable[[PyTree], PyTree]: ...

    @property
    def update(self) -> Callable[..., tuple[PyTree, PyTree]]: ...


def check_leaves(what: str, tree: PyTree, leaves: Sequence[Leaf], structure: TreeDef) -> list[jax.Array]:
    """The leaves of a tree that must look like those that the model was compiled with."""
    if jax.tree.structure(tree) != structure:
        why = _difference(what, tree, leaves, structure)
        remedy = f" `learner.{what}` has it." if what in ("params", "hidden") and "`learner." not in why else ""
        raise ArgumentError(f"`{what}` does not have the structure that the model was compiled with ({why}).{remedy}")
    pairs = list(zip(jax.tree.leaves(tree), leaves, strict=True))
    for value, leaf in pairs:
        _check_one(f"`{what}` at {format_path(leaf.path, what)}", value, leaf.aval.shape, leaf.aval.dtype)
    return [value if hasattr(value, "aval") else jnp.asarray(value, leaf.aval.dtype) for value, leaf in pairs]


def _difference(what: str, tree: PyTree, leaves: Sequence[Leaf], structure: TreeDef) -> str:
    if tree is None:
        return f"it is None: pass `learner.{what}`, what it was compiled with, or a tree like that"
    kind, plain = structure.node_data(), isinstance(tree, dict | list | tuple) or hasattr(tree, "shape")
    if what == "params" and kind is not None and type(tree) is not kind[0] and not plain:
        return f"it is a {type(tree).__name__}; expected its parameters alone"
    if _without_lists(tree) == structure:
        return "it holds a list of numbers where an array was: pass `jnp.asarray(...)`"
    want, got = {leaf.path for leaf in leaves}, {path for path, _ in leaves_with_paths(tree)}
    if want == got and isinstance(tree, dict) and any(isinstance(key, tuple) for key in tree):
        return f"its keys are paths, as those of `module.states()`: pass nested dictionaries, as `learner.{what}` is"
    if want == got and any(units_of(tree)):
        return f"it has units: pass plain numbers, in the units of the module's own values, as `learner.{what}` is"
    detail = []
    if want - got:
        detail.append("missing: " + ", ".join(sorted(format_path(p, what) for p in want - got)))
    if got - want:
        detail.append("not expected: " + ", ".join(sorted(format_path(p, what) for p in got - want)[:8]))
    return "; ".join(detail) or f"expected {structure}, got {jax.tree.structure(tree)}"


def _without_lists(tree: PyTree) -> TreeDef:
    """The structure of a tree whose lists stand for arrays."""
    return jax.tree.structure(jax.tree.map(lambda _: 0, tree, is_leaf=lambda x: isinstance(x, list)))


def _check_one(what: str, value: object, shape: tuple[int, ...], dtype: jnp.dtype) -> None:
    got = struct_of(what, value)
    if got.shape != tuple(shape):
        more = ""
        if what.startswith("`inputs`") and got.shape[1:] == tuple(shape):
            more = " It has one axis more: give one step at a time (`for x in xs`), or all of them to `value_and_grad`."
        elif what.startswith("`inputs`") and got.shape == tuple(shape[1:]):
            more = f" It has no batch axis: give {shape[0]} samples at once, or compile with inputs and states of one."
        raise ArgumentError(f"{what} has shape {list(got.shape)}, but the model was compiled with {list(shape)}.{more}")
    if got.dtype != dtype and (hasattr(value, "dtype") or not _holds(value, dtype)):
        raise ArgumentError(
            f"{what} is {got.dtype}, but the model was compiled with {dtype}. Cast it, or compile again."
        )


def _holds(number: object, dtype: jnp.dtype) -> bool:
    """Whether a Python number may stand for an array of a type."""
    if isinstance(number, bool | np.bool_):
        return dtype == jnp.bool_
    kinds = (
        (jnp.number,)
        if isinstance(number, int)
        else (jnp.inexact,)
        if isinstance(number, float)
        else (jnp.complexfloating,)
    )
    return any(jnp.issubdtype(dtype, kind) for kind in kinds)


def check_inputs(step: Step, inputs: PyTree) -> tuple[list[jax.Array], int | None]:
    """Input leaves with their time axis, and its length (None for a step without inputs).

    A single array may stand for a tuple of one.
    """
    structure, leaves = step.trees[Role.INPUT], step.select(Role.INPUT)
    if jax.tree.structure(inputs) != structure and jax.tree.structure((inputs,)) == structure:
        inputs = (inputs,)
    if inputs is None and not leaves:
        inputs = jax.tree.unflatten(structure, [])
    if jax.tree.structure(inputs) != structure:
        one = jax.tree.unflatten(structure, [leaf.aval for leaf in leaves])
        raise ArgumentError(
            f"`inputs` holds {describe(inputs, 'inputs')}, but the step takes {describe(one, 'inputs')} at each step. "
            "Pass the tuple of the step's inputs, each with a leading time axis (a single array may be passed bare)"
            f"{_hint(inputs)}."
        )
    arrays, length = [], None
    for leaf, value in zip(leaves, jax.tree.leaves(inputs), strict=True):
        name = f"`inputs` at {format_path(leaf.path, 'inputs')}"
        got = struct_of(name, value)
        _check_input(name, got, leaf.aval)
        if length is not None and got.shape[0] != length:
            raise ArgumentError(f"{name} has {got.shape[0]} steps, another input has {length}.")
        length = got.shape[0]
        arrays.append(jnp.asarray(value) if not hasattr(value, "aval") else value)
    if leaves and not length:
        raise ArgumentError("`inputs` holds no steps (T = 0).")
    return arrays, length


def _hint(inputs: PyTree) -> str:
    listed = isinstance(inputs, list) or (isinstance(inputs, tuple) and any(isinstance(x, list) for x in inputs))
    return "; a list of numbers is not an array: pass `jnp.asarray(...)`" if listed else ""


def _check_input(name: str, got: jax.ShapeDtypeStruct, one: jax.ShapeDtypeStruct) -> None:
    if got.shape[1:] != one.shape or not got.shape:
        sizes = ", ".join(map(str, ("T", *one.shape)))
        more = ""
        if len(got.shape) > 1 and (got.shape[0], *got.shape[2:]) == one.shape:
            more = " It looks as if the batch came first: expected time first, `jnp.swapaxes(x, 0, 1)`."
        elif got.shape == one.shape:
            more = " It looks like one step: use `learner.step`, or give it a time axis, `x[None]`."
        elif len(got.shape) == len(one.shape) + 2 and got.shape[2:] == one.shape:
            more = " It looks like a batch: compile with inputs and states of one step of a batch, `x[0]`."
        elif len(one.shape) > 1 and len(got.shape) > 1 and got.shape[2:] == one.shape[1:]:
            more = f" If that is the batch: give {one.shape[0]} samples, or compile again for {got.shape[1]}."
        raise ArgumentError(
            f"{name} has shape {list(got.shape)}; expected ({sizes}): a leading time axis, then the shape of one step "
            f"as compiled.{more}"
        )
    if got.dtype != one.dtype:
        raise ArgumentError(f"{name} is {got.dtype}, but the model was compiled with {one.dtype}. Cast it.")


def check_length(length: int | None, targets: PyTree, mask: object, reset: object = None) -> int:
    """The number of steps; targets, a mask or resets say it where the step takes no inputs."""
    if length is not None:
        return length
    for what, tree in (("targets", targets), ("mask", mask), ("reset", reset)):
        for path, leaf in leaves_with_paths(tree):
            shape = struct_of(_at(what, path), leaf).shape
            if not shape or not shape[0]:
                raise ArgumentError(
                    f"{_at(what, path)} has shape {list(shape)}; expected (T, …) with at least one step."
                )
            return shape[0]
    raise ArgumentError(
        "the step takes no inputs, so nothing says how many steps to run: pass `targets`, or a `mask` such as "
        "`jnp.ones(T)`."
    )


def check_targets(targets: PyTree, length: int) -> None:
    for path, leaf in leaves_with_paths(targets):
        shape = struct_of(_at("targets", path), leaf).shape
        if not shape or shape[0] != length:
            turned = " It looks as if the batch came first: expected time first." if shape[1:2] == (length,) else ""
            if isinstance(targets, list):
                turned = " It is in a list: pass one array, `jnp.asarray(targets)`."
            elif len(shape) < 2 and not turned:
                turned = f" One target for all steps is repeated: `jnp.broadcast_to(y, ({length}, *y.shape))`."
            raise ArgumentError(
                f"`targets` at {format_path(path, 'targets')} has shape {list(shape)}; "
                f"expected a leading time axis of {length}, as `inputs` have.{turned}"
            )


def check_mask(mask: object, length: int) -> jax.Array | None:
    """The mask as floating-point weights of shape (T,) or (T, B), or None."""
    if mask is None:
        return None
    if len(jax.tree.leaves(mask)) != 1 or not isinstance(mask, np.ndarray | jax.Array):
        raise ArgumentTypeError(
            f"`mask` is a {type(mask).__name__}; expected an array of shape ({length},) or ({length}, B)."
        )
    struct = struct_of("`mask`", mask)
    if len(struct.shape) not in (1, 2) or struct.shape[0] != length:
        raise ArgumentError(
            f"`mask` has shape {list(struct.shape)}; expected ({length},) or ({length}, B): "
            "a weight per step, or per step and sample."
        )
    if jnp.issubdtype(struct.dtype, jnp.complexfloating) or not (
        jnp.issubdtype(struct.dtype, jnp.number) or struct.dtype == jnp.bool_
    ):
        raise ArgumentTypeError(f"`mask` is {struct.dtype}; expected real numbers or booleans.")
    return jnp.asarray(mask, struct.dtype if jnp.issubdtype(struct.dtype, jnp.floating) else jnp.float32)


def check_reset(reset: object, length: int | None, lanes: int | None = None) -> jax.Array | None:
    """The resets of a sequence, (T,) or (T, B), or of one step (`length` is None), as booleans; or None.

    `lanes` is the number of lanes that can start again on their own.
    """
    if reset is None:
        return None
    time = () if length is None else (length,)
    forms = "one boolean or (B,)" if length is None else f"({length},) or ({length}, B)"
    if not isinstance(reset, np.ndarray | np.bool_ | jax.Array) and not (length is None and isinstance(reset, bool)):
        raise ArgumentTypeError(f"`reset` is a {type(reset).__name__}; expected an array of booleans, {forms}.")
    struct = struct_of("`reset`", reset)
    if struct.dtype != jnp.bool_ and not jnp.issubdtype(struct.dtype, jnp.integer):
        raise ArgumentTypeError(
            f"`reset` is {struct.dtype}; expected booleans, or whole numbers, 0 for no reset: pass `reset != 0`."
        )
    if len(struct.shape) not in (len(time), len(time) + 1) or struct.shape[: len(time)] != time:
        raise ArgumentError(
            f"`reset` has shape {list(struct.shape)}; expected {forms}: a flag for all lanes, or one for each."
        )
    if len(struct.shape) > len(time) and lanes is None:
        raise ArgumentError(
            "`reset` has a flag for each lane, but here all start again at once: pass one flag for all."
        )
    if len(struct.shape) > len(time) and struct.shape[-1] != lanes:
        raise ArgumentError(f"`reset` has flags for {struct.shape[-1]} lanes, but the states have {lanes}.")
    return jnp.asarray(reset) != 0


def check_lanes(facts: Facts) -> int:
    """The number of lanes along the first axis of all states, of a model whose lanes can start again on their own."""
    what, how = "`reset` has a flag for each lane", "reset all at once, with a `reset` of shape (T,)"
    shapes = {facts.state_name(i): leaf.aval.shape for i, leaf in enumerate(facts.states)}
    first = next((n[0] for n in shapes.values() if n), None)
    for name, shape in shapes.items():
        if not shape or shape[0] != first:
            others = "" if first is None else f" while others have {first} lanes along their first axis"
            raise ArgumentError(
                f"{what}, but the state {name} has shape {list(shape)}{others}: give it an axis of lanes, or {how}."
            )
    if first is None:
        raise ArgumentError(f"{what}, but the model has no states: there is nothing to reset.")
    if lanes_meet(facts):
        raise ArgumentError(
            f"{what}, but the step mixes states along their first axis (an axis of units, or a "
            f"normalisation over the batch): compile the model with a batch axis, or {how}."
        )
    return first


def as_arrays(tree: PyTree, leaves: Sequence[Leaf]) -> PyTree:
    """A tree in which Python numbers are arrays of the types that the leaves have."""
    values, structure = jax.tree.flatten(tree)
    arrays = [
        v if hasattr(v, "dtype") else jnp.asarray(v, leaf.aval.dtype) for v, leaf in zip(values, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, arrays)


def strong(tree: PyTree) -> PyTree:
    """Arrays of a definite type: a weak one (a Python number) would turn strong in the first update, and recompile.

    What a caller writes into arrays of numpy afterwards changes nothing.
    """

    def one(a: PyTree) -> PyTree:
        a = copied(a)
        return a if is_extended(a) else jnp.asarray(a, jnp.asarray(a).dtype)

    return jax.tree.map(one, tree)


def copied(a: PyTree) -> PyTree:
    """An array that stays as it is: JAX may read the memory of numpy's, which callers fill again and again."""
    return a.copy() if isinstance(a, np.ndarray) else a


def check_window(window: object) -> int:
    return check_whole("window", window, "steps", most=None)


def check_remat(remat: object, transport: Transport[Any], rule: str) -> int | None:
    """After how many steps of a window states are stored; None for windows that are differentiated at once."""
    if remat is None:
        return None
    size = check_whole("remat", remat, "steps", most=None)
    if transport.signal is not None or transport.future is not None:
        raise ArgumentError(
            f"`remat` stores states inside long windows, but {rule} has a learning signal beside the gradient of the "
            "loss, which is not stored: take shorter windows, or a rule that follows the gradient."
        )
    if not transport.in_pieces:
        raise ArgumentError(
            f"`remat` moves the trace piece by piece, but {rule} draws one at random for each window: take shorter "
            "windows, which are such pieces."
        )
    return size


def check_optimizer(optimizer: object) -> None:
    if isinstance(optimizer, type) or not (
        callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None))
    ):
        function = callable(optimizer) and not isinstance(optimizer, type)
        first = ". It comes before the loss" if function else ""
        raise ArgumentTypeError(
            f"`optimizer` is a {type(optimizer).__name__}; pass an optax optimizer: `optax.adam(1e-3)`{first}."
        )


@dataclass(frozen=True)
class _WithLossValue:
    init: Callable[[PyTree], PyTree]
    update: Callable[..., tuple[PyTree, PyTree]]


def with_loss_value(optimizer: Optimizer, loss: jax.Array) -> Optimizer:
    """The optimizer; one that takes more than gradients (Polyak steps, plateaus) is told the loss."""
    takes_more = any(p.kind is p.VAR_KEYWORD for p in signature(optimizer.update).parameters.values())
    return _WithLossValue(optimizer.init, partial(optimizer.update, value=loss)) if takes_more else optimizer


def check_opt_state(optimizer: Optimizer, params: PyTree, opt_state: PyTree) -> None:
    """The state must be the optimizer's, for these parameters."""
    want = jax.eval_shape(optimizer.init, params)
    same = jax.tree.structure(want) == jax.tree.structure(opt_state) and all(
        jnp.shape(a) == jnp.shape(b) for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(opt_state), strict=True)
    )
    if not same:
        raise ArgumentError(
            "`opt_state` is not the state of this optimizer for these parameters "
            f"(it holds {describe(opt_state, 'opt_state')}): make it with `optimizer.init(params)`."
        )


def check_weights(
    step: Step, weights_of: Callable[[Sequence[jax.Array]], Sequence[jax.Array]], sites: Sequence[WeightSite],
    frozen: frozenset[int],
) -> None:  # fmt: skip
    """What leads from parameters to weights must have a derivative in reverse mode, unless they are frozen.

    `weights_of` gives the weight of every site from the parameters.
    """
    leaves = step.select(Role.PARAM)
    moving = [i for i, leaf in enumerate(leaves) if is_inexact(leaf.aval) and i not in frozen]

    def pulled(some: list[jax.Array], rest: list[jax.Array], which: Sequence[int]) -> PyTree:
        def values(some: list[jax.Array]) -> list[jax.Array]:
            params = list(rest)
            for i, v in zip(moving, some, strict=True):
                params[i] = v
            weights = weights_of(params)
            return [weights[j] for j in which]

        primal, pull = jax.vjp(values, some)
        return pull(primal)

    def run(which: Sequence[int]) -> None:
        avals = [leaf.aval for leaf in leaves]
        jax.eval_shape(lambda some, rest: pulled(some, rest, which), [avals[i] for i in moving], avals)

    try:
        run(range(len(sites)))
    except (ValueError, NotImplementedError) as error:  # what JAX raises where an operation has no reverse mode
        for j, site in enumerate(sites):
            try:
                run([j])
            except (ValueError, NotImplementedError) as cause:
                names = ", ".join(format_path(leaves[p].path, "params") for p in sorted(site.params))
                raise NotSupportedError(
                    f"the weight of {site.label} is computed from {names} by an operation that has no reverse-mode "
                    "derivative, so neither BPTT nor Etrax can train it. Write a `while_loop` (or a `fori_loop` "
                    "whose bounds are not constants) as a `lax.scan`, give an operation of your own a derivative with "
                    f"`jax.custom_vjp`, or put `stop_gradient` around what is not to be learned.\n"
                    f"JAX says: {str(cause).splitlines()[0]}"
                ) from cause
        raise error
