"""A run on disk, by orbax: the state at the end of the last finished epoch, and what the run was made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from .._errors import EtraxError, MissingPackageError
from ._batch import Live
from ._records import Epoch

FORMAT = 1


class CheckpointError(EtraxError, ValueError):
    """A checkpoint that belongs to another run than this one."""


@dataclass(frozen=True)
class Point:
    """A run between two epochs: all that the next one needs, since the order of its samples follows from its number."""

    live: Live
    best_params: Any
    best: int | None = None
    history: tuple[Epoch, ...] = ()

    @property
    def step(self) -> int:
        return self.history[-1].step if self.history else 0


class Saver:
    """Saves points in a directory; only the last one is kept, and a save that was cut short does not count.

    `settings` name what makes two runs the same: a checkpoint with others is refused.
    """

    def __init__(self, directory: str | Path, settings: Mapping[str, Any]):
        try:
            import orbax.checkpoint as ocp
        except ImportError as error:
            raise MissingPackageError(
                "`checkpoint=` needs orbax-checkpoint: install it with `pip install 'etrax[train]'`."
            ) from error
        self.ocp, self.directory, self.settings = ocp, Path(directory).resolve(), dict(settings)
        if self.directory.exists() and not self.directory.is_dir():
            raise CheckpointError(f"`checkpoint` is {str(directory)!r}, which is a file; expected a directory.")

    def _manager(self) -> Any:
        options = self.ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
        return self.ocp.CheckpointManager(self.directory, options=options)

    def save(self, point: Point) -> None:
        history = [vars(e) for e in point.history]
        meta = {"format": FORMAT, "run": self._run(point), "best": point.best, "history": history}
        ocp = self.ocp
        with self._manager() as manager:
            args = ocp.args.Composite(arrays=ocp.args.StandardSave(_arrays(point)), meta=ocp.args.JsonSave(meta))
            manager.save(len(history), args=args)

    def load(self, like: Point) -> Point | None:
        """The last point, with the structure of `like`; None if there is none yet."""
        ocp = self.ocp
        if not self.directory.exists():
            return None
        with self._manager() as manager:
            step = manager.latest_step()
            if step is None:
                return None
            meta = manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())).meta
            self._check(meta, like)
            want = {k: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for k, a in _arrays(like).items()}
            args = ocp.args.Composite(arrays=ocp.args.StandardRestore(want))
            found = manager.restore(step, args=args).arrays
        history = tuple(Epoch(**e) for e in meta["history"])
        tree = _put_back(like, found)
        return Point(best_params=tree.pop("best_params"), live=Live(**tree), best=meta["best"], history=history)

    def _run(self, point: Point) -> dict[str, Any]:
        return {name: f"{a.dtype}{list(a.shape)}" for name, a in _leaves(point)} | self.settings

    def _check(self, meta: Mapping[str, Any], like: Point) -> None:
        if meta.get("format") != FORMAT:
            raise CheckpointError(f"`checkpoint` {str(self.directory)!r} was written by another version of Etrax.")
        was, now = meta["run"], self._run(like)
        wrong = [
            f"{k}: {was.get(k, 'absent')} there, {now.get(k, 'absent')} here"
            for k in {**was, **now}
            if was.get(k) != now.get(k)
        ]
        if wrong:
            shown = "\n".join(f"  {line}" for line in wrong[:8]) + ("\n  …" if len(wrong) > 8 else "")
            raise CheckpointError(
                f"`checkpoint` {str(self.directory)!r} holds another run than this one:\n{shown}\n"
                "Run with the settings it was made with, or use another directory."
            )


def _tree(point: Point) -> dict[str, Any]:
    return {**point.live._asdict(), "best_params": point.best_params}


def _leaves(point: Point) -> list[tuple[str, Any]]:
    flat, _ = jax.tree_util.tree_flatten_with_path(_tree(point))
    return [(path[0].key + jax.tree_util.keystr(path[1:]), leaf) for path, leaf in flat]


def _is_key(a: Any) -> bool:
    return jnp.issubdtype(a.dtype, jax.dtypes.prng_key)


def _arrays(point: Point) -> dict[str, Any]:
    """What is written: orbax takes no arrays of size zero, and keys go as their numbers."""
    return {name: jax.random.key_data(a) if _is_key(a) else a for name, a in _leaves(point) if a.size}


def _put_back(like: Point, found: Mapping[str, Any]) -> dict[str, Any]:
    def value(name: str, a: Any) -> Any:
        if name not in found:
            return a
        return jax.random.wrap_key_data(found[name], impl=jax.random.key_impl(a)) if _is_key(a) else found[name]

    tree = jax.tree.structure(_tree(like))
    return jax.tree.unflatten(tree, [value(name, a) for name, a in _leaves(like)])
