"""Run a traced program in numpy, equation by equation.

Compiling a tiny program with XLA takes a second, running it in Python takes milliseconds. Every primitive is either a
function of numpy arrays in `TABLE`, a call or loop that is walked here, or bound eagerly in JAX (rare ones, narrow
floats, PRNG keys). What is found with it is repeated with XLA before it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from etrax._compat import (
    CUSTOM,
    INLINED,
    Literal,
    cond_branches,
    inner_jaxpr,
    open_jaxpr,
    run_equation,
    scan_parts,
    while_parts,
)

from .numpy_table import TABLE

PLAIN = frozenset(
    [
        "float64",
        "float32",
        "complex128",
        "complex64",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint64",
        "uint32",
        "uint8",
        "bool",
    ]
)


class Equation(NamedTuple):
    """An equation with its inputs and outputs as places in a list of values, and what runs it."""

    run: Callable[[Any, Sequence[Any]], Sequence[Any]]
    eqn: Any
    ins: tuple[int, ...]
    outs: tuple[int, ...]


class Program(NamedTuple):
    """A jaxpr made ready: constants in place, equations resolved."""

    values: list[Any]
    ins: tuple[int, ...]
    equations: list[Equation]
    outs: tuple[int, ...]


class Evaluator:
    """Evaluates jaxprs; `primitives` collects the names of all that were run."""

    def __init__(self) -> None:
        self.primitives: set[str] = set()
        self._programs: dict[int, tuple[Any, Program]] = {}
        self._traced: dict[Any, Any] = {}

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        """`function(*args)`, traced once for its shapes and run in numpy."""
        flat = [_host(a) for a in jax.tree.leaves(args)]
        key = (function, jax.tree.structure(args), *((a.shape, str(a.dtype)) for a in flat))
        if key not in self._traced:
            closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
            self._traced[key] = (*open_jaxpr(closed), jax.tree.structure(shape))
        jaxpr, consts, structure = self._traced[key]
        return jax.tree.unflatten(structure, self.run(jaxpr, consts, flat))

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        program = self._program(jaxpr, consts)
        values = list(program.values)
        for place, value in zip(program.ins, args, strict=True):
            values[place] = value
        for run, eqn, ins, outs in program.equations:
            for place, value in zip(outs, run(eqn, [values[i] for i in ins]), strict=True):
                values[place] = value
        return [values[i] for i in program.outs]

    def _program(self, jaxpr: Any, consts: Sequence[Any]) -> Program:
        known = self._programs.get(id(jaxpr))
        if known is not None:
            return known[1]
        values: list[Any] = []
        place_of: dict[Any, int] = {}

        def place(var: Any, value: Any = None) -> int:
            if isinstance(var, Literal):
                values.append(np.asarray(var.val, var.aval.dtype) if _plain(var.aval) else var.val)
                return len(values) - 1
            if var not in place_of:
                place_of[var] = len(values)
                values.append(value)
            return place_of[var]

        for var, value in zip(jaxpr.constvars, consts, strict=True):
            place(var, _host(value))
        ins = tuple(place(v) for v in jaxpr.invars)
        equations = []
        for eqn in jaxpr.eqns:
            self.primitives.add(eqn.primitive.name)
            read = tuple(place(v) for v in eqn.invars)
            equations.append(Equation(self._runner(eqn), eqn, read, tuple(place(v) for v in eqn.outvars)))
        program = Program(values, ins, equations, tuple(place(v) for v in jaxpr.outvars))
        self._programs[id(jaxpr)] = (jaxpr, program)
        return program

    def _runner(self, eqn: Any) -> Callable[[Any, Sequence[Any]], Sequence[Any]]:
        name = eqn.primitive.name
        if name in INLINED or name in CUSTOM:
            body, consts = inner_jaxpr(eqn)
            return lambda _, values: self.run(body, consts, values)
        if name in ("scan", "while", "cond"):
            return {"scan": self._scan, "while": self._while, "cond": self._cond}[name]
        if name == "convert_element_type" and not any(_key(v.aval) for v in (*eqn.invars, *eqn.outvars)):
            return TABLE[name]
        if name in TABLE and all(_plain(v.aval) for v in (*eqn.invars, *eqn.outvars)):
            return TABLE[name]
        return _in_jax

    def _scan(self, eqn: Any, values: Sequence[Any]) -> list[Any]:
        part = scan_parts(eqn)
        fixed, carry = list(values[: part.num_consts]), list(values[part.num_consts :][: part.num_carry])
        rows = values[part.num_consts + part.num_carry :]
        found: list[list[Any]] = []
        for i in reversed(range(part.length)) if part.reverse else range(part.length):
            outs = self.run(part.jaxpr, part.consts, [*fixed, *carry, *(a[i] for a in rows)])
            carry = outs[: part.num_carry]
            found.append(outs[part.num_carry :])
        if part.reverse:
            found.reverse()
        stacked = [_stack([one[j] for one in found], v.aval) for j, v in enumerate(eqn.outvars[part.num_carry :])]
        return [*carry, *stacked]

    def _while(self, eqn: Any, values: Sequence[Any]) -> list[Any]:
        part = while_parts(eqn)
        n, m = part.cond_consts, part.body_consts
        carry = list(values[n + m :])
        while bool(self.run(*part.cond, [*values[:n], *carry])[0]):
            carry = self.run(*part.body, [*values[n : n + m], *carry])
        return carry

    def _cond(self, eqn: Any, values: Sequence[Any]) -> list[Any]:
        branches = cond_branches(eqn)
        return self.run(*branches[int(np.clip(values[0], 0, len(branches) - 1))], values[1:])


def _in_jax(eqn: Any, values: Sequence[Any]) -> list[Any]:
    return [
        _host(a) for a in run_equation(eqn, [jax.numpy.asarray(a) if isinstance(a, np.ndarray) else a for a in values])
    ]


def _plain(aval: Any) -> bool:
    return getattr(aval, "dtype", None) is not None and str(aval.dtype) in PLAIN


def _key(aval: Any) -> bool:
    return jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)


def _host(value: Any) -> Any:
    """A numpy array of the type that JAX gives the value; PRNG keys stay as they are."""
    if isinstance(value, np.ndarray):
        return value
    value = jax.numpy.asarray(value)
    return value if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended) else np.asarray(value)


def _stack(rows: list[Any], aval: Any) -> Any:
    if not rows:
        return np.zeros(aval.shape, aval.dtype)
    return np.stack(rows) if isinstance(rows[0], np.ndarray | np.generic) else jax.numpy.stack(rows)
