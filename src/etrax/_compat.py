"""The only file that knows JAX versions and internals.

Everything that the rest of Etrax assumes about JAX beyond its documented API is behind a name of this
module, and is pinned by one small test each in `tests/test_compat.py`.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

import jax
import jax.extend.core as _extend
import numpy as np
from jax._src import core as _core
from jax._src import dtypes as _dtypes
from jax._src import source_info_util as _sources
from jax._src import xla_bridge as _bridge
from jax._src.array import ArrayImpl as ArrayImpl
from jax._src.interpreters import partial_eval as _partial_eval
from jax._src.lax.lax import copy_p as _copy_p

_P = ParamSpec("_P")
_R = TypeVar("_R")
_jex: Any = _extend
if TYPE_CHECKING:  # their fields are not typed in JAX
    Jaxpr: TypeAlias = Any
    JaxprEqn: TypeAlias = Any
    Var: TypeAlias = Any
else:
    Jaxpr, JaxprEqn, Var = _jex.Jaxpr, _jex.JaxprEqn, _jex.Var
Literal = _jex.Literal
Primitive = _jex.Primitive

# Before JAX 0.11 a closed jaxpr is a pair (jaxpr, consts); since then one class is both.
_MERGED = not hasattr(_core, "ClosedJaxpr")
_Jaxpr: Any = _jex.Jaxpr
_ClosedJaxpr: Any = _Jaxpr if _MERGED else _jex.ClosedJaxpr

# Calls whose body may stand in their place: same values, same derivatives.
INLINED = frozenset(
    {"jit", "pjit", "closed_call", "core_call", "named_call", "xla_call", "eval_jaxpr", "remat", "remat2", "checkpoint"}
)
# Calls whose derivative is a rule of the user's: never inlined where derivatives are taken.
CUSTOM = frozenset({"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"})


def open_jaxpr(jaxpr: Any) -> tuple[Jaxpr, tuple[Any, ...]]:
    """The bare jaxpr and the values of its constvars, whichever class holds them."""
    if _MERGED:
        return jaxpr, tuple(getattr(jaxpr, "consts", ()) or ())
    if isinstance(jaxpr, _ClosedJaxpr):
        return jaxpr.jaxpr, tuple(jaxpr.consts)
    return jaxpr, ()


def is_jaxpr(value: Any) -> bool:
    """Whether a value is a program, open or closed."""
    return isinstance(value, (_Jaxpr, _ClosedJaxpr))


def close_jaxpr(jaxpr: Jaxpr, consts: Sequence[Any] = ()) -> Any:
    """A closed jaxpr of the running JAX version."""
    if _MERGED:
        return _Jaxpr(
            jaxpr.constvars,
            jaxpr.invars,
            jaxpr.outvars,
            jaxpr.eqns,
            jaxpr.effects,
            jaxpr.debug_info,
            consts=tuple(consts),
        )
    return _ClosedJaxpr(jaxpr, tuple(consts))


def build_jaxpr(
    invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[Any], like: Jaxpr, constvars: Sequence[Any] = ()
) -> Jaxpr:
    """An open jaxpr over existing variables and equations; `like` gives its debug information.

    `jax.core.eval_jaxpr(jaxpr, values of constvars, *values of invars)` runs it, whichever the JAX version. A merged
    jaxpr carries the values of its constvars: none are known here, so that there they are its first inputs.
    """
    effects = frozenset().union(*(eqn.effects for eqn in eqns))
    debug = like.debug_info._replace(arg_names=None, result_paths=None)
    rest = (list(outvars), list(eqns), effects, debug)
    if _MERGED:
        return _Jaxpr([], [*constvars, *invars], *rest, consts=())
    return _Jaxpr(list(constvars), list(invars), *rest)


def build_closed(
    invars: Sequence[Any],
    outvars: Sequence[Any],
    eqns: Sequence[Any],
    like: Jaxpr,
    constvars: Sequence[Any],
    consts: Sequence[Any],
) -> Any:
    """A closed jaxpr over existing variables and equations, whose constvars have the given values."""
    effects = frozenset().union(*(eqn.effects for eqn in eqns))
    debug = like.debug_info._replace(arg_names=None, result_paths=None)
    parts = (list(constvars), list(invars), list(outvars), list(eqns), effects, debug)
    return _Jaxpr(*parts, consts=tuple(consts)) if _MERGED else _ClosedJaxpr(_Jaxpr(*parts), tuple(consts))


def is_call(eqn: JaxprEqn) -> bool:
    """Whether an equation is written out when a step is traced: a call, or an operation that stands for several."""
    return eqn.primitive.name in INLINED or eqn.primitive.name == "polynomial" or _is_marker(eqn)


def _is_marker(eqn: JaxprEqn) -> bool:
    return type(eqn.primitive).__name__ == "ETPPrimitive"


def new_variable(aval: Any) -> Var:
    """A variable that no jaxpr holds yet."""
    return _core.Var(aval)


def is_unread(v: Any) -> bool:
    """Whether a result of an equation has no name, since nothing reads it."""
    return isinstance(v, _core.DropVar)


def renamed(eqn: JaxprEqn, names: Mapping[Any, Any]) -> JaxprEqn:
    """An equation over other variables; those without a new name keep theirs."""
    new = lambda v: v if isinstance(v, Literal) else names.get(v, v)  # noqa: E731
    return eqn.replace(invars=list(map(new, eqn.invars)), outvars=list(map(new, eqn.outvars)))


def without_sources(jaxpr: Jaxpr) -> Jaxpr:
    """A jaxpr whose equations have no lines of their own: they then have those of the equation around (`within`)."""
    blank = _sources.new_source_info()
    eqns = [eqn.replace(source_info=blank) for eqn in jaxpr.eqns]
    return jaxpr.replace(eqns=eqns)


def expanded(eqn: JaxprEqn, values: Sequence[Any]) -> list[Any] | None:
    """One operation that stands for several, written out: same values, same derivatives. None for all others.

    `polynomial`, which `jnp.polyval` is made of from jax 0.12 on, joins all of its coefficients with the data at once.
    The marker ops of braintrace are ordinary products under another name.
    """
    if _is_marker(eqn):
        with source_of(eqn):
            values_out = eqn.primitive.impl(*values, **eqn.params)
        return list(values_out) if eqn.primitive.multiple_results else [values_out]
    if eqn.primitive.name != "polynomial":
        return None
    x, *coefficients = values
    with source_of(eqn):
        y = jax.numpy.broadcast_to(coefficients[-1], eqn.outvars[0].aval.shape)
        for a in reversed(coefficients[:-1]):
            y = y * x + a
    return [y]


def inner_jaxpr(eqn: JaxprEqn) -> tuple[Jaxpr, tuple[Any, ...]]:
    """Body of an inlinable or custom call."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr", "callee"):
        if key in eqn.params:
            return open_jaxpr(eqn.params[key])
    raise KeyError(f"`{eqn.primitive.name}` holds no jaxpr under a known name")


def rule_function(eqn: JaxprEqn) -> tuple[Any, Any] | None:
    """The function that is the derivative rule of a `custom_jvp` call, and the tree of its arguments; None if unknown.

    JAX keeps the rule in closures, each made anew for every call. A rule that takes arguments of the call that are no
    arrays (`nondiff_argnums`) has a further transformation around it, and is not told apart by its function alone.
    """
    thunk = _closed_over(eqn.params["jvp_jaxpr_fun"].f).get("fn")
    rule = _closed_over(thunk).get("jvp")
    transforms = getattr(rule, "transforms", ())
    trees = [arg for _, args in transforms for arg in args if isinstance(arg, jax.tree_util.PyTreeDef)]
    return (rule.f, trees[0]) if rule is not None and len(transforms) == 1 and len(trees) == 1 else None


def _closed_over(function: Any) -> dict[str, Any]:
    """What a Python function closes over, by name; nothing for what is no Python function."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return dict(zip(names, (cell.cell_contents for cell in getattr(function, "__closure__", None) or ()), strict=True))


class ScanParts(NamedTuple):
    """A scan's body and the split of its operands: consts, carry, then scanned inputs."""

    jaxpr: Jaxpr
    consts: tuple[Any, ...]
    num_consts: int
    num_carry: int
    length: int
    reverse: bool
    unroll: int


def scan_parts(eqn: JaxprEqn) -> ScanParts:
    p = eqn.params
    if "ft_in" in p:
        n_consts, n_carry = (len(part) for part in p["ft_in"].unpack()[:2])
    else:
        n_consts, n_carry = p["num_consts"], p["num_carry"]
    body, consts = open_jaxpr(p["jaxpr"])
    return ScanParts(body, consts, n_consts, n_carry, p["length"], p["reverse"], p.get("unroll", 1))


def cond_branches(eqn: JaxprEqn) -> list[tuple[Jaxpr, tuple[Any, ...]]]:
    return [open_jaxpr(b) for b in eqn.params["branches"]]


def needed_for(eqn: JaxprEqn, output: int) -> tuple[Jaxpr, list[bool]]:
    """A jaxpr that computes one output of an equation, and which of the equation's operands it reads, in order.

    Loops and branches lose what the output does not need.
    """
    operands = list(dict.fromkeys(v for v in eqn.invars if not isinstance(v, Literal)))
    like = bodies_of(eqn)[0]
    alone = build_jaxpr(operands, [eqn.outvars[output]], [eqn], like)
    pruned, used = _partial_eval.dce_jaxpr(alone, [True])
    read = {v for v, u in zip(operands, used, strict=True) if u}
    counted: set[Any] = set()
    first = lambda v: not (v in counted or counted.add(v))  # noqa: E731
    return pruned, [not isinstance(v, Literal) and v in read and first(v) for v in eqn.invars]


def without_dead_code(jaxpr: Jaxpr, outputs: Sequence[bool] | None = None) -> Jaxpr:
    """Remove the equations that no output needs, and outputs that are not asked for; the inputs stay as they are."""
    return _partial_eval.dce_jaxpr(jaxpr, outputs or [True] * len(jaxpr.outvars), instantiate=True)[0]


def bodies_of(eqn: JaxprEqn) -> list[Jaxpr]:
    """The programs that an equation holds: a loop's body, branches, a call's."""
    values = [v for value in eqn.params.values() for v in (value if isinstance(value, (tuple, list)) else (value,))]
    return [body for body in (open_jaxpr(v)[0] for v in values) if hasattr(body, "eqns")]


def same_program(a: Jaxpr, b: Jaxpr) -> bool:
    """Whether two programs do the same with their arguments and constants, whatever the values of these are."""
    if len(a.eqns) != len(b.eqns):
        return False
    pairs: dict[Any, Any] = {}

    def alike(x: Any, y: Any) -> bool:
        if isinstance(x, Literal) or isinstance(y, Literal):
            return (
                isinstance(x, Literal) and isinstance(y, Literal) and x.aval == y.aval and bool(np.all(x.val == y.val))
            )
        return x.aval == y.aval and pairs.setdefault(x, y) is y

    def all_alike(xs: Sequence[Any], ys: Sequence[Any]) -> bool:
        return len(xs) == len(ys) and all(map(alike, xs, ys))

    if not (all_alike(a.constvars, b.constvars) and all_alike(a.invars, b.invars)):
        return False
    for p, q in zip(a.eqns, b.eqns, strict=True):
        if p.primitive is not q.primitive or not all_alike(p.invars, q.invars) or not all_alike(p.outvars, q.outvars):
            return False
        inner = bodies_of(p), bodies_of(q)
        if len(inner[0]) != len(inner[1]) or not all(map(same_program, *inner)):
            return False
        if not inner[0] and p.primitive.name not in CUSTOM and repr(p.params) != repr(q.params):
            return False
    return all_alike(a.outvars, b.outvars)


class WhileParts(NamedTuple):
    """A while loop's condition and body, and the split of its operands: constants of each, then the carry."""

    cond: tuple[Jaxpr, tuple[Any, ...]]
    body: tuple[Jaxpr, tuple[Any, ...]]
    cond_consts: int
    body_consts: int


def while_parts(eqn: JaxprEqn) -> WhileParts:
    p = eqn.params
    return WhileParts(open_jaxpr(p["cond_jaxpr"]), open_jaxpr(p["body_jaxpr"]), p["cond_nconsts"], p["body_nconsts"])


class ShardMapParts(NamedTuple):
    """The body that each device runs, the mesh axes that it runs over by size, and the names each axis is cut along."""

    jaxpr: Jaxpr
    consts: tuple[Any, ...]
    sizes: dict[str, int]
    in_specs: tuple[tuple[tuple[str, ...], ...], ...]
    out_specs: tuple[tuple[tuple[str, ...], ...], ...]


def shard_map_parts(eqn: JaxprEqn) -> ShardMapParts:
    p = eqn.params
    names = p.get("newly_manual_axes", p.get("manual_axes", p["mesh"].axis_names))
    sizes = {name: p["mesh"].shape[name] for name in p["mesh"].axis_names if name in names}

    def listed(spec: Any) -> tuple[tuple[str, ...], ...]:
        return tuple(() if e is None else e if isinstance(e, tuple) else (e,) for e in spec)

    body, consts = open_jaxpr(p["jaxpr"])
    return ShardMapParts(body, consts, sizes, tuple(map(listed, p["in_specs"])), tuple(map(listed, p["out_specs"])))


def run_equation(eqn: JaxprEqn, values: Sequence[Any]) -> list[Any]:
    """Run one equation on values, keeping its source line and context; always a list."""
    params = eqn.primitive.get_bind_params(eqn.params)
    if eqn.primitive.name in CUSTOM:
        # Derivative rules are the user's own code and expect arrays of JAX: numpy's cannot be indexed by a tracer.
        values = [v if isinstance(v, jax.Array) else jax.numpy.asarray(v) for v in values]
    with source_of(eqn), eqn.ctx.manager:
        out = eqn.primitive.bind(*values, **params)
    return list(out) if eqn.primitive.multiple_results else [out]


# The equations around the one that is being walked, innermost first, as nested pairs: JAX traces its own functions
# apart from their callers, so that an equation of theirs has no line of the user's.
_around: contextvars.ContextVar[Any] = contextvars.ContextVar("etrax_source", default=None)


# The inner workings of these libraries say nothing about the model.
PLUMBING = ("saiunit", "brainunit", "brainevent")
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


def is_in(file: str, packages: Sequence[str]) -> bool:
    """Whether a file is part of one of these packages as they are imported here, wherever that may be."""
    return _stands_in(file, _files_of(packages))


def _files_of(packages: Sequence[str]) -> tuple[str | None, ...]:
    return tuple(getattr(sys.modules.get(name), "__file__", None) for name in packages)


@functools.lru_cache(maxsize=4096)
def _stands_in(file: str, modules: tuple[str | None, ...]) -> bool:
    return any(file.startswith(os.path.dirname(module) + os.sep) for module in modules if module)


def is_installed(file: str) -> bool:
    """Whether a file is a library's: it stands where packages are installed, or belongs to Python."""
    return _is_installed(file, library_files())


def library_files() -> tuple[str | None, ...]:
    """Where the modelling libraries that are imported by now are."""
    return _files_of(LIBRARIES)


def _is_installed(file: str, libraries: tuple[str | None, ...]) -> bool:
    return any(folder in file for folder in _INSTALLED) or file.startswith(_STANDARD) or _stands_in(file, libraries)


# Modelling libraries, also where they are not installed but checked out.
LIBRARIES = ("brainstate", "braintools", "brainpy", "brainpy_state", "brainspike", "braintrace", "flax", "equinox",
             "optax", *PLUMBING)  # fmt: skip


def _traceback(eqn: JaxprEqn) -> Any:
    """Where the equation was written, or the innermost equation around it that the user wrote."""
    around, outer = [eqn.source_info.traceback], _around.get()
    while outer is not None:
        around.append(outer[0])
        outer = outer[1]
    return around[0] if len(around) == 1 else _written(tuple(around), library_files())


@functools.lru_cache(maxsize=4096)
def _written(around: tuple[Any, ...], libraries: tuple[str | None, ...]) -> Any:
    """The first of these tracebacks with a file of the user's; failing that of a library; failing that of any."""
    plumbing = _files_of(PLUMBING)
    skips = (lambda file: _is_installed(file, libraries), lambda file: _stands_in(file, plumbing), lambda file: False)
    for skipped in skips:
        for traceback in around:
            if any(not skipped(file) for file, *_ in _user_frames(traceback)):
                return traceback
    return around[0]


@functools.lru_cache(maxsize=4096)
def _user_frames(traceback: Any) -> tuple[tuple[str, int, str], ...]:
    return tuple((f.file_name, f.start_line, f.function_name) for f in _sources.user_frames(traceback))


class within:
    """Within it, equations of a body that have no line of their own have that of `eqn`."""

    __slots__ = ("_token", "_traceback")

    def __init__(self, eqn: JaxprEqn):
        self._traceback = eqn.source_info.traceback

    def __enter__(self) -> None:
        self._token = _around.set((self._traceback, _around.get()))

    def __exit__(self, *_: object) -> None:
        _around.reset(self._token)


def source_of(eqn: JaxprEqn) -> contextlib.AbstractContextManager[Any]:
    """Within it, new equations carry the source line of `eqn`."""
    stack = _sources.current_name_stack() + eqn.source_info.name_stack
    return _sources.user_context(_traceback(eqn), name_stack=stack)


def source_frames(eqn: JaxprEqn) -> tuple[tuple[str, int, str], ...]:
    """File, line and function of the code that made the equation, innermost first, without JAX's own frames."""
    return _user_frames(_traceback(eqn))


def with_source(eqn: JaxprEqn) -> JaxprEqn:
    """The equation, with the line of the equation around it (`within`) if it has none of its own."""
    return eqn.replace(source_info=eqn.source_info.replace(traceback=_traceback(eqn)))


def is_inexact(aval: Any) -> bool:
    """Whether values of this type have derivatives (floating or complex, not PRNG keys)."""
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and not is_extended(aval) and bool(_dtypes.issubdtype(dtype, np.inexact))


def is_complex(aval: Any) -> bool:
    """Whether an array holds complex numbers."""
    return not is_extended(aval) and bool(_dtypes.issubdtype(aval.dtype, np.complexfloating))


def is_extended(aval: Any) -> bool:
    """PRNG keys and other types that numpy does not know."""
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and bool(_dtypes.issubdtype(dtype, jax.dtypes.extended))


def common_dtype(*dtypes: Any) -> Any:
    """The type that holds all of these, by JAX's standard rules whatever the caller allows as implicit casts."""
    with jax.numpy_dtype_promotion("standard"):
        return jax.numpy.result_type(*dtypes)


def promotes(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function joins types and ranks by JAX's standard rules: what a caller forbids is meant for their own code."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return function(*args, **kwargs)

    return call


@contextlib.contextmanager
def transfers_meant() -> Iterator[None]:
    """Within it numbers go between host and device, whatever `jax.transfer_guard` a caller has set. It decorates, too.

    For code that makes arrays (JAX sends the number that fills them) or whose data lie with the host, never for calls
    that a training loop makes at every step.
    """
    with jax.transfer_guard("allow"):
        yield


def shape_struct(x: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an array, a number or a struct."""
    if isinstance(x, jax.ShapeDtypeStruct):
        return x
    if hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, type):
        return jax.ShapeDtypeStruct(x.shape, _dtypes.canonicalize_dtype(x.dtype, allow_extended_dtype=True))
    aval = jax.typeof(x)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def staged_copy(x: Any) -> Any:
    """A copy that is an equation of its own, also of a constant."""
    return _copy_p.bind(jax.numpy.asarray(x))


def zeros_of(aval: Any) -> Any:
    """Zeros of a shape and type; keys of zeros, which `jax.numpy.zeros` does not make."""
    if not is_extended(aval):
        return jax.numpy.zeros(aval.shape, aval.dtype)
    kind = aval.dtype._impl
    return jax.random.wrap_key_data(jax.numpy.zeros((*aval.shape, *kind.key_shape), "uint32"), impl=kind.name)


def materialised(tree: Any) -> Any:
    """Let XLA write values down once, so that it does not compute them again wherever they are read.

    Up to JAX 0.10, XLA drops an optimization barrier on a CPU before it fuses. There the values are the start of a loop
    that never runs, since one of them would have to be greater than infinity, which XLA does not see. A loop keeps the
    values where they are; the branches of a `cond` would copy them.
    """
    if not any(a.size for a in jax.tree.leaves(tree)):
        return tree
    return jax.lax.optimization_barrier(tree) if _MERGED else _start_of_loop(tree)


@jax.custom_jvp
def _start_of_loop(tree: Any) -> Any:
    first = next(a for a in jax.tree.leaves(tree) if a.size)
    never = jax.numpy.real(first.reshape(-1)[0]) > np.inf

    def run(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        return carry[0] & False, jax.tree.map(jax.numpy.negative, carry[1])

    return jax.lax.while_loop(lambda carry: carry[0], run, (never, tree))[1]


# A loop has no reverse derivative; that of the values is what they had.
_start_of_loop.defjvp(lambda primals, tangents: (_start_of_loop(*primals), *tangents))


def is_concrete(tree: Any) -> bool:
    """Whether the leaves of a tree are numbers rather than stand-ins inside `jit`, `vmap` or `scan`."""
    return not any(isinstance(a, _core.Tracer) for a in jax.tree.leaves(tree))


def is_live(tree: Any) -> bool:
    """Whether no leaf of a tree is a stand-in of a transformation that has ended."""
    running, trace = [], _core.trace_ctx.trace
    while trace is not None:
        running.append(trace)
        trace = getattr(trace, "parent_trace", None)
    tracers = [a for a in jax.tree.leaves(tree) if isinstance(a, _core.Tracer)]
    return all(any(a._trace is t for t in running) for a in tracers)


def has_backends() -> bool:
    """Whether JAX has found its devices, and with them read the flags of its compiler."""
    return _bridge.backends_are_initialized()
