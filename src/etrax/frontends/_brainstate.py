"""brainstate modules: their states become the step's leaves, by path."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, NamedTuple

import jax

from .._compat import build_jaxpr
from .._errors import ArgumentError, CompilationError
from ..compiler.ir import (
    Bound,
    BoundState,
    Leaf,
    NamedPath,
    Notation,
    Path,
    PyTree,
    Role,
    Step,
    check_step,
    format_path,
    leaves_with_paths,
    trace_step,
)  # fmt: skip
from ._arguments import Arguments, abstract, holds_arrays_only
from ._borrow import Module, State, borrowed, held
from ._brainstate_errors import check_kernels, check_no_new_state, explained
from ._brainstate_errors import is_brainstate_module as is_brainstate_module
from ._front_end import FrontEnd, Values, check_places, refuse
from ._renew import renew_states
from ._short_paths import short_paths
from ._units import attach, conform, is_quantity, strip

# First key of the path of a state that the step touches but that is no part of the module.
OUTSIDE = "(outside the module)"
_ROLES = (Role.PARAM, Role.HIDDEN, Role.OTHER)


def load_brainstate() -> ModuleType:
    """Import brainstate, which changes JAX's float64 switch for the whole process, and put the switch back."""
    if "brainstate" not in sys.modules:
        before = jax.config.read("jax_enable_x64")
        import brainstate  # noqa: F401

        jax.config.update("jax_enable_x64", before)
    return sys.modules["brainstate"]


@dataclass(frozen=True, eq=False)
class _State:
    """A state with its place in the step. `example` has the structure, shapes and units of its value, and no numbers:
    those may be of a trace around."""

    path: Path
    role: Role
    state: State
    example: Any

    def plain(self, value: object) -> Any:
        """A value without units, in those of the example."""
        return conform(self.role.value, self.path, self.example, value)

    def value(self, leaves: Iterable[object]) -> Any:
        return attach(jax.tree.structure(self.example), list(leaves))

    def looks_like(self, other: _State | None) -> bool:
        return other is not None and jax.tree.flatten(self.example) == jax.tree.flatten(other.example)


class _Traced(NamedTuple):
    """A step, the states that it met in that order, and the structure of the model's output, with units."""

    step: Step
    states: list[State]
    output: Any


def bind_brainstate(
    model: Module, args: tuple[object, ...], kwargs: Mapping[str, object] | None = None, batch_size: int | None = None
) -> Bound:
    """Bind a `brainstate.nn.Module` with initialised states to example arguments.

    Parameters, hidden and other states are nested dictionaries by state path, so `params['rnn']['w']` is the value of
    the state at `model.rnn.w`. With `batch_size` the states are created anew by `brainstate.nn.init_all_states`.
    """
    brainstate = load_brainstate()
    if batch_size is not None:
        renew_states(model, batch_size=batch_size)
    arguments = Arguments(abstract(tuple(args)), abstract(dict(kwargs or {})))
    states = model.states()
    step, touched, output = _trace(brainstate, model, states, arguments)
    by_path = {s.path: s for s in touched}

    def read() -> tuple[Any, Any, Any]:
        states_now = dict(model.states())  # a model that creates its states anew has other objects at the same paths
        now = {s.path: s.plain(states_now.get(s.path, s.state).value) for s in touched}
        return _tree(Role.PARAM, touched, now), _tree(Role.HIDDEN, touched, now), _tree(Role.OTHER, touched, now)

    return Bound(
        step=step,
        states=_in_model_order(touched, step),
        known=states,
        read=read,
        encode=arguments.encode,
        decode_output=lambda out: attach(output, jax.tree.leaves(out)),
        encode_state=lambda path, value: jax.tree.leaves(by_path[path].plain(value)),
        decode_state=lambda path, leaves: by_path[path].value(leaves),
    )


def _trace(
    brainstate: ModuleType, model: Module, of_module: Mapping[Path, State], arguments: Arguments
) -> tuple[Step, list[_State], Any]:
    """Trace with all states of the module as inputs, and keep the parameters and what the step touched.

    One trace is enough, unless the step touches a state outside its module, which is not known before, or a
    transformation around the caller shows another shape of a state once it is read.
    """
    paths = {id(state): path for path, state in of_module.items()}

    def place(state: State, value: object) -> _State:
        if id(state) not in paths:
            name = type(state).__name__
            before = [p for p in paths.values() if p[0] == OUTSIDE and p[1].rpartition("_")[0] == name]
            paths[id(state)] = (OUTSIDE, f"{name}_{len(before)}")
        return _State(paths[id(state)], _role(brainstate, state), state, abstract(value))

    offered = {id(s): place(s, held(s)) for s in of_module.values() if holds_arrays_only(held(s))}
    while True:
        traced = _run(brainstate, model, of_module, arguments, list(offered.values()))
        met = set(map(id, traced.states))
        params = [s for s in of_module.values() if isinstance(s, brainstate.ParamState) and id(s) not in met]
        # Read outside the loan: the transformations around the caller, if any, take part in this.
        touched = [place(s, s.value) for s in [*traced.states, *params]]
        if all(s.looks_like(offered.get(id(s.state))) for s in touched):
            step = _only(traced.step, touched, short_paths(model, of_module))
            return step, touched, traced.output
        offered |= {id(s.state): s for s in touched}


def _run(
    brainstate: ModuleType,
    model: Module,
    of_module: Mapping[Path, State],
    arguments: Arguments,
    offered: Sequence[_State],
) -> _Traced:
    """One trace, in which a state that is offered takes its value from the step's inputs when it is first met."""
    traces: list[tuple[list[State], Any]] = []
    modules = list(model.nodes().values())
    states = [*of_module.values(), *(s.state for s in offered if s.path not in of_module)]

    def fn(params: Any, hidden: Any, other: Any, *inputs: object) -> tuple[Any, Any, Any]:
        trees = {Role.PARAM: params, Role.HIDDEN: hidden, Role.OTHER: other}
        values = {s.path: _at(trees[s.role], s.path) for s in offered}
        offered_values = {id(s.state): s.value(jax.tree.leaves(values[s.path])) for s in offered}
        positional, named = arguments.rebuild(inputs)
        with borrowed(states, modules) as loan, brainstate.StateTraceStack(name="etrax") as stack:
            # Asked of every state at its first access: states outside the module are borrowed when they are met.
            stack.set_new_arg(lambda state: (loan.take(state), offered_values.get(id(state), held(state)))[1])
            out = explained(model, of_module, lambda: model(*positional, **named), {"inputs": arguments.both})
            check_no_new_state(model, of_module)
            written = {id(s) for s, wrote in zip(stack.states, stack.been_writen, strict=True) if wrote}
            met = set(map(id, stack.states))
            for s in offered:
                if s.role is Role.PARAM and id(s.state) in written:
                    raise CompilationError(_WRITES_PARAMETER.format(format_path(s.path), type(s.state).__name__))
            values |= {s.path: s.plain(held(s.state)) for s in offered if id(s.state) in met}
        traces.append((stack.states, jax.tree.structure(out)))
        return _tree(Role.HIDDEN, offered, values), _tree(Role.OTHER, offered, values), strip(out)

    examples = {s.path: s.example for s in offered}
    params, hidden, other = (_tree(role, offered, examples) for role in _ROLES)
    step = trace_step(fn, params, hidden, arguments.structs, other, _handles(brainstate, offered))
    return _Traced(step, *traces[0])


_WRITES_PARAMETER = (
    "the step writes parameter {}, a `{}`. Parameters are changed by the optimizer only: keep what the step changes in "
    "a `brainstate.HiddenState` (it is then learned through) or in a `brainstate.ShortTermState`."
)


def _only(step: Step, touched: Sequence[_State], shorter: Mapping[int, tuple[Path, Path]]) -> Step:
    """The step without the states that it does not touch; leaves are called by shorter paths where there are any."""

    def named(leaf: Leaf) -> Leaf:
        path, short = shorter.get(id(leaf.handle), ((), ()))
        return replace(leaf, path=NamedPath(leaf.path, (*short, *leaf.path[len(path) :]))) if short else leaf

    wanted = {id(s.state) for s in touched}
    is_touched = lambda leaf: leaf.handle is None or id(leaf.handle) in wanted  # noqa: E731
    ins, outs = ([named(leaf) for leaf in leaves if is_touched(leaf)] for leaves in (step.ins, step.outs))
    pairs = zip(step.jaxpr.invars[len(step.consts) :], step.ins, strict=True)
    invars = [*step.constvars, *(v for v, leaf in pairs if is_touched(leaf))]
    outvars = [v for v, leaf in zip(step.jaxpr.outvars, step.outs, strict=True) if is_touched(leaf)]
    examples = {s.path: s.example for s in touched}
    trees = {role: jax.tree.structure(_tree(role, touched, examples)) for role in _ROLES}
    jaxpr = build_jaxpr(invars, outvars, step.jaxpr.eqns, step.jaxpr)
    return check_step(Step(jaxpr, step.consts, tuple(ins), tuple(outs), step.trees | trees))


def _role(brainstate: ModuleType, state: State) -> Role:
    if isinstance(state, brainstate.ParamState):
        return Role.PARAM
    return Role.HIDDEN if isinstance(state, brainstate.HiddenState) else Role.OTHER


def _tree(role: Role, states: Sequence[_State], values: Mapping[Path, object]) -> dict[str, Any]:
    """Values of the states of a role, without units, as nested dictionaries by path."""
    out: dict[str, Any] = {}
    for s in states:
        if s.role is role:
            inner = out
            for key in s.path[:-1]:
                inner = inner.setdefault(key, {})
            inner[s.path[-1]] = strip(values[s.path])
    return out


def _at(tree: Any, path: Path) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _handles(brainstate: ModuleType, states: Sequence[_State]) -> dict[Role, dict[Path, tuple[State, bool]]]:
    out: dict[Role, dict[Path, tuple[State, bool]]] = {role: {} for role in Role}
    for s in states:
        grouped = isinstance(s.state, brainstate.HiddenGroupState)
        for inner, _ in leaves_with_paths(strip(s.example)):
            out[s.role][(*s.path, *inner)] = (s.state, grouped)
    return out


def _in_model_order(touched: Sequence[_State], step: Step) -> tuple[BoundState, ...]:
    """Parameters, hidden and other states, each in the order in which the step meets them."""
    number = {(leaf.role, leaf.path): i for i, leaf in enumerate(step.ins)}
    out = []
    for role in _ROLES:
        for s in (s for s in touched if s.role is role):
            leaves = tuple(number[role, (*s.path, *inner)] for inner, _ in leaves_with_paths(strip(s.example)))
            out.append(BoundState(s.path, role, s.state, leaves))
    return tuple(out)


def _into_brainstate(module: Any, params: PyTree, hidden: PyTree) -> Any:
    writes: list[tuple[Any, Any]] = []
    for what, tree in (("params", params), ("state", hidden)):
        values = dict(leaves_with_paths({} if tree is None else tree))
        taken: set[Any] = set()
        for path, state in module.states().items():
            inner = [(*path, *rest) for rest, _ in leaves_with_paths(state.value)]
            if not all(p in values for p in inner):
                continue
            taken.update(inner)
            value = attach(jax.tree.structure(state.value), [values[p] for p in inner])
            conform(what, path, state.value, value)
            check_places(what, value, state.value, path)
            writes.append((state, value))
        for path in values.keys() - taken:
            raise ArgumentError(f"`{what}` has {format_path(path)}, but the module has no state there.")
    for state, value in writes:
        state.value = value
    return module


# What brainpy.state calls a part that it makes from a description: class, arguments, options.
_MADE = re.compile(r"\(<class '(?:\w+\.)*(\w+)'>, \([^()]*\), \{(.*?)\}\)")
_OPTION = re.compile(r"'(\w+)': (?:'([^']*)'|([^,]+))")


def shorten_key(key: str, briefly: bool) -> str:
    """A key of brainpy.state that is a whole description as the call that it describes.

    Options that are objects (initialisers) are the first to be left out.

    >>> shorten_key("(<class 'brainpy.state.Expon'>, (100,), {'tau': '10 ms'})", briefly=False)
    'Expon(tau=10 ms)'
    """

    def call(description: re.Match[str]) -> str:
        options = [(name, text or value) for name, text, value in _OPTION.findall(description[2])]
        return f"{description[1]}({', '.join(f'{n}={v}' for n, v in options if not briefly or '(' not in v)})"

    return _MADE.sub(call, key)


def _bind(model: Any, inputs: tuple[object, ...], values: Values) -> Bound:
    refuse(values.call, "call", "a `brainstate.nn.Module`, which is called as it is")
    if values.params is not None or values.hidden is not None:
        raise CompilationError(
            "a `brainstate.nn.Module` holds its own parameters and states: do not pass `params=` or `hidden=`."
        )
    return bind_brainstate(model, inputs, values.keywords, values.batch_size)


BRAINSTATE = FrontEnd(
    name="brainstate",
    library="brainstate",
    kind="a `brainstate.nn.Module`",
    matches=is_brainstate_module,
    bind=_bind,
    layers=lambda model: load_brainstate().graph.nodes(model).items(),
    write_back=_into_brainstate,
    makes_states=True,
    takes_call=False,
    takes_keywords=True,
    check=check_kernels,
    notation=Notation(is_quantity, lambda value: value.unit if is_quantity(value) else None, shorten_key),
)
