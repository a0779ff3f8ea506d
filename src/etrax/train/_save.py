"""What one holds in the middle of a sequence, on disk: parameters, optimizer, state and trace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
from jax import tree as trees

from .._arguments import check_arrays, check_path
from .._errors import ArgumentError, ArgumentTypeError
from ..ir import PyTree
from ..learn import Learner, check_learner
from ._store import Store, differences, named_leaves
from ._stored import CheckpointError, damaged

FORMAT = "etrax.save 1"


def save(
    directory: str | Path, *, params: PyTree = None, opt_state: PyTree = None, state: PyTree = None,
    learner: Learner | None = None,
) -> None:  # fmt: skip
    """Save what is given in a directory, whole or not at all; the last two saves are kept.

    `learner` writes down what the values belong to (rule, parameters, states), so that `restore` can tell.

    >>> import etrax, jax.numpy as jnp, tempfile
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> state, _ = learner.step(learner.params, learner.init(), jnp.ones(3))
    >>> directory = tempfile.mkdtemp()
    >>> etrax.save(directory, params=learner.params, state=state, learner=learner)
    >>> found = etrax.restore(directory, like={"params": learner.params, "state": learner.init()}, learner=learner)
    >>> int(found["state"].step)
    1
    """
    given = {"params": params, "opt_state": opt_state, "state": state}
    tree = _checked({name: value for name, value in given.items() if value is not None})
    if not tree:
        raise ArgumentError("`save` was given nothing: pass `params=`, `opt_state=` or `state=`.")
    with Store(directory, "directory") as store:
        latest = store.latest()
        meta = {"format": FORMAT, "arrays": _shapes(tree), "learner": _identity(learner)}
        try:
            store.write(0 if latest is None else latest + 1, tree, meta)
        except CheckpointError as error:
            raise CheckpointError(
                f"nothing could be saved in {str(directory)!r}: {error}. What was saved before it is intact."
            ) from error


def restore(directory: str | Path, *, like: Mapping[str, PyTree], learner: Learner | None = None) -> dict[str, PyTree]:
    """What was saved last, bit for bit, with the structure of `like`: `{"params": …, "opt_state": …, "state": …}`.

    `like` names the parts that were saved. Values of another model, or of another rule than that of `learner`, are
    refused with what differs.

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
    if not check_path("directory", directory).is_dir():
        raise CheckpointError(f"there is no directory {str(directory)!r}.")
    tree, where = _checked(dict(like)), str(directory)

    def check(step: Path, meta: PyTree) -> None:
        if not isinstance(meta, dict) or not isinstance(meta.get("format"), str):
            raise CheckpointError(f"{where!r} was not written by `etrax.save`.")
        if meta["format"] != FORMAT:
            raise CheckpointError(f"{where!r} was written by another version of Etrax ({meta['format'][:40]!r}).")
        if not isinstance(meta.get("arrays"), dict) or not isinstance(meta.get("learner"), dict):
            raise damaged(step, "it does not say what it holds")
        lines = differences(meta["arrays"], _shapes(tree))
        if not lines and learner is not None and meta["learner"]:
            lines = differences(meta["learner"], _identity(learner))
        if lines:
            raise CheckpointError(f"{where!r} holds something else than `like`:\n{lines}")

    with Store(directory, "directory") as store:
        found = store.read(tree, check)
    if found is None:
        raise CheckpointError(f"nothing has been saved in {where!r}.")
    return found[2]


def _checked(tree: dict[str, PyTree]) -> dict[str, PyTree]:
    for name, value in tree.items():
        check_arrays(name, value)
    return trees.map(jnp.asarray, tree)


def _shapes(tree: Mapping[str, PyTree]) -> dict[str, str]:
    return {name: f"{a.dtype}{list(a.shape)}" for name, a in named_leaves(tree)}


def _identity(learner: Learner | None) -> dict[str, str]:
    """What a learner is: its rule and the leaves of its model."""
    if learner is None:
        return {}
    check_learner(learner)
    leaves = {f"{leaf.role.value} {leaf.path}": f"{leaf.aval.dtype}{list(leaf.aval.shape)}"
              for leaf in learner.facts.step.ins}  # fmt: skip
    return {"rule": str(learner.rule)} | leaves
