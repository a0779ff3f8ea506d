"""What an entry of the zoo is, and the helpers its models are written with."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

EXACT, REPORTED, UNUSED = "exact", "reported", "unused"

# Batch, input and hidden sizes, all different so that a wrong axis cannot pass unseen.
B, I, H = 3, 4, 5


def mean_squared_error(output, target):
    """The mean of |output - target|² over each leaf, averaged over the leaves; low precision is widened to float32."""

    def leaf(o, t):
        error = (o - t).astype(jnp.promote_types(o.dtype, jnp.float32))
        return jnp.mean(jnp.real(error) ** 2 + jnp.imag(error) ** 2)

    losses = jax.tree.leaves(jax.tree.map(leaf, output, target))
    return sum(losses) / len(losses)


@dataclass(frozen=True)
class Model:
    """One step with its numbers.

    ``expect`` maps the path of every parameter leaf to "exact", "reported" (verdict approximate or truncated, with a
    reason that names the cause) or "unused". A path in ``either`` may be judged "exact" or "reported": the other word
    is then no failure, but "exact" must still be true. ``tol`` is the relative error allowed for an exact gradient.
    """

    name: str
    family: str
    step: Callable
    params: Any
    hidden: Any
    make_inputs: Callable[[int, int], tuple]
    make_target: Callable[[int, int], Any]
    expect: dict[tuple, str]
    note: str = ""
    needs: tuple[str, ...] = ()
    loss: Callable = mean_squared_error
    tol: float = 1e-9
    either: frozenset = frozenset()
    spikes: Callable | None = None  # from the output to the spikes in it, for spiking models
    make_mask: Callable[[int, int], Any] | None = None  # (T, seed) -> weights (T, B) of the per-sample losses
    linear: bool = True  # whether all of its derivative rules are linear, and known to be: else no trace is exact


@dataclass(frozen=True)
class Entry:
    """A model not yet built. Calling it builds the model, once."""

    name: str
    family: str
    factory: Callable
    options: dict

    @property
    def needs(self):
        return self.options.get("needs", ())

    def __call__(self) -> Model:
        return self.model

    @cached_property
    def model(self):
        step, params, hidden, make_inputs, *make_target = self.factory(Draw(self.name))
        make_target = make_target[0] if make_target else target_like(step, params, hidden, make_inputs)
        note = " ".join((self.factory.__doc__ or "").split())
        return Model(self.name, self.family, step, params, hidden, make_inputs, make_target, note=note, **self.options)


@dataclass(frozen=True)
class Family:
    """Collects entries: ``@family({"w": EXACT})`` above a function that takes a ``Draw`` and returns
    ``step, params, hidden, make_inputs`` and, if the default will not do, ``make_target``."""

    name: str
    entries: list[Entry] = field(default_factory=list)

    def __call__(self, expect, *, either=(), **options):
        expect = {as_path(key): value for key, value in expect.items()}
        options |= {"expect": expect, "either": frozenset(as_path(key) for key in either)}

        def register(factory):
            self.entries.append(Entry(f"{self.name}/{factory.__name__}", self.name, factory, options))
            return factory

        return register


def as_path(key):
    return key if isinstance(key, tuple) else (key,)


class Draw:
    """Random numbers that depend on a name only."""

    def __init__(self, name):
        self.rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**32)

    def __call__(self, *shape, scale=0.5):
        """Normal numbers."""
        return jnp.asarray(scale * self.rng.standard_normal(shape))

    def uniform(self, low, high, *shape):
        return jnp.asarray(self.rng.uniform(low, high, shape))

    def integers(self, n, *shape):
        return jnp.asarray(self.rng.randint(n, size=shape), jnp.int32)


# Input streams: each takes a generator and T and gives a time-major array.


def normal(*shape, dtype=float):
    return lambda rng, T: jnp.asarray(rng.standard_normal((T, *shape)), dtype)


def tokens(n, *shape):
    return lambda rng, T: jnp.asarray(rng.randint(n, size=(T, *shape)), jnp.int32)


def coins(*shape, p=0.5):
    return lambda rng, T: jnp.asarray(rng.uniform(size=(T, *shape)) < p)


def inputs(*streams):
    """``make_inputs`` for a step with one input per stream."""

    def make_inputs(T, seed):
        rng = np.random.RandomState(seed)
        return tuple(stream(rng, T) for stream in streams)

    return make_inputs


def target_like(step, params, hidden, make_inputs):
    """``make_target`` with the structure, shape and dtype of the step's output."""

    def make_target(T, seed):
        first = jax.tree.map(lambda a: a[0], make_inputs(1, seed))
        _, output = jax.eval_shape(step, params, hidden, *first)
        rng = np.random.RandomState(seed + 1_000_003)
        return jax.tree.map(lambda o: jnp.asarray(rng.standard_normal((T, *o.shape)), o.dtype), output)

    return make_target
