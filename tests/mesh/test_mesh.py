"""A learner on a mesh gives what it gives on one device, and no trace or weight travels between devices."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("on_devices.py")
BY_POSITION = ("tbptt", "d_rtrl", "pp_prop", "e_prop", "ottt", "rflo", "three_factor")
OTHERS = ("modulated", "random", "rtrl", "snap", "uoro", "kf_rtrl", "synthetic")
FEW = ["rnn,batch+neuron,pp_prop,masked", "segments,neuron,d_rtrl"]
ALL = [f"gru,{word},{rule}" for word in ("batch", "neuron") for rule in (*BY_POSITION, *OTHERS)]
ALL += [f"rnn,batch+neuron,{rule}" for rule in (*BY_POSITION, *OTHERS)]
ALL += [f"gru,batch+neuron,{rule},float32" for rule in BY_POSITION]
ALL += [
    "segments,batch+neuron,pp_prop", "bcoo,neuron,pp_prop", "bcoo,batch+neuron,d_rtrl", "csr,neuron,d_rtrl",
    "csr,batch+neuron,pp_prop", "gru,batch,d_rtrl,masked,ragged",
]  # fmt: skip


def run(cases):
    result = subprocess.run([sys.executable, "-W", "ignore", str(WORKER), *cases], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return {found["case"]: found for found in map(json.loads, result.stdout.splitlines())}


def check(case, found):
    assert "error" not in found, found.get("error")
    _, word, rule, *options = case.split(",")
    assert found["difference"].keys() == {"loss", "gradients", "states", "traces", "trained"}
    assert max(found["difference"].values()) < (1e-5 if "float32" in options else 1e-11), found["difference"]
    if rule in BY_POSITION:
        check_travel(word, found)
    if rule in ("d_rtrl", "rflo"):
        assert set(found["pieces"]) == {1 / 8}


def check_travel(word, found):
    """By batch gradients travel, by neurons activities and sums of the readout; traces and cut weights never."""
    arrays = [
        (kind, tuple(map(int, re.findall(r"\d+", a.split("[")[1])))) for kind, *given in found["said"] for a in given
    ]
    kept = {tuple(s) for s in found["trace_shapes"] if len(s) > 2}
    if word == "batch":
        assert {kind for kind, _ in arrays} == {"all-reduce"}
    else:
        # Cut both ways, activities may also change from one cut to the other.
        both = {"all-to-all"} if word == "batch+neuron" else set()
        assert {kind for kind, _ in arrays} <= {"all-reduce", "all-gather", "reduce-scatter"} | both
        kept |= {tuple(s) for s in found["weight_shapes"] if word == "neuron"}
    assert not [a for _, a in arrays if any(sorted(a) == sorted(s) for s in kept)]


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
