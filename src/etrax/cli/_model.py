"""From `MODULE:FACTORY` to a model, its learner and some data."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._compat import is_extended, shape_struct
from .._compile import compile as compile_learner
from .._errors import ArgumentError
from ..compiler.ir import PyTree
from ..learn import Learner
from ..rules import Rule

SHAPES = "a model that needs nothing else, (module, inputs), or (step, params, hidden, inputs)"


class Model(NamedTuple):
    """What a factory returned: the model, and the example inputs of one step."""

    model: object
    params: PyTree
    hidden: PyTree
    inputs: tuple[PyTree, ...]

    def learner(self, rule: Rule | str) -> Learner:
        given = {"params": self.params, "hidden": self.hidden}
        values = {k: v for k, v in given.items() if v is not None}
        return compile_learner(self.model, rule, *self.inputs, **values)


def load_model(name: str) -> Model:
    """Import `module:factory` or `file.py:factory`, call the factory, and see what it returned."""
    where, colon, factory = name.rpartition(":")
    if not colon or not where or not factory:
        raise ArgumentError(f"{name!r} is no model: write MODULE:FACTORY, such as `models.lif:make` or `lif.py:make`.")
    module = _imported(where)
    function = getattr(module, factory, None)
    if not callable(function):
        known = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise ArgumentError(f"{where!r} has no function {factory!r}; it has {', '.join(known[:12]) or 'none'}.")
    return _seen(name, function())


def _imported(where: str) -> object:
    if where.endswith(".py"):
        path = Path(where)
        if not path.is_file():
            raise ArgumentError(f"there is no file {where!r}.")
        sys.path.insert(0, str(path.resolve().parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is not None and (where == error.name or where.startswith(f"{error.name}.")):
            raise ArgumentError(f"there is no module {where!r} here or among installed packages.") from error
        raise


def _seen(name: str, found: object) -> Model:
    if isinstance(found, tuple) and len(found) == 4:
        step, params, hidden, inputs = found
        return Model(step, params, hidden, _tuple(inputs))
    if isinstance(found, tuple) and len(found) == 2:
        return Model(found[0], None, None, _tuple(found[1]))
    if isinstance(found, tuple):
        raise ArgumentError(f"`{name}` returned {len(found)} things; a factory returns {SHAPES}.")
    return Model(found, None, None, ())


def _tuple(inputs: PyTree) -> tuple[PyTree, ...]:
    return inputs if isinstance(inputs, tuple) else (inputs,)


def sequence_like(inputs: tuple[PyTree, ...], steps: int, seed: int) -> tuple[PyTree, ...]:
    """Random inputs of many steps, of the shapes and types of those of one."""
    rng, keys = np.random.RandomState(seed), jax.random.split(jax.random.key(seed), steps)

    def one(a: PyTree) -> PyTree:
        found = shape_struct(a)
        if is_extended(found):
            return jax.vmap(lambda k: jax.random.split(k, found.shape))(keys) if found.shape else keys
        if not jnp.issubdtype(found.dtype, jnp.inexact):
            return jnp.broadcast_to(jnp.asarray(a), (steps, *found.shape))  # what whole numbers are for is not known
        return jnp.asarray(rng.standard_normal((steps, *found.shape)), found.dtype)

    return jax.tree.map(one, inputs)


def squares(output: PyTree, target: PyTree) -> jax.Array:
    """A loss for any output: the mean of its squares, shifted so that no gradient is zero by symmetry."""
    leaves = [a for a in jax.tree.leaves(output) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return sum((jnp.mean(jnp.abs(a + 0.3) ** 2) for a in leaves), jnp.zeros(()))
