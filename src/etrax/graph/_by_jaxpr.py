"""Groups and perturbations of a jaxpr that no front end has traced: the caller says which variable is which state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import jax

from .._compat import (
    Jaxpr,
    Literal,
    Var,
    build_closed,
    build_jaxpr,
    is_call,
    is_concrete,
    is_extended,
    is_jaxpr,
    open_jaxpr,
    renamed,
    shape_struct,
    staged_copy,
)
from .._errors import CompilationError
from ..compiler.ir import Leaf, Path, Role, Step, check_step, format_path, inline
from ._build import build_groups
from ._columns import HiddenObject
from ._group import HiddenGroup
from ._module_info import HiddenLeaf
from ._perturb import HiddenPerturbation, perturb_jaxpr
from ._stand_in import inspect

Groups: TypeAlias = tuple[tuple[HiddenGroup, ...], dict[Path, HiddenGroup]]


def find_hidden_groups_from_jaxpr(
    jaxpr: object,
    hidden_outvar_to_invar: Mapping[Var, Var],
    weight_invars: Collection[Var],
    invar_to_hidden_path: Mapping[Var, Path],
    outvar_to_hidden_path: Mapping[Var, Path],
    path_to_state: Mapping[Path, HiddenObject],
) -> Groups:
    """The hidden groups of a jaxpr, and the group of each hidden state by path.

    `jaxpr` takes and gives what it likes; `hidden_outvar_to_invar` pairs the variables of each hidden state after and
    before the step, and `weight_invars` are the inputs that are parameters. All other inputs are data. The paths name
    the states, and `path_to_state` holds, for each, the state or an array of its shape. Groups are those that
    `find_hidden_groups_from_minfo` finds in a module of this jaxpr, and hold its variables.

    >>> import jax, jax.numpy as jnp
    >>> step = lambda h, w, x: jnp.tanh(0.9 * h + x @ w)
    >>> closed = jax.make_jaxpr(step)(jnp.zeros(4), jnp.ones((3, 4)), jnp.ones(3))
    >>> (h, w, x), (new,) = closed.jaxpr.invars, closed.jaxpr.outvars
    >>> groups, by_path = find_hidden_groups_from_jaxpr(
    ...     closed.jaxpr, {new: h}, {w}, {h: ("h",)}, {new: ("h",)}, {("h",): jnp.zeros(4)}
    ... )
    >>> groups[0].varshape, groups[0].hidden_outvars == [new], list(by_path)
    ((4,), True, [('h',)])
    """
    paths = invar_to_hidden_path, outvar_to_hidden_path
    program = _read(jaxpr, hidden_outvar_to_invar, weight_invars, *paths, path_to_state)
    groups: list[Groups] = []

    def analyse(consts: Sequence[jax.Array]) -> None:
        step = _step(program, consts, weight_invars, path_to_state)
        groups.append(build_groups(program.jaxpr, program.hidden, inspect(step, as_written=True)))

    if program.consts is None:  # a bare jaxpr has no values for its constants: they are traced
        jax.eval_shape(analyse, [shape_struct(v.aval) for v in program.jaxpr.constvars])
    else:
        analyse(program.consts)
    return groups[0]


def add_hidden_perturbation_in_jaxpr(
    closed_jaxpr: object,
    hidden_outvar_to_invar: Mapping[Var, Var],
    weight_invars: Collection[Var],
    invar_to_hidden_path: Mapping[Var, Path],
    outvar_to_hidden_path: Mapping[Var, Path],
    path_to_state: Mapping[Path, HiddenObject],
) -> HiddenPerturbation:
    """The jaxpr with a perturbation added to every hidden state; arguments as in `find_hidden_groups_from_jaxpr`.

    The jaxpr must be closed. Every hidden state must be made by an equation, which the perturbation follows: one that
    the jaxpr only passes on is a `ValueError`.

    >>> import jax, jax.numpy as jnp
    >>> closed = jax.make_jaxpr(lambda h, x: 0.9 * h + x)(jnp.zeros(4), jnp.ones(4))
    >>> (h, x), (new,) = closed.jaxpr.invars, closed.jaxpr.outvars
    >>> perturbation = add_hidden_perturbation_in_jaxpr(
    ...     closed, {new: h}, set(), {h: ("h",)}, {new: ("h",)}, {("h",): jnp.zeros(4)}
    ... )
    >>> perturbation.eval_jaxpr([jnp.zeros(4), jnp.ones(4)], [jnp.full(4, 0.5)])[0].tolist()
    [1.5, 1.5, 1.5, 1.5]
    """
    paths = invar_to_hidden_path, outvar_to_hidden_path
    program = _read(closed_jaxpr, hidden_outvar_to_invar, weight_invars, *paths, path_to_state)
    if program.consts is None:
        raise CompilationError(
            f"the jaxpr has {len(program.jaxpr.constvars)} constants without values: pass the closed jaxpr, as "
            "`jax.make_jaxpr` gives it."
        )
    results = {v for eqn in program.jaxpr.eqns for v in eqn.outvars}
    for leaf in program.hidden:
        if leaf.outvar not in results:
            raise CompilationError(
                f"no equation of the jaxpr makes hidden state {format_path(leaf.path)}: it is passed on as it was "
                "given. Leave it out of `hidden_outvar_to_invar`, or let the step return a copy of it."
            )
    jaxpr = program.jaxpr
    closed = build_closed(jaxpr.invars, jaxpr.outvars, jaxpr.eqns, jaxpr, jaxpr.constvars, program.consts)
    return perturb_jaxpr(closed, program.hidden, _first_copy(program))


class _Program(NamedTuple):
    """A jaxpr without calls, the values of its constvars (None: a bare jaxpr has none), and its hidden states."""

    jaxpr: Jaxpr
    consts: tuple[jax.Array, ...] | None
    hidden: tuple[HiddenLeaf, ...]


def _first_copy(program: _Program) -> int:
    """The number of the first equation of those at the end that only copy a value into a hidden state of its own."""
    hidden = {leaf.outvar for leaf in program.hidden}
    eqns, n = program.jaxpr.eqns, len(program.jaxpr.eqns)
    while n and eqns[n - 1].primitive.name == "copy" and eqns[n - 1].outvars[0] in hidden:
        n -= 1
    return n


def _read(
    jaxpr: object,
    hidden_outvar_to_invar: Mapping[Var, Var],
    weight_invars: Collection[Var],
    invar_to_hidden_path: Mapping[Var, Path],
    outvar_to_hidden_path: Mapping[Var, Path],
    path_to_state: Mapping[Path, HiddenObject],
) -> _Program:
    """Check what the caller says of the variables against the jaxpr, and write the calls of the jaxpr out."""
    if not is_jaxpr(jaxpr):
        raise CompilationError(f"`jaxpr` is a {type(jaxpr).__name__}: pass what `jax.make_jaxpr` gives.")
    program, consts = open_jaxpr(jaxpr)
    inputs = set(program.invars)
    defined = inputs.union(program.constvars, (v for eqn in program.eqns for v in eqn.outvars))
    for v in weight_invars:
        if v not in inputs:
            raise CompilationError(f"`weight_invars` holds {_shown(v)}, which is no input of the jaxpr.")
    leaves: list[HiddenLeaf] = []
    # The first mistake is named, so that each check may rely on those before it.
    for out, into in hidden_outvar_to_invar.items():
        path = _path_of(out, into, outvar_to_hidden_path, invar_to_hidden_path)
        _require(out in defined, path, f"`hidden_outvar_to_invar` has {_shown(out)}, which the jaxpr does not define")
        _require(into in inputs, path, f"`hidden_outvar_to_invar` has {_shown(into)}, which is no input of the jaxpr")
        _require(into not in weight_invars, path, f"its variable {_shown(into)} is among `weight_invars` too")
        before, after = shape_struct(into.aval), shape_struct(out.aval)
        same = (before.shape, before.dtype) == (after.shape, after.dtype)
        _require(same, path, f"the step takes it as {into.aval.str_short()} and returns {out.aval.str_short()}")
        _require(path not in {leaf.path for leaf in leaves}, path, "two pairs of variables have this path")
        _require(into not in {leaf.invar for leaf in leaves}, path, f"{_shown(into)} is the input of two hidden states")
        _require(path in path_to_state, path, "`path_to_state` has no state for it")
        leaves.append(HiddenLeaf(path, path_to_state[path], into, out))
    values = consts if len(consts) == len(program.constvars) else None
    return _without_calls(_Program(program, values, tuple(leaves)))


def _path_of(out: Var, into: Var, after: Mapping[Var, Path], before: Mapping[Var, Path]) -> Path:
    for name, v, paths in (("outvar_to_hidden_path", out, after), ("invar_to_hidden_path", into, before)):
        if v not in paths:
            raise CompilationError(f"`{name}` has no path for {_shown(v)} of `hidden_outvar_to_invar`.")
    if tuple(after[out]) != tuple(before[into]):
        raise CompilationError(
            f"`hidden_outvar_to_invar` pairs hidden state {format_path(tuple(before[into]))} before the step with "
            f"{format_path(tuple(after[out]))} after it: pair the variables of one state."
        )
    return tuple(after[out])


def _require(holds: bool, path: Path, what: str) -> None:
    if not holds:
        raise CompilationError(f"hidden state {format_path(path)}: {what}.")


def _shown(v: object) -> str:
    aval = getattr(v, "aval", None)
    return f"a {type(v).__name__}" if aval is None else f"a variable {aval.str_short()}"


def _without_calls(program: _Program) -> _Program:
    """Write out the calls of a jaxpr; what its own equations make keeps its variables."""
    jaxpr, hidden = program.jaxpr, {leaf.outvar for leaf in program.hidden}
    if not any(map(is_call, jaxpr.eqns)):
        return program
    read = {v for eqn in jaxpr.eqns for v in eqn.invars if not isinstance(v, Literal)}
    read.update(v for v in (*jaxpr.outvars, *hidden) if not isinstance(v, Literal))
    results = [v for eqn in jaxpr.eqns for v in eqn.outvars if v in read]
    sources = [*jaxpr.constvars, *jaxpr.invars]
    all_values = build_jaxpr(sources, results, jaxpr.eqns, jaxpr)

    def run(*args: jax.Array) -> list[jax.Array]:
        values, out = inline(all_values, (), args), []
        earlier = set(map(id, args))
        for v, value in zip(results, values, strict=True):
            # A call may pass a value on, or give a constant: a hidden state still needs a variable of its own.
            shared = v in hidden and not is_extended(v.aval) and (id(value) in earlier or is_concrete(value))
            out.append(staged_copy(value) if shared else value)
            earlier.add(id(value))
        return out

    flat, captured = open_jaxpr(jax.make_jaxpr(run)(*(shape_struct(v.aval) for v in sources)))
    names: dict[Var, Var] = dict(zip(flat.invars, sources, strict=True))
    passed_on: dict[Var, Var | Literal] = {}  # a value that a call passes on has the variable that it had before
    for new, v in zip(flat.outvars, results, strict=True):
        if isinstance(new, Literal) or new in names:
            passed_on[v] = new if isinstance(new, Literal) else names[new]
        else:
            names[new] = v
    eqns = [renamed(eqn, names) for eqn in flat.eqns]
    outvars = [v if isinstance(v, Literal) else passed_on.get(v, v) for v in jaxpr.outvars]
    consts = None if program.consts is None else (*captured, *program.consts)
    constvars = [*flat.constvars, *jaxpr.constvars]
    closed = build_closed(jaxpr.invars, outvars, eqns, jaxpr, constvars, consts or ())
    return _Program(open_jaxpr(closed)[0], consts, program.hidden)


def _step(
    program: _Program, consts: Sequence[jax.Array], weight_invars: Collection[Var], states: Collection[Path]
) -> Step:
    """The jaxpr as a step: hidden states in the order of `states`, every input that is no state as data."""
    jaxpr = program.jaxpr
    order = {path: k for k, path in enumerate(states)}
    hidden = sorted(program.hidden, key=lambda leaf: order[leaf.path])
    hidden_invars = {leaf.invar for leaf in hidden}
    params = [v for v in jaxpr.invars if v in weight_invars]
    inputs = [v for v in jaxpr.invars if v not in weight_invars and v not in hidden_invars]
    outputs = [v for v in jaxpr.outvars if isinstance(v, Literal) or v not in {leaf.outvar for leaf in hidden}]
    hidden_leaves = [_hidden_leaf(leaf) for leaf in hidden]
    ins = [*_leaves(Role.PARAM, "weight_invars", params), *hidden_leaves, *_leaves(Role.INPUT, "inputs", inputs)]
    outs = [*hidden_leaves, *_leaves(Role.OUTPUT, "outputs", outputs)]
    # A step takes its constants as its first inputs.
    flat = build_jaxpr(
        [*jaxpr.constvars, *params, *(leaf.invar for leaf in hidden), *inputs],
        [*(leaf.outvar for leaf in hidden), *outputs],
        jaxpr.eqns,
        jaxpr,
    )
    counts = {Role.PARAM: params, Role.HIDDEN: hidden, Role.OTHER: [], Role.INPUT: inputs, Role.OUTPUT: outputs}
    trees = {role: jax.tree.structure([0] * len(vs)) for role, vs in counts.items()}
    return check_step(Step(flat, tuple(consts), tuple(ins), tuple(outs), trees))


def _leaves(role: Role, name: str, variables: Sequence[Var | Literal]) -> list[Leaf]:
    return [Leaf(role, (name, k), shape_struct(v.aval)) for k, v in enumerate(variables)]


def _hidden_leaf(hidden: HiddenLeaf) -> Leaf:
    """The leaf of a hidden state, which says itself whether its last axis counts states at a position."""
    state, aval = hidden.state, shape_struct(hidden.invar.aval)
    if isinstance(state, Leaf):
        state_axis = state.state_axis
    else:
        varshape = getattr(state, "varshape", None)
        state_axis = varshape is not None and len(varshape) < len(aval.shape)
    return Leaf(Role.HIDDEN, hidden.path, aval, state, state_axis)
