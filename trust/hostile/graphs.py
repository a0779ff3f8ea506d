"""NIR files: bytes damaged, fields replaced by nonsense, links and arrays that lead out of the file or grow."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import nir
import numpy as np

import etrax

from .damage import EVIL, Rng, damaged

ONE = np.ones(2)


def _networks() -> list[nir.NIRGraph]:
    lif = nir.LIF(tau=1e-3 * ONE, r=ONE, v_leak=0 * ONE, v_threshold=ONE, v_reset=0 * ONE)
    cuba = nir.CubaLIF(tau_syn=1e-3 * ONE, tau_mem=2e-3 * ONE, r=ONE, v_leak=0 * ONE, v_threshold=ONE)
    affine = nir.Affine(np.ones((2, 3)), np.zeros(2))
    conv = nir.Conv2d((4, 4), np.ones((2, 1, 2, 2)), 1, 0, 1, 1, np.zeros(2))
    flat = nir.Flatten({"input": np.array([2, 4, 4])}, 0, -1)
    nodes = {"in": nir.Input(np.array([3])), "fc": affine, "lif": lif, "back": nir.Linear(np.eye(2)),
             "out": nir.Output(np.array([2]))}  # fmt: skip
    edges = [("in", "fc"), ("fc", "lif"), ("lif", "back"), ("back", "lif"), ("lif", "out")]
    inner = nir.NIRGraph.from_list(nir.Scale(ONE), cuba)
    outer = nir.NIRGraph({"in": nir.Input(ONE[:1] * 2), "net": inner, "out": nir.Output(ONE[:1] * 2)},
                         [("in", "net"), ("net", "out")], type_check=False)  # fmt: skip
    return [
        nir.NIRGraph(nodes, edges, type_check=False),
        nir.NIRGraph.from_list(affine, nir.Delay(2e-4 * ONE), cuba, nir.Scale(ONE), nir.LI(1e-3 * ONE, ONE, 0 * ONE)),
        nir.NIRGraph.from_list(conv, nir.SumPool2d(np.array([2, 2]), np.array([1, 1]), np.array([1, 1])), flat),
        outer,
    ]


class Graphs:
    """A graph that is read has finite numbers and runs by shapes; all others are refused in words."""

    def __init__(self, place: Path):
        self.place, self.file, self.whole = place, place / "file.nir", []
        for number, network in enumerate(_networks()):
            self.whole.append(place / f"whole{number}.nir")
            nir.write(self.whole[-1], network, compression=("gzip", None)[number % 2])
            etrax.nir.read(self.whole[-1])
        (place / "secret").write_bytes(bytes(range(256)))

    @cached_property
    def bomb(self) -> bytes:
        """300 MB of zeros, packed."""
        return zlib.compress(bytes(300 << 20), 9)

    def attempt(self, rng: Rng) -> tuple[str, Callable[[], str | None]]:
        whole = self.whole[int(rng.integers(len(self.whole)))]
        shutil.copyfile(whole, self.file)
        if rng.random() < 0.5:
            what, data = damaged(rng, whole.read_bytes())
            self.file.write_bytes(data)
            return what, self._judge
        with h5py.File(self.file, "a") as h:
            return self._change(rng, h), self._judge

    def _change(self, rng: Rng, h: h5py.File) -> str:
        names: list[str] = []
        h["node"].visit(names.append)
        arrays = [f"node/{n}" for n in names if isinstance(h[f"node/{n}"], h5py.Dataset)]
        name = arrays[int(rng.integers(len(arrays)))]
        act = str(rng.choice(["value", "lead out", "size", "structure"], p=[0.5, 0.2, 0.2, 0.1]))
        made = {"value": self._value, "lead out": self._lead_out, "size": self._size, "structure": self._structure}[act]
        return f"{act} of {name}: {made(rng, h, name)}"

    def _value(self, rng: Rng, h: h5py.File, name: str) -> str:
        old = h[name][()]
        numbers = [np.nan, np.inf, -np.inf, 0.0, -1.0, 1e300, 1e-300, 1e12, -(2.0**40), 0.5]
        options: list[Callable[[], Any]] = [
            *(lambda v=v: np.full(np.shape(old), v) for v in numbers), lambda: np.array(numbers)[:2],
            lambda: np.zeros((0,)), lambda: np.zeros((0, 2)), lambda: np.ones((2, 3, 1, 1, 2)), lambda: EVIL,
            lambda: "NIRGraph", lambda: "same",
            lambda: np.bytes_(b"\xff\xfe"), lambda: 2**62, lambda: -1, lambda: True, lambda: np.array([[b"a", b"b"]]),
            lambda: ["in", "out"], lambda: [["in", "out", "lif"]], lambda: np.array(1j), lambda: h5py.Empty("f4"),
            lambda: np.float16(1), lambda: np.arange(6).reshape(2, 3), lambda: np.zeros(3, [("a", "f4")]),
        ]  # fmt: skip
        del h[name]
        if rng.random() < 0.1:
            return "missing"
        new = options[int(rng.integers(len(options)))]()
        h.create_dataset(name, data=new)
        return ascii(new)[:60]

    def _lead_out(self, rng: Rng, h: h5py.File, name: str) -> str:
        act = int(rng.integers(4))
        del h[name]
        if act == 0:
            h[name] = h5py.ExternalLink(str(self.whole[0]), "node")
        elif act == 1:
            h[name] = h5py.SoftLink(str(rng.choice(["/node", "/nowhere", name])))
        elif act == 2:
            h.create_dataset(name, (2, 2), "u1", external=[(str(self.place / "secret"), 0, 4)])
        else:
            layout = h5py.VirtualLayout((2, 2), "f8")
            layout[:] = h5py.VirtualSource(str(self.whole[0]), "node/nodes/fc/weight", (2, 2))
            h.create_virtual_dataset(name, layout)
        return ("another file", "another place", "numbers of another file", "numbers of another array")[act]

    def _size(self, rng: Rng, h: h5py.File, name: str) -> str:
        act = int(rng.integers(5))
        del h[name]
        side = 1 << int(rng.integers(13, 30))
        if act == 0:
            h.create_dataset(name, (side, side), "f4", chunks=(1, 1024))
        elif act == 1:
            h.create_dataset(name, (side, 1 << 16), "f8", fillvalue=1.0, chunks=(1, 1024), compression="gzip")
        elif act == 2:
            made = h.create_dataset(name, (2, 2), "f4", chunks=(2, 2), compression="gzip")
            made.id.write_direct_chunk((0, 0), self.bomb)
        elif act == 3:
            h.create_dataset(name, (2, 2), "f4", maxshape=(None, None), chunks=(1 << 14, 1 << 13))
        else:
            made = h.create_dataset(name, (1 << int(rng.integers(10, 20)), 2), h5py.string_dtype())
            made[0] = ["x" * 50_000, "y"]
        return ("nothing, large", "packed fill", "a bomb", "a large chunk", "many texts")[act]

    def _structure(self, rng: Rng, h: h5py.File, name: str) -> str:
        act = int(rng.integers(5))
        if act == 0:
            h["node/nodes/again"] = h["node"]
        elif act == 1:
            inner = h.create_group("inner")
            for k in range(30):
                outer = h.create_group(f"outer{k}")
                outer["a"] = outer["b"] = inner
                inner = outer
            h["node/nodes/web"] = inner
        elif act == 2:
            h.move("node/nodes", "node/" + EVIL)
        elif act == 3:
            del h[name]
            h.create_group(name + "/type/deep")
        else:
            node = str(rng.choice(list(h["node/nodes"])))
            h.copy(f"node/nodes/{node}", f"node/nodes/{EVIL}{node}")
        return ("a cycle", "a web", "a renamed group", "a group for an array", "a name that terminals obey")[act]

    def _judge(self) -> str | None:
        step, params, hidden = etrax.nir.read(self.file)
        numbers = jax.tree.leaves((params, hidden, step._numbers))
        if not all(bool(np.isfinite(a).all()) for a in map(np.asarray, numbers)):
            return "numbers that are not finite were taken"
        times = [v for of in step._numbers.values() for k, v in of.items() if k.startswith("tau")]
        if not all(bool((np.asarray(v) > 0).all()) for v in times):
            return "time constants that are not above zero were taken"
        inputs = [jax.ShapeDtypeStruct(step._context[n,].shape, jnp.float32) for n in step.inputs]
        jax.eval_shape(step, params, hidden, *inputs)
        return None
