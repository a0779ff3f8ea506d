"""Saving and restoring outside of a trainer, in the middle of a sequence."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import etrax

B, I, H, T = 2, 3, 4, 12
XS, YS = jax.random.normal(jax.random.key(0), (T, B, I)), jnp.zeros((T, B, H))
OPTIMIZER = optax.adam(1e-2)


def step(p, h, x):
    v = 0.9 * h["v"] + x @ p["w"] + p["b"]
    key, _ = jax.random.split(h["key"])
    return {"v": v, "key": key, "none": h["none"]}, v


def make(rule="d_rtrl", width=H):
    hidden = {"v": jnp.zeros((B, width)), "key": jax.random.key(1), "none": jnp.zeros((0, 2))}
    params = {"w": jnp.ones((I, width), jnp.bfloat16), "b": jnp.zeros(width)}
    return etrax.compile(step, rule, XS[0], params=params, hidden=hidden)


def begin(learner):
    return {"params": learner.params, "opt_state": OPTIMIZER.init(learner.params), "state": learner.init()}


def advanced(learner, held, part):
    run = learner.train(OPTIMIZER, lambda o, y: ((o - y) ** 2).mean(), window=2)
    params, opt_state, state, _ = run(held["params"], held["opt_state"], held["state"], XS[part], YS[part])
    return {"params": params, "opt_state": opt_state, "state": state}


def bits(tree):
    plain = lambda a: jax.random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a
    return [(str(a.dtype), np.asarray(plain(a)).tobytes()) for a in jax.tree.leaves(tree)]


@pytest.fixture(scope="module")
def learner():
    return make()


def test_goes_on_bit_for_bit(learner, tmp_path):
    half = advanced(learner, begin(learner), slice(0, 6))
    etrax.save(tmp_path, **half, learner=learner)
    found = etrax.restore(tmp_path, like=begin(learner), learner=learner)
    assert bits(found) == bits(half) and jax.tree.structure(found) == jax.tree.structure(half)
    assert type(found["state"]) is etrax.LearnerState
    one, two = (advanced(learner, held, slice(6, T)) for held in (half, found))
    assert bits(one) == bits(two)


def test_the_last_save_counts(learner, tmp_path):
    for value in (1.0, 2.0, 3.0):
        etrax.save(tmp_path, params={"w": jnp.full(3, value)})
    assert float(etrax.restore(tmp_path, like={"params": {"w": jnp.zeros(3)}})["params"]["w"][0]) == 3
    assert len([p for p in tmp_path.iterdir() if p.name.isdigit()]) == 2


def test_another_model(learner, tmp_path):
    etrax.save(tmp_path, **begin(learner), learner=learner)
    wide, other = make(width=5), make(rule="pp_prop")
    with pytest.raises(etrax.train.CheckpointError, match=r"params\['w'\]: bfloat16\[3, 4\] there, bfloat16\[3, 5\]"):
        etrax.restore(tmp_path, like=begin(wide))
    with pytest.raises(etrax.train.CheckpointError, match="state"):
        etrax.restore(tmp_path, like=begin(other))
    with pytest.raises(etrax.train.CheckpointError, match=r"opt_state.*absent here"):
        etrax.restore(tmp_path, like={"params": learner.params})
    etrax.save(tmp_path / "params", params=learner.params, learner=learner)
    like = {"params": learner.params}
    assert bits(etrax.restore(tmp_path / "params", like=like)) == bits(like)
    with pytest.raises(etrax.train.CheckpointError, match=r"rule: d_rtrl\(\) there, pp_prop\(decay=0.9\) here"):
        etrax.restore(tmp_path / "params", like=like, learner=other)


def test_damage(learner, tmp_path):
    etrax.save(tmp_path, params={"w": jnp.arange(1000.0)})
    for file in (tmp_path / "0").rglob("*"):
        if file.is_file() and "arrays" in file.parts and file.stat().st_size > 500:
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
    with pytest.raises(etrax.train.CheckpointError, match="damaged"):
        etrax.restore(tmp_path, like={"params": {"w": jnp.zeros(1000)}})


def test_wrong_arguments(learner, tmp_path):
    for act, error, message in (
        (lambda: etrax.save(tmp_path), etrax.ArgumentError, "was given nothing"),
        (lambda: etrax.save(tmp_path, params="w"), etrax.ArgumentError, "params"),
        (lambda: etrax.save(tmp_path, params={}, learner=3), TypeError, "`learner` is an int"),
        (lambda: etrax.restore(tmp_path, like=()), TypeError, "`like` must be a dictionary"),
        (lambda: etrax.restore(tmp_path, like={"weights": 1.0}), TypeError, "'params', 'opt_state', 'state'"),
        (lambda: etrax.restore(tmp_path / "no", like={"params": 1.0}), etrax.train.CheckpointError, "no directory"),
        (lambda: etrax.restore(tmp_path, like={"params": 1.0}), etrax.train.CheckpointError, "nothing has been saved"),
    ):
        with pytest.raises(error, match=message):
            act()
    (tmp_path / "file").write_text("")
    with pytest.raises(etrax.train.CheckpointError, match="which is a file"):
        etrax.save(tmp_path / "file", params=1.0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, bool])
def test_arrays_of_size_zero_alone(tmp_path, dtype):
    """Orbax takes no empty tree."""
    nothing = {"w": jnp.zeros((0, 3), dtype), "v": jnp.zeros((2, 0), dtype)}
    etrax.save(tmp_path, params=nothing)
    found = etrax.restore(tmp_path, like={"params": nothing})["params"]
    assert jax.tree.map(lambda a: (a.shape, a.dtype), found) == jax.tree.map(lambda a: (a.shape, a.dtype), nothing)
    with pytest.raises(etrax.train.CheckpointError, match=r"params\['w'\]: .*\[0, 3\] there, .*\[0, 2\] here"):
        etrax.restore(tmp_path, like={"params": {**nothing, "w": jnp.zeros((0, 2), dtype)}})
    etrax.save(tmp_path / "tree", params={}, state={"a": ()})
    assert etrax.restore(tmp_path / "tree", like={"params": {}, "state": {"a": ()}}) == {
        "params": {},
        "state": {"a": ()},
    }


def test_keys_of_size_zero(tmp_path):
    keys = jax.random.split(jax.random.key(0), 0)
    etrax.save(tmp_path, state={"keys": keys})
    assert etrax.restore(tmp_path, like={"state": {"keys": keys}})["state"]["keys"].shape == (0,)


def test_what_orbax_logs_does_not_reach_the_terminal(tmp_path, monkeypatch, caplog):
    """Its threads log tracebacks of what they get over, under load; whoever else logs by the same logger is heard."""
    ocp = pytest.importorskip("orbax.checkpoint")
    absl = pytest.importorskip("absl.logging")
    save = ocp.CheckpointManager.save
    code = "def told():\n  try:\n    1 / 0\n  except ZeroDivisionError:\n    absl.exception('Failed to write metadata')"
    exec(compile(code, ocp.checkpoint_manager.__file__, "exec"), theirs := {"absl": absl})

    def saved(*args, **kwargs):
        theirs["told"]()
        absl.error("a message of the user's own")
        return save(*args, **kwargs)

    monkeypatch.setattr(ocp.CheckpointManager, "save", saved)
    etrax.save(tmp_path, params={"w": jnp.ones(3)})
    assert [record.message for record in caplog.records] == ["a message of the user's own"]
    theirs["told"]()  # afterwards orbax is its users' again
    assert "Failed to write metadata" in caplog.text


def test_only_a_manager_that_saves_removes_what_was_left(monkeypatch, tmp_path):
    """It does so in a thread, and waits for it when it saves: another's would remove what the next one has begun."""
    ocp = pytest.importorskip("orbax.checkpoint")
    managers = []

    class Watched(ocp.CheckpointManager):
        def __init__(self, directory, options):
            managers.append(self)
            self.removes, self.saved = options.cleanup_tmp_directories, False
            super().__init__(directory, options=options)

        def save(self, *args, **kwargs):
            self.saved = True
            return super().save(*args, **kwargs)

    monkeypatch.setattr(ocp, "CheckpointManager", Watched)
    left = tmp_path / "saved" / "7.orbax-checkpoint-tmp"
    left.mkdir(parents=True)
    etrax.save(tmp_path / "saved", params={"w": jnp.ones(3)})
    assert not left.exists()
    etrax.restore(tmp_path / "saved", like={"params": {"w": jnp.zeros(3)}})
    assert [m.removes for m in managers] == [m.saved for m in managers] and any(m.saved for m in managers)


def test_a_save_in_the_background(tmp_path):
    """What is given away or changed after the call is saved as it was; later calls wait for earlier ones."""
    learner = make()
    held = begin(learner)
    run = learner.train(OPTIMIZER, lambda o, y: ((o - y) ** 2).mean(), window=2, donate=True)
    savings, wanted = [], []
    for part in (slice(0, 4), slice(4, 8)):
        params, opt_state, state, _ = run(held["params"], held["opt_state"], held["state"], XS[part], YS[part])
        held = {"params": params, "opt_state": opt_state, "state": state}
        wanted.append(bits(held))
        savings.append(etrax.save(tmp_path / "saved", **held, learner=learner, background=True))
    run(params, opt_state, state, XS[:4], YS[:4])  # uses up the state
    restored = etrax.restore(tmp_path / "saved", like=begin(learner), learner=learner)
    assert bits(restored) == wanted[1]
    assert all(s.done for s in savings) and [s.wait() for s in savings] == [None, None]
    assert "done" in repr(savings[0])
    etrax.save(tmp_path / "saved", **restored)  # by the caller itself


def test_a_save_in_the_background_that_fails(tmp_path):
    (tmp_path / "file").write_text("no directory")
    with pytest.warns(RuntimeWarning, match="in the background failed: .* is a file"):
        saving = etrax.save(tmp_path / "file", params={"w": jnp.ones(3)}, background=True)
        with pytest.raises(etrax.train.CheckpointError, match="is a file"):
            saving.wait()
    with pytest.raises(etrax.EtraxError, match="`background`"):
        etrax.save(tmp_path / "other", params={"w": jnp.ones(3)}, background="yes")
    assert not (tmp_path / "other").exists()


def test_a_thread_that_cannot_be_started_is_not_waited_for(tmp_path, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("etrax.train._save.Thread.start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        etrax.save(tmp_path / "saved", params={"w": jnp.ones(3)}, background=True)
    monkeypatch.undo()
    etrax.save(tmp_path / "saved", params={"w": jnp.ones(3)})


def test_traces_of_earlier_versions_are_refused(learner, tmp_path, monkeypatch):
    """Traces lay in another order in them: one of a square weight would be taken transposed."""
    half = advanced(learner, begin(learner), slice(0, 6))
    monkeypatch.setattr("etrax.train._save.FORMAT", "etrax.save 2")
    etrax.save(tmp_path / "all", **half, learner=learner)
    etrax.save(tmp_path / "params", params=half["params"], learner=learner)
    monkeypatch.undo()
    with pytest.raises(etrax.train.CheckpointError, match="holds a trace that was written by an earlier version"):
        etrax.restore(tmp_path / "all", like=half, learner=learner)
    restored = etrax.restore(tmp_path / "params", like={"params": half["params"]}, learner=learner)
    assert bits(restored["params"]) == bits(half["params"])
