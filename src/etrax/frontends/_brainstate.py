"""brainstate modules: their states become the step's leaves, by path."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from .._errors import CompilationError
from ..ir import Path, Role, Step, format_path, leaves_with_paths, trace_step
from ._arguments import Arguments, abstract
from ._borrow import borrowed, held, put
from ._bound import Bound, BoundState
from ._brainstate_errors import check_no_new_state, explained
from ._brainstate_errors import is_brainstate_module as is_brainstate_module
from ._units import attach, conform, strip

# First key of the path of a state that the step touches but that is no part of the module.
OUTSIDE = "(outside the module)"


def load_brainstate() -> Any:
    """Import brainstate, which changes JAX's float64 switch for the whole process, and put the switch back."""
    if "brainstate" not in sys.modules:
        before = jax.config.read("jax_enable_x64")
        import brainstate  # noqa: F401

        jax.config.update("jax_enable_x64", before)
    return sys.modules["brainstate"]


@dataclass(frozen=True)
class _Touched:
    """A state that the step reads or writes, or a parameter that it does not."""

    path: Path
    role: Role
    state: Any
    example: Any  # structure, shapes and units of its value; no numbers, which may be those of a trace around

    def leaves(self, value: Any) -> list[Any]:
        return jax.tree.leaves(conform(self.role.value, self.path, self.example, value))

    def value(self, leaves: Iterable[Any]) -> Any:
        return attach(jax.tree.structure(self.example), list(leaves))


def bind_brainstate(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None, batch_size: int | None = None
) -> Bound:
    """Bind a `brainstate.nn.Module` with initialised states to example arguments.

    Parameters, hidden and other states are nested dictionaries by state path, so `params['rnn']['w']` is the value of
    the state at `model.rnn.w`. With `batch_size` the states are created anew by `brainstate.nn.init_all_states`.
    """
    brainstate = load_brainstate()
    if batch_size is not None:
        brainstate.nn.init_all_states(model, batch_size=batch_size)
    known = dict(model.states())
    modules = list(model.nodes().values())
    arguments = Arguments(abstract(tuple(args)), abstract(dict(kwargs or {})))
    touched, output = _discover(brainstate, model, known, arguments)
    by_path = {t.path: t for t in touched}

    def tree(role: Role, values: Mapping[Path, Any]) -> dict[str, Any]:
        return _nest({t.path: strip(values[t.path]) for t in touched if t.role is role})

    def current() -> dict[Path, Any]:
        """The states as they are now: a model that creates its states anew has other objects at the same paths."""
        found = dict(model.states())
        return {t.path: found.get(t.path, t.state) for t in touched}

    def read() -> tuple[Any, Any, Any]:
        states = current()
        now = {t.path: conform(t.role.value, t.path, t.example, states[t.path].value) for t in touched}
        return tree(Role.PARAM, now), tree(Role.HIDDEN, now), tree(Role.OTHER, now)

    def fn(params: Any, hidden: Any, other: Any, *inputs: Any) -> tuple[Any, Any, Any]:
        given, states = {Role.PARAM: params, Role.HIDDEN: hidden, Role.OTHER: other}, current()
        with borrowed(list(states.values()), modules), brainstate.StateTraceStack(name="etrax"):
            for t in touched:
                put(states[t.path], t.value(jax.tree.leaves(_at(given[t.role], t.path))))
            positional, named = arguments.rebuild(inputs)
            out = strip(model(*positional, **named))
            new = {t.path: conform(t.role.value, t.path, t.example, held(states[t.path])) for t in touched}
        return tree(Role.HIDDEN, new), tree(Role.OTHER, new), out

    examples = {t.path: t.example for t in touched}
    params, hidden, other = (tree(role, examples) for role in (Role.PARAM, Role.HIDDEN, Role.OTHER))
    step = trace_step(fn, params, hidden, arguments.structs, other, _handles(brainstate, touched))
    return Bound(
        step=step,
        fn=fn,
        states=_in_model_order(touched, step),
        known=model.states(),
        read=read,
        encode=arguments.encode,
        decode_output=lambda out: attach(output, jax.tree.leaves(out)),
        encode_state=lambda path, value: by_path[path].leaves(value),
        decode_state=lambda path, leaves: by_path[path].value(leaves),
    )


def _role(brainstate: Any, state: Any) -> Role:
    if isinstance(state, brainstate.ParamState):
        return Role.PARAM
    return Role.HIDDEN if isinstance(state, brainstate.HiddenState) else Role.OTHER


def _discover(
    brainstate: Any, model: Any, known: Mapping[Path, Any], arguments: Arguments
) -> tuple[list[_Touched], Any]:
    """The states of the step, and the structure of its output with units, from one abstract run."""
    modules = list(model.nodes().values())
    stack = brainstate.StateTraceStack(name="etrax")

    def run(*inputs: Any) -> Any:
        positional, named = arguments.rebuild(inputs)
        with borrowed(list(known.values()), modules) as loan, stack:
            # Asked of every state at its first access: states outside the module are borrowed when they are met.
            stack.set_new_arg(lambda state: (loan.take(state), held(state))[1])
            out = model(*positional, **named)
            check_no_new_state(model, known)
        return out

    given = {"inputs": arguments.structs}
    output = explained(model, known, lambda: jax.eval_shape(run, *arguments.structs), given)
    paths = {id(state): path for path, state in known.items()}
    states, written = list(stack.states), dict(zip(map(id, stack.states), stack.been_writen, strict=True))
    outside = [s for s in states if id(s) not in paths]
    for state in outside:
        name = type(state).__name__
        paths[id(state)] = (OUTSIDE, f"{name}_{sum(type(o).__name__ == name and id(o) in paths for o in outside)}")
    params = [s for s in known.values() if isinstance(s, brainstate.ParamState) and id(s) not in written]
    # Read outside the loan: the transformations around the caller, if any, take part in this.
    touched = [_Touched(paths[id(s)], _role(brainstate, s), s, abstract(s.value)) for s in [*states, *params]]
    for t in touched:
        if t.role is Role.PARAM and written.get(id(t.state)):
            raise CompilationError(
                f"the step writes parameter {format_path(t.path)}, a `{type(t.state).__name__}`. Parameters are "
                "changed by the optimizer only: keep what the step changes in a `brainstate.HiddenState` (it is then "
                "learned through) or in a `brainstate.ShortTermState`."
            )
    return touched, jax.tree.structure(output)


def _nest(flat: Mapping[Path, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for path, value in flat.items():
        inner = out
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = value
    return out


def _at(tree: Any, path: Path) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _handles(brainstate: Any, touched: list[_Touched]) -> dict[Role, dict[Path, tuple[Any, bool]]]:
    out: dict[Role, dict[Path, tuple[Any, bool]]] = {role: {} for role in Role}
    for t in touched:
        grouped = isinstance(t.state, brainstate.HiddenGroupState)
        for inner, _ in leaves_with_paths(strip(t.example)):
            out[t.role][(*t.path, *inner)] = (t.state, grouped)
    return out


def _in_model_order(touched: list[_Touched], step: Step) -> tuple[BoundState, ...]:
    """Parameters, hidden and other states, each in the order in which the step meets them."""
    number = {(leaf.role, leaf.path): i for i, leaf in enumerate(step.ins)}
    out = []
    for role in (Role.PARAM, Role.HIDDEN, Role.OTHER):
        for t in (t for t in touched if t.role is role):
            leaves = tuple(number[role, (*t.path, *inner)] for inner, _ in leaves_with_paths(strip(t.example)))
            out.append(BoundState(t.path, role, t.state, leaves))
    return tuple(out)
