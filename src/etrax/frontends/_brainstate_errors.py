"""What can be wrong with a brainstate module, in words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TypeGuard, TypeVar

import jax

from .._errors import CompilationError, EtraxError
from ..ir import Path, explain, format_path, leaves_with_paths
from ..ir import explained as typed
from ._borrow import Module, State, held
from ._units import strip

_T = TypeVar("_T")


def is_brainstate_module(model: object) -> TypeGuard[Module]:
    """Whether a model is a `brainstate.nn.Module`; if brainstate was never imported, none is."""
    nn = getattr(sys.modules.get("brainstate"), "nn", None)
    return nn is not None and isinstance(model, nn.Module)


def explained(model: Module, known: Mapping[Path, State], run: Callable[[], _T], given: Mapping[str, object]) -> _T:
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
            raise typed(CompilationError, error, explain(f"`{name}`", error, given)) from error
        raise CompilationError(
            f"`{name}` could not be run: {error}. If that is a state, it has not been created: call "
            "`brainstate.nn.init_all_states(model)` first (with `batch_size=` if the inputs have a batch axis)."
        ) from error
    except KeyError as error:
        key = str(error.args[0]).split("\n")[0].rstrip(".") if error.args else ""
        raise CompilationError(
            f"`{name}` could not be run: KeyError: {key}. If that is a setting of its environment, such as the time "
            "step `dt`, set it before compiling: `brainstate.environ.set(dt=...)`."
        ) from error
    except Exception as error:  # the user's code may raise anything
        found = "".join(f"\n  state {format_path(p)}: {_shapes(s)}" for p, s in known.items())
        text = (
            f"{explain(f'`{name}`', error, given)}\nIts states are:{found or ' none'}\n"
            "Pass example arguments of one step, and states of the same batch size: "
            "`brainstate.nn.init_all_states(model, batch_size=...)`."
        )
        raise typed(CompilationError, error, text) from error


def _shapes(state: State) -> str:
    found = [(p, leaf) for p, leaf in leaves_with_paths(strip(held(state))) if hasattr(leaf, "dtype")]
    return ", ".join((f"{format_path(p)} " if p else "") + f"{leaf.dtype}{list(leaf.shape)}" for p, leaf in found)


def check_no_new_state(model: Module, known: Mapping[Path, State]) -> None:
    """States that appear while the step runs would be left holding values of a finished trace."""
    for path in model.states():
        if path not in known:
            raise CompilationError(
                f"the step creates the state {format_path(path)} while it runs. Create it before: in `init_state`, "
                "which `brainstate.nn.init_all_states(model)` calls, or by running the model once."
            )
