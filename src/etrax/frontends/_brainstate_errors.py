"""What can be wrong with a brainstate module, in words."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Container, Mapping
from typing import TypeGuard, TypeVar

import jax

from .._compat import run_equation
from .._errors import CompilationError, EtraxError
from .._install import install_advice
from ..compiler.ir import Path, Step, describe, equations, explain, format_path
from ..compiler.ir import explained as typed
from ._borrow import Module, State, held
from ._short_paths import short_paths

_T = TypeVar("_T")

_CLOCK = (
    "`{name}` reads `{key}` from its environment, which changes from step to step, so it must be an input of the "
    "step. Take it as an argument of `update` and pass it on,\n"
    "    def update(self, {key}, x):\n"
    "        with brainstate.environ.context({key}={key}):\n"
    "            return ...  # as before\n"
    "and pass its value at one step when compiling, `etrax.compile(model, rule, {key}, x)` (a time with its unit, "
    "`0. * brainunit.ms`); a sequence then has a value for every step, `(ts, xs)`."
)
_SHAPES = (
    "Pass example arguments of one step, and states of the same batch size: "
    "`brainstate.nn.init_all_states(model, batch_size=...)`."
)
_UNITS = (
    "Give each input the unit that the model's equations expect (for a current, `x * brainunit.mA`), and the time step "
    "a unit of time: `brainstate.environ.set(dt=0.1 * brainunit.ms)`."
)


def is_brainstate_module(model: object) -> TypeGuard[Module]:
    """Whether a model is a `brainstate.nn.Module`; if brainstate was never imported, none is."""
    nn = getattr(sys.modules.get("brainstate"), "nn", None)
    return nn is not None and isinstance(model, nn.Module)


def explained(
    model: Module, states: Mapping[Path, State], run: Callable[[], _T], arguments: Mapping[str, object]
) -> _T:
    """Run, and say what to do where a model without its states or its settings fails."""
    name = type(model).__name__
    try:
        return run()
    except EtraxError:
        raise
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
        raise  # numbers were asked of a trace: who traces the step says what to do
    except AttributeError as error:
        if not is_brainstate_module(error.obj):
            raise typed(CompilationError, error, explain(f"`{name}`", error, arguments)) from error
        raise CompilationError(
            f"`{name}` could not be run: {error}. If that is a state, it has not been created: pass "
            "`batch_size=` to `etrax.compile` (the batch axis of the inputs), or call "
            "`brainstate.nn.init_all_states(model)` first."
        ) from error
    except KeyError as error:
        key = str(error.args[0]).split("\n")[0].rstrip(".") if error.args else ""
        if clock := re.search(r"Key '(t|i)' not found", key):
            raise CompilationError(_CLOCK.format(name=name, key=clock[1])) from error
        raise CompilationError(
            f"`{name}` could not be run: KeyError: {key}. If that is a setting of its environment, such as the time "
            "step `dt`, set it before compiling: `brainstate.environ.set(dt=...)`."
        ) from error
    except Exception as error:  # the user's code may raise anything
        shorter = {id(s): (path, path) for path, s in states.items()} | short_paths(model, states)
        named = sorted((format_path(shorter[id(s)][1]), s) for s in states.values())
        listed = "".join(f"\n  state {name}: {describe(held(s), '')}" for name, s in named)
        said = explain(f"`{name}`", error, arguments)
        about_units = "unit" in said.splitlines()[0].lower()
        text = f"{said}\nIts states are:{listed or ' none'}\n{_UNITS if about_units else _SHAPES}"
        raise typed(CompilationError, error, text) from error


def check_no_new_state(model: Module, before: Mapping[Path, State]) -> None:
    """States that appear while the step runs would be left holding values of a finished trace."""
    for path in model.states():
        if path not in before:
            raise CompilationError(
                f"the step creates the state {format_path(path)} while it runs. Create it before: in `init_state`, "
                "which `brainstate.nn.init_all_states(model)` calls, or by running the model once."
            )


def check_kernels(step: Step, replaced: Container[str]) -> None:
    """Sparse products of brainevent can be run here: its back ends are found when a step is lowered, which is late.

    `replaced` names the products that are computed in another way.
    """
    names = getattr(sys.modules.get("brainevent"), "get_all_primitive_names", list)()
    for eqn in equations(step.jaxpr) if names else ():
        if eqn.primitive.name not in names or eqn.primitive.name in replaced:
            continue
        avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
        try:
            jax.jit(lambda *values, eqn=eqn: run_equation(eqn, values)).lower(*avals)
        except Exception as error:  # whatever a back end raises
            if type(error).__module__.split(".")[0] != "brainevent" and not isinstance(error, ImportError):
                raise
            raise CompilationError(
                f"the sparse product `{eqn.primitive.name}` of brainevent has no back end here: {error}\n"
                f"Install what models of brainpy need, {install_advice('brainpy')}, or choose the back end that "
                f"needs nothing: `brainevent.set_backend({jax.default_backend()!r}, 'jax_raw')`."
            ) from error
