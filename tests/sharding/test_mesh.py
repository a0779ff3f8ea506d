"""A learner on a mesh gives what it gives on one device, and only what has to travels between devices."""

import json
import re
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest
from tests.sharding.models import MANY, B, H, O

WORKER = Path(__file__).with_name("on_devices.py")
RULES = ("tbptt", "d_rtrl", "pp_prop", "e_prop", "ottt", "rflo", "three_factor")
FEW = ["rnn,batch+neuron,pp_prop,masked", "segments,neuron,d_rtrl"]
ALL = [f"gru,{word},{rule}" for word in ("batch", "neuron") for rule in RULES]
ALL += [f"rnn,batch+neuron,{rule}" for rule in RULES]
ALL += [f"gru,batch+neuron,{rule},float32" for rule in RULES]
ALL += [
    "segments,batch+neuron,pp_prop", "bcoo,neuron,pp_prop", "bcoo,batch+neuron,d_rtrl", "csr,neuron,d_rtrl",
    "csr,batch+neuron,pp_prop",
    "gru,neuron,modulated", "rnn,batch+neuron,modulated", "gru,batch,random", "rnn,batch+neuron,random",
    "gru,neuron,rtrl", "gru,batch,d_rtrl,masked,ragged",
]  # fmt: skip
GATHERED = {"gru": 2, "rnn": 1, "segments": 1, "bcoo": 1, "csr": 1}  # activities that weights read: h and r·h of a GRU


def run(cases):
    result = subprocess.run([sys.executable, "-W", "ignore", str(WORKER), *cases], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return {found["case"]: found for found in map(json.loads, result.stdout.splitlines())}


def check(case, found):
    assert "error" not in found, found.get("error")
    model, word, rule, *options = case.split(",")
    assert found["difference"].keys() == {"loss", "gradients", "states", "traces", "trained"}
    assert max(found["difference"].values()) < (1e-5 if "float32" in options else 1e-12), found["difference"]
    if rule == "rtrl" or (rule == "random" and word != "batch"):  # what cannot be cut is whole on every device
        assert not found["said"]
        assert set(found["pieces"]) <= {1.0}
        return
    check_travel(model, word, rule, options, found["said"])
    if rule in ("d_rtrl", "rflo"):
        assert set(found["pieces"]) == {1 / 8}


def sizes(arrays):
    return [prod(int(n) for n in re.findall(r"\d+", a.split("[")[1])) for a in arrays]


def check_travel(model, word, rule, options, said):
    """By batch, gradients once a call, and before them the sum of a mask. By neurons, activities and what comes back to
    them, and sums of the readout."""
    kinds = [kind for kind, *_ in said]
    assert set(kinds) <= {"all-reduce", "all-gather", "reduce-scatter"}
    samples, units = B if word == "neuron" else B // 2, MANY if model not in ("gru", "rnn") else H
    # Two steps of the readout, the loss, and the signal of each step if that is made of the loss.
    readout = 2 * samples * O
    large = [s for s in said if s[0] == "all-reduce" and max(sizes(s[1:])) > (0 if word == "batch" else readout)]
    if word == "batch":
        assert set(kinds) == {"all-reduce"}
        numbers = rule == "three_factor" or "masked" in options
        large = [s for s in large if max(sizes(s[1:])) > 1 or not numbers]
    assert len(large) == (0 if word == "neuron" else 1)
    gathered = [s[1:] for s in said if s[0] == "all-gather"]
    assert len(gathered) == (0 if word == "batch" else GATHERED[model])
    for (array,) in gathered:
        # The spikes of a device fill no whole byte here.
        spikes = model == "rnn"
        assert array.startswith("u8" if spikes else "f")
        assert sizes([array]) == [samples * (4 if spikes else units)]
    back = [s[1:] for s in said if s[0] == "reduce-scatter"]
    assert len(back) <= len(gathered)
    own = samples * units // (8 if word == "neuron" else 4)
    assert all(sizes(arrays) in ([own], [2 * own]) for arrays in back)  # of a step, or of both of a window at once


def test_a_mesh_gives_what_one_device_gives():
    found = run(FEW)
    assert found.keys() == set(FEW)
    for case, result in found.items():
        check(case, result)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(ALL), 6))
def test_every_rule_on_every_mesh(first):
    cases = ALL[first : first + 6]
    found = run(cases)
    assert found.keys() == set(cases)
    for case, result in found.items():
        check(case, result)
