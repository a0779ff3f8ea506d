"""Every script of `benchmarks.published` at toy size: it runs, and its table holds what it gave."""

import json

import numpy as np
import pytest
from benchmarks.published import conditioning, copying, evidence, memory_chain, mnist98, results, tmaze

SMALL = {"cues": 1, "cue": 10, "gap": 5, "delay": 10, "recall": 5}


def holds(interval):
    return -1 <= interval[0] <= interval[1] <= 1


@pytest.mark.slow
def test_evidence():
    run = evidence.learn(evidence.ROWS["d_rtrl"], 0, 1, batch=4, sizes=SMALL)
    assert run["errors"][0][0] == 1 and 0 <= run["errors"][0][1] <= 1 and holds(run["cosine"]["end"])
    stored = {"evidence": {key: [value] for key, value in run.items()} | {"seconds": 60}}
    assert "d_rtrl" in evidence.text({"d_rtrl": stored})


def test_a_neuron_rests_four_steps_after_a_spike_and_its_threshold_rises():
    params = {"in": np.ones((40, 100)), "rec": np.zeros((100, 100)), "out": np.ones((100, 2)) / 100}
    state, spikes = evidence.hidden(1), []
    for _ in range(8):
        state, (outputs, z) = evidence.step(params, state, np.full((1, 40), 1.0, np.float32))
        spikes.append(z[0])
    np.testing.assert_array_equal(np.array(spikes)[:, 0], [1, 0, 0, 0, 0, 1, 0, 0])
    assert state["a"][0, -1] > 1.9
    # The outputs are leaky means of the spikes: a unit that spikes at every step would bring them to 1.
    means = sum((1 - evidence.LEAK) * evidence.LEAK**n * z for n, z in enumerate(reversed(spikes)))
    np.testing.assert_allclose(outputs[0], np.full(2, np.mean(means)), rtol=1e-5)


@pytest.mark.slow
def test_mnist98(monkeypatch):
    monkeypatch.setattr(mnist98, "LAYERS", 1)
    monkeypatch.setattr(mnist98, "PROBLEM", mnist98.PROBLEM._replace(batch=2))
    data = np.full((3, 98), 9.0, np.float32), np.arange(3, dtype=np.int32)
    run = mnist98.run("tbptt1", [0], data, data, 2)
    assert np.isfinite(run["loss"]).all() and 0 <= run["accuracy"][0] <= 100 and run["samples"] == 2
    assert "window 1" in mnist98.text({"tbptt1": {"mnist": run | {"seconds": 60, "seeds": [0]}}})


def test_the_logits_are_means_whose_gradient_goes_to_the_last_output():
    params, state, outputs = mnist98.start(0), mnist98.hidden(2), []
    for n in range(3):
        before = state["sum"]
        state, logits = mnist98.step(params, state, np.full((2, 1), float(n), np.float32))
        outputs.append(state["sum"] - before)
        np.testing.assert_allclose(logits, np.mean(outputs, 0), rtol=1e-5)


@pytest.mark.slow
def test_copying(monkeypatch):
    row = copying.ROWS["d_rtrl"]
    monkeypatch.setitem(copying.ROWS, "d_rtrl", row._replace(problem=copying.STACK._replace(batch=2)))
    monkeypatch.setattr(copying, "TEST", 2)
    monkeypatch.setattr(copying, "LAYERS", 1)
    run = copying.run("d_rtrl", "copy", [0], epochs=1, count=2)
    assert 0 <= run["right"][0] <= 100 and run["updates"] == 1 and holds(run["cosine"][0]["start"])
    xs, ys, mask = copying.sequences(np.random.default_rng(0), 3)
    np.testing.assert_array_equal(xs[:20, :, :7], ys[mask > 0])
    assert "top layer" in copying.text({"d_rtrl": {"copy": run | {"seconds": 60, "seeds": [0]}}})


@pytest.mark.slow
def test_tmaze(monkeypatch):
    monkeypatch.setattr(tmaze, "EVERY", 30)
    monkeypatch.setattr(tmaze, "MEASURED", 10)
    run = tmaze.run("min_gru", "10", [0, 1], 60)
    assert len(run["records"]) == 2 and len(run["records"][0]) == 2 and holds(run["cosine"])
    assert "minGRU" in tmaze.text({"min_gru": {"10": run | {"seconds": 60, "seeds": [0, 1]}}})


def test_runs_are_condensed_in_both_ways():
    run = {"records": [[0.0] * 20 + [1.0] * 5, [0.0] * 30]}
    five, fifth = tmaze.condensed(run)
    assert five == [1.0, 0.0] and fifth == [1.0, 0.0]
    assert tmaze.condensed({"records": [[0.0] * 45 + [1.0] * 5]}) == ([1.0], [0.5])


def test_conditioning():
    run = conditioning.run("exact .9", "10", [0], steps=300)
    assert run["errors"][0] >= 0 and run["step_size"] > 0 and holds(run["cosine"])
    assert "ObGD" not in conditioning.text({"exact .9": {"10": run | {"seconds": 60, "seeds": [0]}}})


def test_returns_are_discounted_sums_of_what_follows():
    rewards = np.array([1.0, 0.0, 2.0, 4.0])
    np.testing.assert_allclose(conditioning.returns(rewards, 0.5), [0 + 1 + 1, 2 + 2, 4, 0])


@pytest.mark.slow
def test_memory_chain():
    run = memory_chain.run("exact obgd", "16", [0], steps=40)
    assert len(run["returns"]) == 1 and holds(run["cosine"])
    assert "0 of 1" in memory_chain.text({"exact obgd": {"16": run | {"seconds": 60, "seeds": [0], "returns": [0.0]}}})


@pytest.mark.parametrize("action", [0, 1])
def test_the_chain_rewards_the_bit_at_its_end(action):
    import jax

    world = memory_chain.MemoryChain(3)
    seen, state = world.reset(jax.random.key(0))
    assert abs(float(seen[2])) == 1
    bit = int(state.bit)
    for n in range(3):
        seen, state, reward, done, _ = world.step(jax.random.key(1), state, action)
        assert bool(done) == (n == 2)
    assert float(reward) == (1 if action == bit else -1)


def test_cells_are_stored_as_they_end(tmp_path, capsys):
    parser = results.arguments("", ["a", "b"], ["x"])
    options = parser.parse_args(["--file", str(tmp_path / "r.json"), "--rows", "b", "--seeds", "3"])
    results.main("none", options, lambda row, column, seeds: {"figure": [len(seeds)]}, str)
    stored = json.loads((tmp_path / "r.json").read_text())
    assert stored["b"]["x"]["figure"] == [1] and stored["b"]["x"]["seeds"] == [3]
    assert results.spread([0.5, 1.5], 1) == "1.0 ± .5"
