"""What is in a checkpoint directory is not trusted: damaged files, links, sizes, other users, a save that fails."""

import json
import os
import shutil

import jax
import optax
import pytest
from tests.train.common import data, same, trainer

from etrax.train import CheckpointError
from etrax.train._store import Lock
from etrax.train._stored import digest

# Orbax reads in threads, of which some see their loop closed once another has failed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def made():
    return trainer(optimizer=optax.adam(0.03))


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    made.fit(data(), 2, checkpoint=directory, progress=False)
    return directory


@pytest.fixture
def copied(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def go_on(made, directory, epochs=3):
    return made.fit(data(), epochs, checkpoint=directory, progress=False)


def change(path, edit):
    meta = json.loads(path.read_text())
    edit(meta)
    path.write_text(json.dumps(meta))


def test_last_two_are_kept_and_damage_is_refused(made, copied):
    """One number changed in the record; without that checkpoint the run goes on from the one before."""
    go_on(made, copied)
    assert {p.name for p in copied.iterdir()} == {"2", "3", "lock"}
    change(copied / "3" / "meta" / "metadata", lambda m: m["history"][0]["metrics"].update(loss=0.5))
    with pytest.raises(
        CheckpointError, match=r"3' is damaged: its content is not what was written\. Remove that direc"
    ):
        go_on(made, copied, 4)
    shutil.rmtree(copied / "3")
    same(go_on(made, copied, 4).params, made.fit(data(), 4, progress=False).params)


def stored_tree(made, directory):
    """What the last checkpoint holds, as it was written."""
    found = go_on(made, directory, 2)
    return {"params": found.last_params, "opt_state": found.opt_state, "learned": (), "best_params": None}


DAMAGES = {
    "torn": (lambda d: (d / "meta" / "metadata").write_text('{"format": 2, "ru'), "it cannot be read"),
    "no record": (lambda d: (d / "meta" / "metadata").write_text("[1, 2]"), "does not say which run it belongs to"),
    "empty": (lambda d: (shutil.rmtree(d), d.mkdir()), "it cannot be read"),
    "huge": (lambda d: os.truncate(d / "meta" / "metadata", 1 << 40), "it holds more than"),
    "huge at its root": (lambda d: os.truncate(next(d.glob("_CHECKPOINT*")), 1 << 40), "it holds more than"),
    "a file": (lambda d: (shutil.rmtree(d), d.write_text("2")), "it is not a directory"),
    "huge arrays": (lambda d: os.truncate(d / "arrays" / "manifest.ocdbt", 1 << 40), "it holds more than"),
    "link": (lambda d: (d / "arrays" / "extra").symlink_to(d), "'extra' in it is neither a file nor a directory"),
    "linked": (lambda d: (d.rename(d.with_name("away")), d.symlink_to(d.with_name("away"))), "it is a link"),
    "history": (lambda d: change(d / "meta" / "metadata", lambda m: m.update(history="x")), "it has no history"),
    "epoch": (
        lambda d: change(d / "meta" / "metadata", lambda m: m["history"][0].update(step="__import__('os')")),
        "its record of epoch 1 cannot be read",
    ),
    "best": (lambda d: change(d / "meta" / "metadata", lambda m: m.update(best=7)), "its best epoch is 7 of 2"),
    "number": (lambda d: d.rename(d.with_name("5")), "its record is one of epoch 2"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damage(made, copied, what):
    damage, message = DAMAGES[what]
    damage(copied / "2")
    with pytest.raises(CheckpointError, match=f"is damaged: .*{message}"):
        go_on(made, copied)


def test_record_without_a_best_epoch(made, copied):
    """A field left out under a digest that is right: nothing was monitored, so that there is no best one."""
    path = copied / "2" / "meta" / "metadata"
    arrays = {str(i): a for i, a in enumerate(jax.tree.leaves(stored_tree(made, copied)))}
    change(path, lambda m: (m.pop("best"), m.update(digest=digest(m, arrays))))
    assert go_on(made, copied).best is None


def test_text_from_a_file_is_made_harmless(made, copied):
    change(copied / "2" / "meta" / "metadata", lambda m: m["run"].update(rule="\x1b[2J" + 500 * "x"))
    with pytest.raises(CheckpointError, match=r"rule: \\x1b\[2Jx+… there") as found:
        go_on(made, copied)
    assert "\x1b" not in str(found.value) and len(str(found.value)) < 600


def test_directory_in_use(made, copied):
    other = Lock(copied)
    other.take()
    with pytest.raises(CheckpointError, match="is in use by another run"):
        go_on(made, copied)
    other.release()
    assert len(go_on(made, copied).history) == 3


def test_lock_is_given_back_after_an_error(made, copied):
    def stop(epoch):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        made.fit(data(), 3, checkpoint=copied, callback=stop, progress=False)
    assert len(go_on(made, copied, 4).history) == 4


def test_save_that_fails_keeps_what_the_run_had_reached(made, copied, monkeypatch):
    def no_room(*_, **__):
        (copied / "3.orbax-checkpoint-tmp").mkdir()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("orbax.checkpoint.CheckpointManager.save", no_room)
        with pytest.raises(CheckpointError, match=r"epoch 3 could not be saved in .*: No space left") as found:
            go_on(made, copied)
    assert not (copied / "3.orbax-checkpoint-tmp").exists()
    whole = made.fit(data(), 3, progress=False)
    assert found.value.result.reason == "unsaved" and len(found.value.result.history) == 3
    same(found.value.result.last_params, whole.params)
    same(go_on(made, copied).params, whole.params)


def test_save_that_orbax_leaves_out_is_an_error(made, copied):
    """A later epoch in the directory, made after this run had begun: orbax would save nothing, without a word."""

    def later(epoch):
        shutil.copytree(copied / "2", copied / "9", dirs_exist_ok=True)

    with pytest.raises(CheckpointError, match=r"epoch 4 could not be saved .* it holds 9 already"):
        made.fit(data(), 5, checkpoint=copied, callback=later, progress=False)


def test_names_of_parameters_are_no_names_of_files(whole):
    assert not list(whole.rglob("*params*"))
