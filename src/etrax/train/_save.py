"""What one holds in the middle of a sequence, on disk: parameters, optimizer, state and trace."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from threading import Lock, Thread

import jax
import jax.numpy as jnp
from jax import tree as trees

from .._arguments import check_arrays, check_flag, check_path, foreign
from .._compat import staged_copy
from .._errors import ArgumentError, ArgumentTypeError
from ..compiler.ir import PyTree
from ..learn import Identity, Learner, check_accept, check_learner, describe_differences, identity_of
from ._store import Store, shapes_of
from ._stored import CheckpointError, damaged

FORMAT = "etrax.save 3"
OLD_FORMATS = ("etrax.save 1", "etrax.save 2")  # traces lay in another order; the first says nothing of the model
WORDS = ("model", "rule", "names")


def save(
    directory: str | Path, *, params: PyTree = None, opt_state: PyTree = None, state: PyTree = None,
    learner: Learner | None = None, background: bool = False,
) -> Saving | None:  # fmt: skip
    """Save values to a directory, completely or not at all; the last two saves are kept.

    - `directory`: where to save; it is created if it is missing.
    - `params`, `opt_state`, `state`: the values to save, any of them.
    - `learner`: also records what the values belong to (model, rule, and the names of parameters and states), so that
      `restore` can refuse others. Parameters and state must then be those of this learner.
    - `background`: True copies the values and lets a thread write them while learning continues (writing takes a tenth
      of a second or more, however small they are). It returns a `Saving`, whose `wait()` returns when all is written.
      Another save or `restore` of the same directory waits for it too, and so does the end of Python.

    >>> import etrax, jax.numpy as jnp, tempfile
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> state, _ = learner.step(learner.params, learner.init(), jnp.ones(3))
    >>> directory = tempfile.mkdtemp()
    >>> etrax.save(directory, params=learner.params, state=state, learner=learner)
    >>> restored = etrax.restore(directory, like={"params": learner.params, "state": learner.init()}, learner=learner)
    >>> int(restored["state"].step)
    1
    """
    parts = {"params": params, "opt_state": opt_state, "state": state}
    tree = _checked({name: value for name, value in parts.items() if value is not None})
    if not tree:
        raise ArgumentError("`save` was given nothing: pass `params=`, `opt_state=` or `state=`.")
    belongs = {} if learner is None else _checked_identity(learner, tree)
    meta = {"format": FORMAT, "jax": jax.__version__, "arrays": shapes_of(tree), "learner": belongs}
    if check_flag("background", background):
        return Saving(directory, tree, meta)
    wait_for(directory)
    _write(directory, tree, meta)
    return None


def _write(directory: str | Path, tree: Mapping[str, PyTree], meta: dict[str, object]) -> None:
    with Store(directory, "directory") as store:
        latest = store.latest()
        try:
            store.write(0 if latest is None else latest + 1, tree, meta)
        except CheckpointError as error:
            raise CheckpointError(
                f"nothing could be saved in {str(directory)!r}: {error}. What was saved before it is intact."
            ) from error


class Saving:
    """A save that a thread writes. `wait()` returns when it is done, or raises what went wrong; `done` says if it is.

    What goes wrong is a `RuntimeWarning` as well, in case nobody waits.

    >>> import etrax, jax.numpy as jnp, tempfile
    >>> saving = etrax.save(tempfile.mkdtemp(), params={"w": jnp.ones(3)}, background=True)
    >>> saving.wait()
    >>> saving.done
    True
    """

    def __init__(self, directory: str | Path, tree: Mapping[str, PyTree], meta: dict[str, object]):
        if jax.process_count() > 1:
            raise ArgumentError("`background=True` is for one process: of several, all write together.")
        where = check_path("directory", directory).resolve()
        with _LOCK:
            before = _RUNNING.get(where)
            # Copies: who gives an array away afterwards (`donate=True`) does not change what is written.
            copies = trees.map(staged_copy, dict(tree))
            self._error: Exception | None = None
            self._thread = Thread(target=self._run, args=(before, directory, copies, meta), name="etrax.save")
            self._thread.start()  # first: a thread that the system refuses is nothing to wait for
            _RUNNING[where] = self

    def __repr__(self) -> str:
        return f"<Saving: {'failed' if self._error else 'done' if self.done else 'running'}>"

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Return when all is on the disk; raise `CheckpointError` if it could not be saved."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self, before: Saving | None, directory: str | Path, tree: PyTree, meta: dict[str, object]) -> None:
        try:
            if before is not None:
                before._thread.join()  # whether it failed is for who holds it to see
            _write(directory, tree, meta)
        except Exception as error:
            self._error = error
            # Nobody may ever wait for it, and `restore` will then give what was saved before.
            warnings.warn(f"a save in the background failed: {error}", RuntimeWarning, stacklevel=1)


# The last save of each directory that a thread writes, or has written.
_RUNNING: dict[Path, Saving] = {}
_LOCK = Lock()


def wait_for(directory: str | Path) -> None:
    """Wait for a thread that writes there."""
    saving = _RUNNING.get(check_path("directory", directory).resolve())
    if saving is not None:
        saving._thread.join()


def restore(
    directory: str | Path, *, like: Mapping[str, PyTree], learner: Learner | None = None,
    accept: str | Collection[str] = (),
) -> dict[str, PyTree]:  # fmt: skip
    """Read what was saved last, bit for bit.

    - `directory`: where it was saved.
    - `like`: values of the structure to return, for the parts to read: `{"params": …, "opt_state": …, "state": …}`.
    - `learner`: refuse values that were not saved with a learner of the same model (what its step computes, with its
      constants), rule and names; the error says what differs.
    - `accept`: what may differ all the same: some of "model", "rule", "names".

    >>> import etrax, jax.numpy as jnp, tempfile
    >>> directory = tempfile.mkdtemp() + "/saved"
    >>> etrax.save(directory, params={"w": jnp.ones(3)})
    >>> etrax.restore(directory, like={"params": {"w": jnp.zeros(3)}})["params"]["w"]
    Array([1., 1., 1.], dtype=float32)
    """
    if not isinstance(like, Mapping) or not like or not set(like) <= {"params", "opt_state", "state"}:
        raise ArgumentTypeError(
            "`like` must be a dictionary with examples of what was saved, under 'params', 'opt_state', 'state'."
        )
    accepted = check_accept(accept, WORDS)
    wait_for(directory)
    if not check_path("directory", directory).is_dir():
        raise CheckpointError(f"there is no directory {str(directory)!r}.")
    tree, where = _checked(dict(like)), str(directory)
    if learner is not None:
        check_learner(learner)

    def check(step: Path, meta: object) -> None:
        if not isinstance(meta, dict) or not isinstance(meta.get("format"), str):
            raise CheckpointError(f"{where!r} was not written by `etrax.save`.")
        if meta["format"] not in (FORMAT, *OLD_FORMATS):
            raise CheckpointError(f"{where!r} was written by another version of Etrax ({foreign(meta['format'])!r}).")
        if meta["format"] != FORMAT and "state" in tree:
            raise CheckpointError(
                f"{where!r} holds a trace that was written by an earlier version of Etrax, whose traces lay in another "
                "order. Read it with that version; its parameters can be used with this one, and `learner.init()`."
            )
        if not isinstance(meta.get("arrays"), dict) or not isinstance(meta.get("learner"), dict):
            raise damaged(step, "it does not say what it holds")
        if lines := describe_differences(meta["arrays"], dict(shapes_of(tree)), (), (), None):
            raise CheckpointError(f"{where!r} does not hold what `like` describes:\n{lines}")
        if learner is not None:
            _check_belongs(where, meta, learner, accepted)

    with Store(directory, "directory") as store:
        stored = store.read(tree, check)
    if stored is None:
        raise CheckpointError(f"nothing has been saved in {where!r}.")
    return stored[2]


def _checked(tree: Mapping[str, object]) -> dict[str, PyTree]:
    for name, value in tree.items():
        check_arrays(name, value)
    return trees.map(jnp.asarray, dict(tree))


def _checked_identity(learner: Learner, tree: Mapping[str, PyTree]) -> Identity:
    """What a learner is; the values are those that it works on."""
    check_learner(learner)
    if "params" in tree:
        learner.program.params(tree["params"])
    if "state" in tree:
        learner.program.check_state(tree["state"])
        learner.program.states(tree["state"].hidden)
    return identity_of(learner)


def _check_belongs(where: str, meta: Mapping[str, PyTree], learner: Learner, accept: tuple[str, ...]) -> None:
    if set(accept) == set(WORDS):
        return
    if not meta["learner"] or meta["format"] == OLD_FORMATS[0]:
        why = "without `learner=`" if not meta["learner"] else "by a version of Etrax that did not write down its model"
        raise CheckpointError(
            f"{where!r} was saved {why}, so it does not say what its values belong to. Leave `learner` out of "
            "`restore` to take them by their names and shapes."
        )
    if lines := describe_differences(meta["learner"], identity_of(learner), accept, WORDS, meta.get("jax")):
        raise CheckpointError(f"{where!r} was saved with another learner:\n{lines}")
