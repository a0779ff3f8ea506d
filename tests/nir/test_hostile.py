"""A NIR file is data from elsewhere: it leads nowhere else, unpacks to no more than it may, its numbers make sense."""

import re
import zlib
from itertools import pairwise

import h5py
import nir
import numpy as np
import pytest

import etrax

ONE = np.ones(2)


def lif(**changed):
    return nir.LIF(**{"tau": 1e-3 * ONE, "r": ONE, "v_leak": 0 * ONE, "v_threshold": ONE, "v_reset": 0 * ONE} | changed)


def conv(**changed):
    fields = {"input_shape": (4, 4), "weight": np.ones((1, 1, 2, 2)), "stride": 1, "padding": 0, "dilation": 1,
              "groups": 1, "bias": np.zeros(1)}  # fmt: skip
    found = nir.Conv2d(**fields)
    for name, value in changed.items():  # which nir may refuse to make, but not to hold
        setattr(found, name, value)
    return found


def graph(node, shape=(2,)):
    nodes = {"in": nir.Input(np.array(shape)), "n": node, "out": nir.Output(np.array(shape))}
    return nir.NIRGraph(nodes, [("in", "n"), ("n", "out")], type_check=False)


@pytest.fixture
def file(tmp_path):
    nodes = [nir.Linear(np.ones((2, 2))), lif()]
    nir.write(tmp_path / "net.nir", nir.NIRGraph.from_list(*nodes))
    return tmp_path / "net.nir"


WEIGHT = "node/nodes/linear/weight"


def replaced(name, **options):
    def change(h, place):
        del h[name]
        h.create_dataset(name, **options)

    return change


def external(h, place):
    (place / "secret").write_bytes(b"secret bytes of another file")
    del h[WEIGHT]
    h.create_dataset(WEIGHT, (2, 2), "u1", external=[(str(place / "secret"), 0, 4)])


def virtual(h, place):
    with h5py.File(place / "other.h5", "w") as other:
        other["secret"] = np.ones((2, 2))
    layout = h5py.VirtualLayout((2, 2), float)
    layout[:] = h5py.VirtualSource(place / "other.h5", "secret", (2, 2))
    del h[WEIGHT]
    h.create_virtual_dataset(WEIGHT, layout)


def linked(kind):
    def change(h, place):
        with h5py.File(place / "other.h5", "w") as other:
            other["w"] = np.ones((2, 2))
        del h[WEIGHT]
        h[WEIGHT] = h5py.ExternalLink(place / "other.h5", "w") if kind == "external" else h5py.SoftLink("/node/edges")

    return change


def linked_root(h, place):
    h.move("node", "elsewhere")
    h["node"] = h5py.SoftLink("/elsewhere")


def array_at_root(h, place):
    del h["node"]
    h["node"] = 3


def cycle(h, place):
    h["node/nodes/again"] = h["node"]


def many(h, place):
    """Twenty groups that hold each other twice: a million of them to who follows each link."""
    inner = h.create_group("inner")
    for k in range(25):
        outer = h.create_group(f"outer{k}")
        outer["a"] = outer["b"] = inner
        inner = outer
    h["node/nodes/many"] = inner


def bomb(h, place):
    """A chunk that says it holds four numbers and unpacks to a hundred megabytes."""
    del h[WEIGHT]
    made = h.create_dataset(WEIGHT, (2, 2), "f8", chunks=(2, 2), compression="gzip")
    made.id.write_direct_chunk((0, 0), zlib.compress(bytes(100 << 20), 9))


def one_text_many_times(h, place):
    """Each of many texts is the same large one: h5py writes copies, so that the reference is copied by hand."""
    del h["node/edges"]
    made = h.create_dataset("node/edges", (200_000, 2), h5py.string_dtype())
    made[0] = ["x" * 60_000, "y"]
    h.flush()


def wide_texts(h, place):
    del h["node/edges"]
    h.create_dataset("node/edges", (1, 100_000), h5py.string_dtype())


CHANGES = {
    "numbers in another file": (external, "`weight` of node 'linear' .*has its numbers in other files"),
    "numbers of another array": (virtual, "`weight` of node 'linear' .*has its numbers in other files or arrays"),
    "a link to another file": (linked("external"), "`weight` of node 'linear' .*is a link to another place or file"),
    "a link to another place": (linked("soft"), "`weight` of node 'linear' .*is a link to another place or file"),
    "a link at the root": (linked_root, "`node` .*is a link"),
    "no root": (lambda h, _: h.move("node", "elsewhere"), "`node` .*is missing"),
    "an array at the root": (array_at_root, "`node` in it is not a group"),
    "gigabytes of nothing": (replaced(WEIGHT, shape=(1 << 16, 1 << 14), dtype="f8"), "`weight` .*unpack to more than"),
    "more than there are numbers": (
        replaced(WEIGHT, shape=(1 << 40, 1 << 40), dtype="f8", chunks=(1, 8)), "`weight` .*unpack to more than",
    ),
    "packed zeros": (
        replaced(WEIGHT, data=np.zeros((1 << 12, 1 << 12)), compression="gzip"), "`weight` .*unpack to more than",
    ),
    "a chunk without end": (bomb, "`weight` .*unpacks to more than its own size"),
    "a large chunk": (
        replaced(WEIGHT, shape=(2, 2), maxshape=(None, None), chunks=(1 << 13, 1 << 13), dtype="f8"),
        "`weight` .*is stored in pieces of",
    ),
    "another filter": (
        replaced(WEIGHT, data=np.ones((2, 2), int), chunks=(2, 2), scaleoffset=0), "packed in a way that",
    ),
    "a cycle": (cycle, "is one of too many"),
    "a web of groups": (many, "is one of too many"),
    "texts for numbers": (replaced(WEIGHT, data=np.array([[b"1", b"2"]] * 2)), "`weight` is .*expected real numbers"),
    "complex weights": (replaced(WEIGHT, data=np.ones((2, 2)) + 1j), "`weight` .*is of type"),
    "a reference": (replaced(WEIGHT, shape=(2, 2), dtype=h5py.ref_dtype), "`weight` .*is of type"),
    "no numbers": (replaced(WEIGHT, data=h5py.Empty("f8")), "`weight` .*holds nothing"),
    "a text that is none": (
        replaced("node/nodes/linear/type", data=np.bytes_(b"\xff\xfe")), "`type` of node 'linear' .*is not text",
    ),
    "a kind that is a list": (replaced("node/nodes/linear/type", data=["Linear", "LIF"]), "node 'linear' .*unknown"),
    "edges of three": (replaced("node/edges", data=[["input", "linear", "lif"]]), "an edge .*expected two names"),
    "edges of numbers": (replaced("node/edges", data=np.ones((2, 2))), "an edge .*expected two names"),
    "edges that are one number": (replaced("node/edges", data=3.0), "expected two names|no list of edges"),
    "many texts": (one_text_many_times, "is a table of texts"),
    "wide texts": (wide_texts, "is a table of texts"),
    "an input of text": (replaced("node/nodes/input/shape", data="wide"), "node 'input'"),
    "an input without end": (replaced("node/nodes/input/shape", data=np.array([2, 10**12])), "node 'input' .*elements"),
    "an input below zero": (replaced("node/nodes/input/shape", data=np.array([-2])), "node 'input' .*whole numbers"),
    "an input that is no number": (replaced("node/nodes/input/shape", data=np.array([np.nan])), "node 'input'"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_files(file, tmp_path, what):
    change, message = CHANGES[what]
    with h5py.File(file, "a") as h:
        change(h, tmp_path)
    with pytest.raises(etrax.EtraxError, match=message):
        etrax.nir.read(file)


def test_plain_files_are_read(file, tmp_path):
    """As `nir.write` packs them in every way that it has, and arrays that are all alike."""
    for packed in ("gzip", "lzf", None):
        nir.write(tmp_path / "a.nir", nir.NIRGraph.from_list(nir.Linear(np.zeros((300, 200)))), compression=packed)
        _, params, _ = etrax.nir.read(tmp_path / "a.nir")
        np.testing.assert_array_equal(params["linear"]["weight"], np.zeros((300, 200)))
    with h5py.File(file, "a") as h:
        del h[WEIGHT]
        h.create_dataset(WEIGHT, data=np.eye(2), compression="gzip", shuffle=True, fletcher32=True)
    np.testing.assert_array_equal(etrax.nir.read(file)[1]["linear"]["weight"], np.eye(2))


BAD = {"NaN": np.nan, "infinity": np.inf}
TAUS = {**BAD, "zero": 0.0, "below zero": -1e-3, "zero in float32": 1e-60, "infinite in float32": 1e60}
CUBA = {"tau_syn": ONE, "tau_mem": ONE, "r": ONE, "v_leak": 0 * ONE, "v_threshold": ONE, "v_reset": 0 * ONE}
NODES = {
    **{f"tau: {k}": (lambda v=v: lif(tau=np.array([1e-3, v])), "tau") for k, v in TAUS.items()},
    **{f"tau_syn: {k}": (lambda v=v: nir.CubaLIF(**CUBA | {"tau_syn": v * ONE}), "tau_syn") for k, v in TAUS.items()},
    **{f"tau_mem: {k}": (lambda v=v: nir.CubaLIF(**CUBA | {"tau_mem": v * ONE}), "tau_mem") for k, v in TAUS.items()},
    **{f"tau of LI: {k}": (lambda v=v: nir.LI(v * ONE, ONE, ONE), "tau") for k, v in TAUS.items()},
    **{f"threshold: {k}": (lambda v=v: lif(v_threshold=v * ONE), "v_threshold") for k, v in BAD.items()},
    **{f"leak: {k}": (lambda v=v: lif(v_leak=v * ONE), "v_leak") for k, v in BAD.items()},
    **{f"weight: {k}": (lambda v=v: nir.Linear(v * np.eye(2)), "weight") for k, v in BAD.items()},
    **{f"scale: {k}": (lambda v=v: nir.Scale(v * ONE), "scale") for k, v in BAD.items()},
    **{f"delay: {k}": (lambda v=v: nir.Delay(v * ONE), "delay") for k, v in {**BAD, "ages": 1e9, "-": -1.0}.items()},
    "weights that are text": (lambda: nir.Linear(np.array([["a", "b"], ["c", "d"]])), "weight"),
    "weights that are complex": (lambda: nir.Linear(np.eye(2) * 1j), "weight"),
    **{f"stride of {v}": (lambda v=v: conv(stride=v), "stride") for v in (0, -1, 1.5, 2**40)},
    **{f"dilation of {v}": (lambda v=v: conv(dilation=v), "dilation") for v in (0, -1)},
    **{f"groups of {v}": (lambda v=v: conv(groups=v), "groups") for v in (0, -1)},
    "padding below zero": (lambda: conv(padding=-1), "padding"),
    "padding by another word": (lambda: conv(padding="wide"), "padding"),
    "padding without end": (lambda: conv(padding=10**9), ""),
    "a kernel of nothing": (lambda: nir.SumPool2d(np.array([0, 2]), np.array([1, 1]), np.array([0, 0])), "kernel_size"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # nir computes with the numbers that it is given
@pytest.mark.parametrize("what", NODES)
def test_numbers(what):
    make, field = NODES[what]
    node = make()
    named = rf"node 'n' \({type(node).__name__}\).*{re.escape(field)}"
    with pytest.raises(etrax.EtraxError, match=named):
        etrax.nir.read(graph(node, (1, 4, 4) if isinstance(node, nir.Conv2d | nir.SumPool2d) else (2,)))


def test_a_graph_with_many_edges_is_read_in_time(tmp_path):
    """Ten thousand nodes in a row, and the last edge twice."""
    names = [f"s{k}" for k in range(10_000)]
    nodes = {"in": nir.Input(np.array([2])), "out": nir.Output(np.array([2]))} | {n: nir.Scale(ONE) for n in names}
    chain = ["in", *names, "out"]
    edges = list(pairwise(chain))
    with pytest.raises(etrax.ArgumentError, match="occurs twice"):
        etrax.nir.read(nir.NIRGraph(nodes, [*edges, edges[-1]], type_check=False))


def wide_chain(nodes, width):
    """Nodes in a row whose own numbers are few, behind an input that says it is wide."""
    names = [f"n{k}" for k in range(len(nodes))]
    ends = {"in": nir.Input(np.array([width])), "out": nir.Output(np.array([width]))}
    return nir.NIRGraph(
        ends | dict(zip(names, nodes, strict=True)), list(pairwise(["in", *names, "out"])), type_check=False
    )


def test_states_that_take_more_memory_than_there_is(tmp_path):
    """A few numbers in a file ask for ten thousand states of a million numbers, or for a hundred layers of them."""
    nir.write(tmp_path / "delay.nir", wide_chain([nir.Delay(np.array(1.0))], 10**6), compression=None)
    with pytest.raises(etrax.ArgumentError, match=r"node 'n0' \(Delay\): its states hold 10,000,000,000 numbers"):
        etrax.nir.read(tmp_path / "delay.nir")
    layers = [nir.LI(np.array(1e-2), np.array(1.0), np.array(0.0)) for _ in range(100)]
    nir.write(tmp_path / "layers.nir", wide_chain(layers, 10**7), compression=None)
    with pytest.raises(etrax.ArgumentError, match=r"node 'n6' \(LI\): its states hold 10,000,000 numbers"):
        etrax.nir.read(tmp_path / "layers.nir")


def test_a_text_that_says_it_is_long(file):
    """Four bytes say how long a text is: gigabytes would be taken for it before its bytes are looked for."""
    with h5py.File(file) as h:
        place = h["node/nodes/linear/type"].id.get_offset()
    data = bytearray(file.read_bytes())
    data[place : place + 4] = (2**32 - 1).to_bytes(4, "little")
    file.write_bytes(data)
    with pytest.raises(etrax.ArgumentError, match=r"`type` of node 'linear' .*is longer than the file"):
        etrax.nir.read(file)


def test_names_of_nodes_are_cut_short():
    nodes = {"in": nir.Input(np.array([2])), "out": nir.Output(np.array([2]))}
    with pytest.raises(etrax.ArgumentError, match="it has no node 'x") as found:
        etrax.nir.read(nir.NIRGraph(nodes, [("in", "x" * 50_000)], type_check=False))
    assert len(str(found.value)) < 600
