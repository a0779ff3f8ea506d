"""From `MODULE:FACTORY` to a model, its learner and some data."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._arguments import format_bytes
from .._compat import is_extended, shape_struct
from .._compile import compile as compile_learner
from .._errors import ArgumentError
from ..compiler.ir import Role
from ..learn import Learner, default_budget
from ..rules import Rule

_KEY_BYTES = 8  # of the random key of a step
SHAPES = (
    "a model that needs nothing else, (module, inputs), (module, hidden, inputs), (step, params, hidden, inputs), or a "
    "learner"
)
DEFAULT_RULE = "d_rtrl"


class Model(NamedTuple):
    """What a factory returned: the model, and the example inputs of one step. `model` may be a learner already."""

    model: object
    params: object
    hidden: object
    inputs: tuple[object, ...]

    def learner(self, rule: Rule | str | None = None) -> Learner:
        """The learner under a rule; by default `d_rtrl`, or the rule that a learner has already."""
        if isinstance(self.model, Learner):
            return self.model if rule is None else self.model.with_rule(rule)
        rule = DEFAULT_RULE if rule is None else rule
        return compile_learner(self.model, rule, *self.inputs, params=self.params, hidden=self.hidden)


def load_model(name: str) -> Model:
    """Import `module:factory` or `file.py:factory`, call the factory, and see what it returned."""
    where, colon, factory = name.rpartition(":")
    if not colon or not where or not factory:
        raise ArgumentError(
            f"{name!r} does not name a model: write MODULE:FACTORY, such as `models.lif:make` or `lif.py:make`."
        )
    module = _imported(where)
    function = getattr(module, factory, None)
    if not callable(function):
        functions = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise ArgumentError(f"{where!r} has no function {factory!r}; it has {', '.join(functions[:12]) or 'none'}.")
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ArgumentError(
            f"{factory!r} of {where!r} needs arguments; name a function without any that returns {SHAPES}: "
            f"`def make(): return step, params, hidden, inputs`."
        ) from error
    except ValueError:  # what Python cannot tell the arguments of
        pass
    return _as_model(name, function())


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


def _as_model(name: str, returned: object) -> Model:
    if isinstance(returned, Learner):
        step = returned.facts.step
        one_step = [jnp.zeros(leaf.aval.shape, leaf.aval.dtype) for leaf in step.select(Role.INPUT)]
        return Model(returned, None, None, jax.tree.unflatten(step.trees[Role.INPUT], one_step))
    if returned is None:
        raise ArgumentError(f"`{name}` returned nothing; a factory returns {SHAPES}.")
    if not isinstance(returned, tuple):
        return Model(returned, None, None, ())
    if len(returned) not in (2, 3, 4):
        raise ArgumentError(f"`{name}` returned {len(returned)} things; a factory returns {SHAPES}.")
    model, *values, inputs = returned
    params, hidden = [None, None, *values][-2:]
    return Model(model, params, hidden, inputs if isinstance(inputs, tuple) else (inputs,))


def _check_length(learner: Learner, steps: int) -> None:
    """Inputs of so many steps, and the states that BPTT keeps of each, fit into memory."""
    step = learner.facts.step
    numbers = sum(leaf.aval.size for leaf in (*step.select(Role.INPUT), *step.states))
    size, budget = steps * (_KEY_BYTES + 8 * numbers), default_budget()
    if size > budget:
        raise ArgumentError(
            f"a sequence of {steps:,} steps of this model takes {format_bytes(size)}, more than half of the memory "
            "here: take a shorter one (`--steps`, or `--lengths` of `etrax bench`)."
        )


def sequence_like(learner: Learner, inputs: tuple[object, ...], steps: int, seed: int) -> tuple[object, ...]:
    """Random inputs of many steps, of the shapes and types of those of one; an error if they do not fit into memory."""
    _check_length(learner, steps)
    rng, keys = np.random.RandomState(seed), jax.random.split(jax.random.key(seed), steps)

    def one(a: jax.Array) -> jax.Array:
        struct = shape_struct(a)
        if is_extended(struct):
            return jax.vmap(lambda k: jax.random.split(k, struct.shape))(keys) if struct.shape else keys
        if not jnp.issubdtype(struct.dtype, jnp.inexact):
            return jnp.broadcast_to(jnp.asarray(a), (steps, *struct.shape))  # what whole numbers are for is not known
        return jnp.asarray(rng.standard_normal((steps, *struct.shape)), struct.dtype)

    return jax.tree.map(one, inputs)


def squares(output: object, target: object) -> jax.Array:
    """A loss for any output: the mean of its squares, shifted so that no gradient is zero by symmetry."""
    leaves = [a for a in jax.tree.leaves(output) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return sum((jnp.mean(jnp.abs(a + 0.3) ** 2) for a in leaves), jnp.zeros(()))
