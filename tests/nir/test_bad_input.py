"""What cannot be read or written raises one error, with the name of the node."""

import re
import sys
from itertools import pairwise
from pathlib import Path

import h5py
import jax.numpy as jnp
import nir
import numpy as np
import pytest

import etrax
from etrax._install import install_command

DATA = Path(__file__).parent / "data"
ONE = np.ones(2)


def lif(n=2, **changed):
    fields = {"tau": np.ones(n), "r": np.ones(n), "v_leak": np.zeros(n), "v_threshold": np.ones(n)}
    return nir.LIF(**fields | changed)


def graph(edges=(), **nodes):
    ends = {"in": nir.Input([2]), "out": nir.Output([2])}
    return nir.NIRGraph(ends | nodes, list(edges), type_check=False)


def chain(**nodes):
    names = ["in", *nodes, "out"]
    return graph(pairwise(names), **nodes)


class Odd(nir.Scale):
    pass


WIDER = nir.Linear(np.ones((3, 2)))
RING = [("in", "a"), ("a", "b"), ("b", "a"), ("b", "out")]
GRAPHS = {
    "another kind": (chain(odd=Odd(ONE)), etrax.NotSupportedError, "node 'odd' is of kind Odd, which is not supported"),
    "no such node": (graph([("in", "x")]), etrax.ArgumentError, r"edge \('in', 'x'\) .* it has no node 'x'"),
    "an edge twice": (graph([("in", "out")] * 2), etrax.ArgumentError, "from 'in' to 'out' occurs twice"),
    "no input": (nir.NIRGraph({"l": lif()}, [], type_check=False), etrax.ArgumentError, "no node of kind Input"),
    "not reached": (
        graph([("in", "out")], lif=lif()), etrax.ArgumentError, "no input of the graph reaches node 'lif'",
    ),
    "no order": (
        graph(RING, a=nir.Scale(ONE), b=nir.Scale(ONE)), etrax.NotSupportedError,
        "the cycle '.' -> '.' -> '.' has no neuron in it",
    ),
    "weights that do not fit": (chain(w=nir.Linear(np.ones((2, 3)))), etrax.ArgumentError, r"node 'w' \(Linear\)"),
    "neurons that do not fit": (
        chain(n=lif(3)), etrax.ArgumentError, r"node 'n' \(LIF\)(: its input has shape| does not fit)",
    ),
    "two shapes": (
        graph([("in", "w"), ("w", "s"), ("in", "s"), ("s", "out")], w=WIDER, s=nir.Scale(ONE[:1])),
        etrax.ArgumentError, "node 's' gets .* from",
    ),
    "a delay of half a step": (
        chain(d=nir.Delay(1.5e-4 * ONE)), etrax.ArgumentError, r"node 'd' \(Delay\): its delay.* not a whole number",
    ),
    "a subgraph with two inputs": (
        chain(sub=nir.NIRGraph({"a": nir.Input([2]), "b": nir.Input([2]), "c": nir.Output([2])}, [], type_check=False)),
        etrax.NotSupportedError, "subgraph 'sub' has 2 nodes of kind Input",
    ),
    "words for numbers": (chain(s=nir.Scale(np.array(["a", "b"]))), etrax.ArgumentError, r"'s' \(Scale\): its `scale`"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_graphs(name):
    bad, error, message = GRAPHS[name]
    with pytest.raises(error, match=message):
        etrax.nir.read(bad)


def test_files(tmp_path):
    file, good = tmp_path / "bad.nir", (DATA / "norse_box.nir").read_bytes()
    for content in (good[: len(good) // 2], b"", b"no graph" * 100):
        file.write_bytes(content)
        with pytest.raises(etrax.ArgumentError, match=r"bad.nir' is not a NIR file, or was cut short"):
            etrax.nir.read(file)
    with pytest.raises(etrax.ArgumentError, match="there is no file"):
        etrax.nir.read(tmp_path / "none.nir")


def changed(tmp_path, change):
    file = tmp_path / "changed.nir"
    file.write_bytes((DATA / "snntorch_leaky.nir").read_bytes())
    with h5py.File(file, "r+") as stored:
        change(stored["node"])
    return file


def renamed(node):
    del node["nodes/1/type"]
    node["nodes/1/type"] = "Izhikevich"


def without_tau(node):
    del node["nodes/1/tau"]


def of_two_shapes(node):
    del node["nodes/1/r"]
    node["nodes/1/r"] = np.ones(4)


def without_nodes(node):
    del node["nodes"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (renamed, etrax.NotSupportedError, "node '1' in .*changed.nir' is of kind Izhikevich"),
        (without_tau, etrax.ArgumentError, r"node '1' \(LIF\) in .* is malformed: .*tau"),
        (of_two_shapes, etrax.ArgumentError, r"node '1' \(LIF\) in .* is malformed: .*shape"),
        (without_nodes, etrax.ArgumentError, "has no nodes"),
    ],
)
def test_files_with_a_bad_node(tmp_path, change, error, message):
    with pytest.raises(error, match=message):
        etrax.nir.read(changed(tmp_path, change))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"simulator": "brian"}, "`simulator` is 'brian'; expected 'nir', 'snntorch', 'norse'"),
        ({"dt": 0.0}, "`dt` above 0"),
        ({"surrogate": "step"}, "`surrogate` is 'step'; expected 'fast_sigmoid'"),
        ({"train": ("weights",)}, r"`train` is \('weights',\); expected some of 'bias'"),
        ({"train": "weight"}, "`train` is 'weight'"),
        ({"batch_size": 0}, "`batch_size` is 0"),
        ({"dtype": jnp.int32}, "`dtype` is"),
    ],
)
def test_options(options, message):
    with pytest.raises(etrax.EtraxError, match=message):
        etrax.nir.read(chain(n=lif()), **options)


def test_what_is_no_graph():
    with pytest.raises(etrax.ArgumentTypeError, match="`graph` is one node"):
        etrax.nir.read(lif())
    with pytest.raises(etrax.ArgumentTypeError, match="`graph` is 3"):
        etrax.nir.read(3)
    with pytest.raises(etrax.ArgumentError, match="`reset` is 'zero'"):
        etrax.nir.Simulator(reset="zero")


def test_writing():
    step, params, _ = etrax.nir.read(chain(w=nir.Linear(np.ones((2, 2))), n=lif()))
    with pytest.raises(etrax.ArgumentTypeError, match=r"`write` takes what `etrax.nir.read` returned"):
        etrax.nir.write(lambda p, h, x: (h, x), params)
    for bad in ({}, {"w": {"weight": jnp.ones((2, 3), jnp.float32)}}):
        with pytest.raises(etrax.ArgumentError, match="`params`"):
            etrax.nir.write(step, bad)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "nir", None)
    with pytest.raises(etrax.MissingPackageError, match=re.escape(install_command("nir"))):
        etrax.nir.read("x.nir")
