"""A run on disk: the state at the end of the last finished epoch, and what the run was made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jax

from ..compiler.ir import PyTree
from ..learn import Identity, describe_differences
from ._batch import Live
from ._records import Epoch
from ._store import Store, shapes_of
from ._stored import CheckpointError, damaged, epochs_of

FORMAT = 3
OLD_FORMAT = 2  # says nothing of the model, the loss, the optimizer and the data
ARRAYS = "arrays"


@dataclass(frozen=True)
class Point:
    """A run between two epochs: all that the next one needs, since the order of its samples follows from its number."""

    live: Live
    best_params: PyTree
    best: int | None = None
    history: tuple[Epoch, ...] = ()

    @property
    def step(self) -> int:
        return self.history[-1].step if self.history else 0


class Saver:
    """Saves points in a directory, of which it is the only user while it is entered.

    `settings` say by word what makes two runs the same: a checkpoint with others is refused, but for the words that are
    accepted.
    """

    def __init__(self, directory: str | Path, settings: Identity, accept: tuple[str, ...] = ()):
        self.store, self.settings, self.accept = Store(directory, "checkpoint"), dict(settings), accept

    def __enter__(self) -> Saver:
        self.store.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.store.__exit__(*error)

    def save(self, point: Point) -> None:
        history = [{k: v for k, v in vars(e).items() if k != "params"} for e in point.history]
        meta = {
            "format": FORMAT, "jax": jax.__version__, "run": self._run(point), "best": point.best, "history": history,
        }  # fmt: skip
        try:
            self.store.write(len(history), _tree(point), meta)
        except CheckpointError as error:
            raise CheckpointError(
                f"epoch {len(history)} could not be saved in {str(self.store.directory)!r}: {error}. What was saved "
                "before it is intact: make room there, and the same call continues from it. The parameters are in "
                "`.result.last_params` of this error."
            ) from error

    def load(self, like: Point) -> Point | None:
        """The last point, with the structure of `like`; None if there is none yet."""
        stored = self.store.read(_tree(like), lambda step, meta: self._check(step, meta, like))
        if stored is None:
            return None
        number, meta, tree = stored
        history = epochs_of(self.store.directory / str(number), meta)
        return Point(best_params=tree.pop("best_params"), live=Live(**tree), best=meta.get("best"), history=history)

    def _run(self, point: Point) -> Identity:
        return self.settings | {ARRAYS: shapes_of(_tree(point))}

    def _check(self, step: Path, meta: object, like: Point) -> None:
        where = str(self.store.directory)
        if not isinstance(meta, dict) or not isinstance(meta.get("run"), dict):
            raise damaged(step, "it does not say which run it belongs to")
        if meta.get("format") not in (FORMAT, OLD_FORMAT):
            raise CheckpointError(f"`checkpoint` {where!r} was written by another version of Etrax.")
        was, now, what = meta["run"], self._run(like), "belongs to a different run"
        if meta["format"] == OLD_FORMAT:
            was = {k: was[k] for k in self.settings if k in was and k != "data"} | {
                ARRAYS: {k: was[k] for k in was if k in now[ARRAYS] or k.split("[")[0] in _tree(like)}
            }
            what = "was written by a version of Etrax that did not record all settings of a run"
        if lines := describe_differences(was, now, self.accept, tuple(self.settings), meta.get("jax")):
            raise CheckpointError(
                f"`checkpoint` {where!r} {what}:\n{lines}\nOtherwise run with what it was made with, or use another "
                "directory. (`etrax train` takes those words by `--accept`.)"
            )
        if len(history := epochs_of(step, meta)) != int(step.name):
            raise damaged(step, f"its record is one of epoch {len(history)}")


def _tree(point: Point) -> dict[str, PyTree]:
    return {**point.live._asdict(), "best_params": point.best_params}
