"""Flax: NNX modules, whose variables are parameters and states, and linen modules by their `apply`.

| variables of an NNX module | are |
|---|---|
| `nnx.Param` and its kinds | parameters |
| of inexact type and written by the step | hidden states |
| statistics (`nnx.BatchStat`), random keys, counters, and what the step only reads | carried alone |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from .._compat import Literal
from .._errors import ArgumentTypeError, CompilationError
from ..compiler.ir import Bound, Notation, Path, PyTree, Role
from ._front_end import FrontEnd, Values, check_places, is_of
from ._function import CALL, Trees, bind_function, bind_trees, pair_of

_CALLED = "It is called as `{} -> (hidden, output)`: pass `hidden=` as it reads it, and inputs of one step."
_CALLED_ALONE = (
    "It is called as `module(*inputs)`, with its hidden states in variables. If its hidden state is an argument, pass "
    "the initial one as `hidden=` (for Flax's cells, `cell.initialize_carry(...)`)."
)


def bind_linen(
    module: Any, inputs: tuple[object, ...], params: PyTree, hidden: PyTree, call: Callable[..., Any] | None = None
) -> Bound:
    """Bind a linen module: `params` are its variables as `init` gives them, `hidden` what Flax calls its carry."""
    if call is None:
        _refuse_sequences(module)
    if params is None or hidden is None:
        raise CompilationError(
            f"`model` is a linen module ({type(module).__name__}), which holds no values: pass its variables and its "
            "hidden state, `params=module.init(key, carry, x)`, `hidden=carry`. It is called as `module.apply(params, "
            "hidden, *inputs) -> (hidden, output)`, or by `call=lambda module, params, hidden, *inputs: (hidden, "
            "output)`."
        )
    if call is None:
        return bind_function(module.apply, inputs, params, hidden)
    return bind_function(lambda p, h, *x: call(module, p, h, *x), inputs, params, hidden)


def bind_nnx(
    module: Any, inputs: tuple[object, ...], hidden: PyTree = None, call: Callable[..., Any] | None = None
) -> Bound:
    """Bind an `nnx.Module` to example inputs, and leave it as it was.

    With `hidden` it is called as Flax's cells are, `module(hidden, *inputs) -> (hidden, output)`; without, as
    `module(*inputs) -> output`, and its hidden states are variables. `call(module, hidden, *inputs) -> (hidden,
    output)` stands for either.
    """
    if call is None:
        _refuse_sequences(module)
    called = _CALLED.format(CALL if call is not None else "module(hidden, *inputs)")
    if hidden is None and call is None:
        called = _CALLED_ALONE
    carried: frozenset[Path] | None = None
    while True:
        variables = _Variables(module, hidden, carried)
        bound = bind_trees(variables.step(call), inputs, variables.read, variables.join, called)
        unchanged = _unchanged(bound) - {(*variables.root, *p) for p in variables.carried}
        only_read = frozenset(p[len(variables.root) :] for p in unchanged if p[: len(variables.root)] == variables.root)
        if not only_read or (hidden is not None and not variables.root):
            break
        # Variables that the step only reads are no memory: trace again with these among the others.
        carried = variables.carried | only_read
    if not bound.step.select(Role.HIDDEN):
        raise CompilationError(
            f"`{type(module).__name__}` writes none of its variables, so it has no hidden state. If its state is "
            "an argument, pass the initial one as `hidden=` (for Flax's cells, `cell.initialize_carry(...)`)."
        )
    return bound


def _refuse_sequences(module: object) -> None:
    """Flax's own modules that loop over time themselves."""
    name = type(module).__name__
    if name in ("RNN", "Bidirectional") and type(module).__module__.startswith("flax."):
        cell = "its cell, `module.cell`" if name == "RNN" else "the cell of its forward direction alone"
        raise CompilationError(
            f"`{name}` runs a whole sequence, and a learner needs one step of it: compile {cell}, with its state as "
            "`hidden=`. The learner's functions take the sequence."
        )


def _unchanged(bound: Bound) -> set[Path]:
    """Hidden states that the step returns as they came in."""
    step = bound.step
    pairs = zip(step.select(Role.HIDDEN), step.invars(Role.HIDDEN), step.outvars(Role.HIDDEN), strict=True)
    return {leaf.path for leaf, old, new in pairs if not isinstance(new, Literal) and old is new}


class _Variables:
    """The variables of a module as trees: parameters, hidden states, and what is carried beside them.

    Without `hidden=` the states are one `nnx.State`; with it they are that tree, and if there are
    variables besides parameters `{"carry": …, "variables": …}`.
    """

    def __init__(self, module: Any, carry: PyTree, carried: frozenset[Path] | None):
        from flax import nnx

        self.nnx, self.module, self.carry = nnx, module, carry
        flat = self._flat()
        self.carried = self._kept_apart(flat) if carried is None else carried
        self.has_variables = bool(flat)
        self.root: Path = ("variables",) if carry is not None and flat else ()

    def _flat(self) -> dict[Path, Any]:
        nnx = self.nnx
        return {p: v for p, v in nnx.to_flat_state(nnx.state(self.module)) if not isinstance(v, nnx.Param)}

    def _kept_apart(self, flat: dict[Path, Any]) -> frozenset[Path]:
        """Statistics, random states, and what has no derivative."""
        nnx = self.nnx
        apart = (nnx.BatchStat, nnx.RngState, nnx.Intermediate)
        return frozenset(p for p, v in flat.items() if isinstance(v, apart) or not jnp.issubdtype(v.dtype, jnp.inexact))

    def split(self, state: PyTree) -> tuple[PyTree, PyTree]:
        """An `nnx.State` as its hidden and its other variables."""
        flat = dict(self.nnx.to_flat_state(state))
        state_of = self.nnx.from_flat_state
        apart = {p: v for p, v in flat.items() if p in self.carried}
        return state_of([(p, v) for p, v in flat.items() if p not in apart]), state_of(list(apart.items()))

    def read(self) -> Trees:
        nnx = self.nnx
        # Variables of their own: those of the module change with it.
        params, rest = jax.tree.map(lambda a: a, nnx.split(self.module, nnx.Param, ...)[1:])
        if not self.has_variables:
            return Trees(params, {} if self.carry is None else self.carry)
        hidden, other = self.split(rest)
        if self.carry is None:
            return Trees(params, hidden, other)
        return Trees(params, {"carry": self.carry, "variables": hidden}, {"variables": other})

    def join(self, hidden: PyTree, other: PyTree) -> PyTree:
        if not self.has_variables:
            return hidden
        if self.carry is None:
            return self.nnx.merge_state(hidden, other)
        return {"carry": hidden["carry"], "variables": self.nnx.merge_state(hidden["variables"], other["variables"])}

    def step(self, call: Callable[..., Any] | None) -> Callable[..., tuple[Any, Any, Any]]:
        nnx, name = self.nnx, type(self.module).__name__
        graph, _, _ = nnx.split(self.module, nnx.Param, ...)

        def fn(params: PyTree, hidden: PyTree, other: PyTree, *inputs: object) -> tuple[Any, Any, Any]:
            carry = hidden["carry"] if self.root else hidden if self.carry is not None else None
            variables = self._variables(hidden, other)
            module = nnx.merge(graph, params, variables)
            if call is not None:
                new, output = pair_of(call(module, carry, *inputs), "`call`", CALL)
            elif self.carry is not None:
                new, output = pair_of(module(carry, *inputs), f"`{name}`", "module(hidden, *inputs)")
            else:
                new, output = None, module(*inputs)
            rest = nnx.split(module, nnx.Param, ...)[2]
            _check_same(name, variables, rest)
            return (*self._states(new, hidden, rest, other), output)

        return fn

    def _variables(self, hidden: PyTree, other: PyTree) -> PyTree:
        if not self.has_variables:
            return self.nnx.State({})
        if self.root:
            return self.nnx.merge_state(hidden["variables"], other["variables"])
        return self.nnx.merge_state(hidden, other)

    def _states(self, carry: PyTree, hidden: PyTree, rest: PyTree, other: PyTree) -> tuple[PyTree, PyTree]:
        """New hidden and other states in the trees of the old ones."""
        if not self.has_variables:
            return (hidden if self.carry is None else carry), other
        memory, apart = self.split(rest)
        return ({"carry": carry, "variables": memory}, {"variables": apart}) if self.root else (memory, apart)


def _check_same(name: str, old: PyTree, new: PyTree) -> None:
    before, after = jax.tree.structure(old), jax.tree.structure(new)
    if before != after:
        raise CompilationError(
            f"`{name}` makes or removes variables in its step: it had {before}, and has {after} after it. Create all "
            "of them in `__init__`."
        )


def _into_nnx(module: Any, params: PyTree, hidden: PyTree) -> Any:
    from flax import nnx

    if isinstance(hidden, dict) and hidden.keys() == {"carry", "variables"}:
        hidden = hidden["variables"]
    now = nnx.state(module)
    for what, tree in (("params", params), ("state", hidden)):
        if tree is not None:
            if not isinstance(tree, nnx.State):
                raise ArgumentTypeError(
                    f"`{what}` is a {type(tree).__name__}; pass the `nnx.State` that the learner returned."
                )
            check_places(what, tree, now)
    for tree in (params, hidden):
        if tree is not None:
            nnx.update(module, jax.tree.map(lambda a: a, tree))
    return module


def _layers(model: Any) -> Iterable[tuple[Path, object]]:
    from flax import nnx

    return nnx.iter_modules(model)


def _bind_nnx(model: Any, inputs: tuple[object, ...], values: Values) -> Bound:
    if values.params is not None:
        raise CompilationError("an `nnx.Module` holds its own parameters: do not pass `params=`.")
    return bind_nnx(model, inputs, values.hidden, values.call)


NNX = FrontEnd(
    name="NNX",
    library="Flax",
    kind="an `nnx.Module`",
    matches=lambda model: is_of(model, "flax.nnx"),
    bind=_bind_nnx,
    layers=_layers,
    write_back=_into_nnx,
    # A variable is a tree around one value.
    notation=Notation(wraps=lambda value: is_of(value, "flax.nnx", "Variable")),
)
LINEN = FrontEnd(
    name="linen",
    library="Flax",
    kind="a linen module",
    matches=lambda model: is_of(model, "flax.linen"),
    bind=lambda model, inputs, values: bind_linen(model, inputs, values.params, values.hidden, values.call),
)
