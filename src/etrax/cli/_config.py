"""`etrax train CONFIG.toml`: a run described by data. Nothing in a config is executed; names are looked up in lists."""

from __future__ import annotations

import inspect
import json
import math
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from .. import tasks
from .._arguments import short
from .._compile import compile as compile_learner
from .._errors import ArgumentError
from ..ir import PyTree
from ..learn import Learner
from ..rules import RULES
from ..tasks import Task
from ..train import Dataset, Epoch, Trainer, accuracy
from ._model import load_model, need

EXAMPLE = """\
[data]                  # a task of etrax.tasks with its options
task = "copy"           # copy, integrator, delayed_match, evidence, small_digits, spoken_digits
size = 640
key = 0
test = 0.2              # the share that is held out

[model]                 # a cell of etrax.nn under a linear readout (your own: --model MODULE:FACTORY)
cell = "GRUCell"
neurons = 64

[rule]
name = "d_rtrl"         # any rule of Etrax, with its options

[optimizer]
name = "adam"           # adam, adamw, rmsprop, sgd
learning_rate = 0.003

# [mesh]                # many devices: the shape of the mesh and its axes, and what is cut over them
# shape = [2, 4]
# axes = ["batch", "neuron"]
# shard = "batch+neuron"

[training]
window = 5
epochs = 10
batch = 32
seed = 0
directory = "run"       # checkpoints and log.jsonl; the same command goes on where it stopped
"""
TASKS = ("copy", "integrator", "delayed_match", "evidence", "small_digits", "spoken_digits")
CELLS = (
    "GRUCell", "MGUCell", "MiniGRU", "LSTMCell", "MiniLSTM", "VanillaRNNCell", "MinimalRNNCell", "LIF", "ALIF",
    "RecurrentLIF", "RecurrentALIF",
)  # fmt: skip
OPTIMIZERS = ("adam", "adamw", "rmsprop", "sgd")
SECTIONS = {"data", "model", "rule", "optimizer", "mesh", "training"}
MESH = {"shape", "axes", "shard"}
TRAINING: dict[str, object] = {"window": 1, "epochs": 10, "batch": 32, "seed": 0, "directory": "run"}


class Config(NamedTuple):
    """A config as it was read, section by section."""

    data: dict[str, object]
    model: dict[str, object]
    rule: dict[str, object]
    optimizer: dict[str, object]
    mesh: dict[str, object]
    training: dict[str, object]


def read_config(file: str) -> Config:
    """A config from a file, its sections and the keys of `[training]` known."""
    try:
        with open(file, "rb") as opened:
            found = tomllib.load(opened)
    except OSError as error:
        raise ArgumentError(f"{file!r} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{file!r} is no TOML: {error}. `etrax train --example` prints one that is.") from error
    _known("section", found, SECTIONS)
    for name, section in found.items():
        if not isinstance(section, dict):
            raise ArgumentError(f"`{name}` of {file!r} is {short(section)}; expected a section `[{name}]`.")
    if "data" not in found:
        raise ArgumentError(f"{file!r} has no section `[data]`: `etrax train --example` prints a whole config.")
    training = found.get("training", {})
    _known("key of [training]", training, TRAINING)
    _known("key of [mesh]", found.get("mesh", {}), MESH)
    data, model, rule, optimizer, mesh = (found.get(k, {}) for k in ("data", "model", "rule", "optimizer", "mesh"))
    return Config(data, model, rule, optimizer, mesh, TRAINING | training)


def run(config: Config, model: str | None, tell: Callable[[str], None]) -> dict[str, float]:
    """Train as the config says; returns the figures of the last epoch."""
    optax = need("optax", "`etrax train`", "train")
    training, held = _task(config.data)
    batch, window, epochs, seed = (_whole(config.training, k) for k in ("batch", "window", "epochs", "seed"))
    learner = _learner(config, training, batch, seed, model)
    optimizer = _made(
        "[optimizer]", {"name": "adam", "learning_rate": 1e-3, **config.optimizer}, _named(optax, OPTIMIZERS)
    )
    classes = training.classes is not None
    loss = optax.softmax_cross_entropy_with_integer_labels if classes else optax.squared_error
    trainer = Trainer(
        learner, optimizer, lambda o, t: loss(o, t).mean(), window=window,
        metrics={"accuracy": accuracy} if classes else None,
    )  # fmt: skip
    directory = Path(str(config.training["directory"]))
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "log.jsonl", "a", encoding="utf-8") as log:

        def note(epoch: Epoch) -> None:
            log.write(json.dumps({"epoch": epoch.epoch, "step": epoch.step, **epoch.metrics}) + "\n")
            log.flush()
            tell(f"epoch {epoch.epoch}: " + ", ".join(f"{k} {v:.4g}" for k, v in epoch.metrics.items()))

        result = trainer.fit(
            _dataset(training), epochs, validation=_dataset(held), key=seed, progress=False, callback=note,
            checkpoint=directory / "checkpoint",
        )  # fmt: skip
    tell(f"{learner!r}\nlog and checkpoints in {directory}")
    return dict(result.history[-1].metrics) if result.history else {}


def _dataset(task: Task) -> Dataset:
    return Dataset(task.inputs, task.targets, task.mask)


def _task(section: Mapping[str, object]) -> tuple[Task, Task]:
    options = dict(section)
    test = options.pop("test", 0.2)
    if not isinstance(test, int | float) or not 0 < test < 1:
        raise ArgumentError(f"`test` of [data] is {short(test)}; expected the share that is held out, such as 0.2.")
    options["name"] = options.pop("task", None)
    made = _made("[data]", options, _named(tasks, TASKS), key="task")
    return tasks.split(made, test=test, seed=0)


def _learner(config: Config, data: Task, batch: int, seed: int, model: str | None) -> Learner:
    rule = _made("[rule]", {"name": "d_rtrl", **config.rule}, RULES)
    if model is not None and config.mesh:
        raise ArgumentError("[mesh] is for the cells of [model]: leave out --model, or train your own model in Python.")
    if model is not None:
        return load_model(model).learner(rule)
    brainstate = need("brainstate", "a cell of `etrax.nn`", "brainstate")
    from .. import nn

    options = {"cell": "GRUCell", "neurons": 64, **config.model}
    n_in = data.inputs.shape[-1]
    n_out = data.targets.shape[-1] if data.classes is None else data.classes
    neurons = options.pop("neurons")
    brainstate.random.seed(seed)
    cells = {name: lambda make=make, **o: make(n_in, neurons, **o) for name, make in _named(nn, CELLS).items()}
    cell = _made("[model]", {"name": options.pop("cell"), **options}, cells, key="cell")
    network = brainstate.nn.Sequential(cell, nn.Linear(neurons, n_out))
    return compile_learner(network, rule, jnp.zeros((batch, n_in), jnp.float32), batch_size=batch, **_mesh(config.mesh))


def _mesh(section: Mapping[str, object]) -> dict[str, Any]:
    """The options of `etrax.compile` for many devices."""
    if not section:
        return {}
    shape, axes, shard = (section.get(k) for k in ("shape", "axes", "shard"))
    sizes, names = (v if isinstance(v, list) else [] for v in (shape, axes))
    whole = all(type(n) is int and n > 0 for n in sizes) and all(isinstance(a, str) for a in names)
    if not sizes or len(names) != len(sizes) or not whole:
        raise ArgumentError(
            f"[mesh] has shape {short(shape)} and axes {short(axes)}; expected sizes and names: shape = [2, 4], "
            'axes = ["batch", "neuron"].'
        )
    if not isinstance(shard, str):
        raise ArgumentError(f"`shard` of [mesh] is {short(shard)}; expected 'batch', 'neuron' or 'batch+neuron'.")
    count, devices = math.prod(sizes), jax.devices()
    if count > len(devices):
        raise ArgumentError(f"[mesh] of shape {shape} needs {count} devices; there are {len(devices)}.")
    mesh = Mesh(np.array(devices[:count]).reshape(sizes), names, axis_types=(AxisType.Auto,) * len(sizes))
    return {"mesh": mesh, "shard": shard}


def _named(module: object, names: tuple[str, ...]) -> dict[str, Callable[..., PyTree]]:
    return {name: getattr(module, name) for name in names}


def _made(section: str, given: Mapping[str, object], known: Mapping[str, Callable[..., PyTree]], key: str = "name"):
    """What the function of a known name makes of the other keys."""
    options = dict(given)
    name = options.pop("name", None)
    if not isinstance(name, str) or name not in known:
        raise ArgumentError(f"`{key}` of {section} is {short(name)}; expected one of {', '.join(known)}.")
    try:
        inspect.signature(known[name]).bind(**options)
        return known[name](**options)
    except TypeError as error:
        raise ArgumentError(f"{section} does not fit {name}: {error}.") from error


def _whole(section: Mapping[str, object], name: str) -> int:
    value = section[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < (name != "seed"):
        raise ArgumentError(f"`{name}` of [training] is {short(value)}; expected a whole number, at least 1.")
    return value


def _known(what: str, found: Mapping[str, object], known: set[str] | Mapping[str, object]) -> None:
    for name in found:
        if name not in known:
            raise ArgumentError(f"there is no {what} `{name}`; there are {', '.join(sorted(known))}.")
