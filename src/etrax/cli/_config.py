"""`etrax train CONFIG.toml`: a run described by data. Nothing in a config is executed; names are looked up in lists."""

from __future__ import annotations

import inspect
import json
import math
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, TextIO, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from .. import tasks
from .._arguments import MOST, check_path, check_whole, foreign, short
from .._compile import compile as compile_learner
from .._errors import ArgumentError, EtraxError, need
from ..compiler.ir import PyTree
from ..learn import Learner, Optimizer
from ..rules import RULES
from ..tasks import Task
from ..train import Dataset, Epoch, Trainer, accuracy, step_accuracy
from ._limits import Network, check_meter, check_model_options, check_optimizer_options, check_size, check_update
from ._model import load_model

Result = TypeVar("Result")

EXAMPLE = """\
[data]                  # a task of etrax.tasks with its options
task = "copy"           # copy, integrator, delayed_match, evidence, short_evidence, small_digits, spoken_digits
size = 1280
key = 0
test = 0.2              # the share that is held out

[model]                 # a cell of etrax.nn under a linear readout (your own: --model MODULE:FACTORY)
cell = "GRUCell"
neurons = 64

[rule]
name = "d_rtrl"         # any rule of Etrax, with its options

[optimizer]
name = "adam"           # adam, adamw, rmsprop, sgd
learning_rate = 0.01
# clip = 1.0            # gradients whose norm over all parameters is larger are scaled down to it
# schedule = "cosine"   # constant, linear, cosine: from learning_rate down to zero at the end of the run
# warmup = 0.05         # the share of the run over which the learning rate rises from zero

# [mesh]                # many devices: the shape of the mesh, its axes, and what is sharded
# shape = [2, 4]
# axes = ["batch", "neuron"]
# shard = "batch+neuron"

[training]
window = 5
epochs = 20
batch = 32
seed = 0
# patience = 5          # stop after this many epochs without a better val_loss
# meter = 8             # after each epoch, measure the rule's cosine with the true gradient by this many directions
directory = "run"       # checkpoints and log.jsonl, from here or absolute; the same command continues where it stopped
"""
TASKS = ("copy", "integrator", "delayed_match", "evidence", "short_evidence", "small_digits", "spoken_digits")
CELLS = (
    "GRUCell", "MGUCell", "MiniGRU", "LSTMCell", "MiniLSTM", "VanillaRNNCell", "MinimalRNNCell", "LIF", "ALIF",
    "RecurrentLIF", "RecurrentALIF",
)  # fmt: skip
OPTIMIZERS = ("adam", "adamw", "rmsprop", "sgd")
SCHEDULES = ("constant", "linear", "cosine")
MESH = {"shape", "axes", "shard"}
CONFIG_BYTES = 1 << 20
TRAINING: dict[str, object] = {
    "window": 1, "epochs": 10, "batch": 32, "seed": 0, "patience": None, "meter": None, "directory": "run",
}  # fmt: skip


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
        with open(check_path("config", file), "rb") as opened:
            data = opened.read(CONFIG_BYTES + 1)
    except OSError as error:
        raise ArgumentError(f"{file!r} cannot be read: {error.strerror}.") from error
    if len(data) > CONFIG_BYTES:
        raise ArgumentError(f"{file!r} is larger than {CONFIG_BYTES:,} bytes, too large for a config.")
    try:
        sections = tomllib.loads(data.decode("utf8"))
    except (ValueError, RecursionError) as error:
        text = foreign(error)
        raise ArgumentError(
            f"{file!r} is not valid TOML: {text}. `etrax train --example` prints a config that is."
        ) from error
    _check_names("section", sections, Config._fields)
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise ArgumentError(f"`{name}` of {file!r} is {short(section)}; expected a section `[{name}]`.")
    if "data" not in sections:
        raise ArgumentError(f"{file!r} has no section `[data]`: `etrax train --example` prints a whole config.")
    config = Config(**{name: sections.get(name, {}) for name in Config._fields})
    _check_names("key of [training]", config.training, TRAINING)
    _check_names("key of [mesh]", config.mesh, MESH)
    return config._replace(training=TRAINING | config.training)


def run(config: Config, model: str | None, tell: Callable[[str], None], accept: Sequence[str] = ()) -> dict[str, float]:
    """Train as the config says; returns the figures of the last epoch.

    `accept` names what may differ from the checkpoint that the run goes on from.
    """
    optax = need("optax", "`etrax train`", "train")
    batch, window, epochs, seed = (_whole(config.training, k) for k in ("batch", "window", "epochs", "seed"))
    directory = _directory(config.training["directory"])
    patience, meter = (
        None if config.training[key] is None else _whole(config.training, key) for key in ("patience", "meter")
    )
    options = check_optimizer_options({"name": "adam", "learning_rate": 1e-3, **config.optimizer})
    training, held_out = _task(config.data)
    optimizer = _optimizer(optax, options, epochs * _updates_of_epoch(training, window, batch))
    learner = _learner(config, training, batch, seed, model)
    check_update(optimizer, learner.params)
    if meter is not None:
        check_meter(meter, learner.params)
    classes = training.classes is not None
    loss = optax.softmax_cross_entropy_with_integer_labels if classes else optax.squared_error
    trainer = Trainer(
        learner, optimizer, lambda o, t: loss(o, t).mean(), window=window,
        metrics={"accuracy": _accuracy_of(training)} if classes else None, meter=meter,
    )  # fmt: skip
    with _log(directory) as log:

        def note(epoch: Epoch) -> None:
            counts = {name: getattr(epoch, name) for name in ("epoch", "step", "updates", "samples")}
            log.write(json.dumps({**counts, **epoch.metrics}) + "\n")
            log.flush()
            tell(f"epoch {epoch.epoch}: " + ", ".join(f"{k} {v:.4g}" for k, v in epoch.metrics.items()))

        result = trainer.fit(
            _dataset(training), epochs, validation=_dataset(held_out), key=seed, progress=False, callback=note,
            patience=patience, checkpoint=directory / "checkpoint", accept=list(accept),
        )  # fmt: skip
    tell(f"{result!r}\n{learner!r}\nlog and checkpoints in {directory}")
    return dict(result.history[-1].metrics) if result.history else {}


def _optimizer(optax: ModuleType, options: dict[str, object], updates: int) -> Optimizer:
    """The optimizer of a section, with the clipping and the schedule that it asks for over so many updates."""
    name, clip, schedule, warmup = (options.pop(key, None) for key in ("name", "clip", "schedule", "warmup"))
    if schedule is not None and schedule not in SCHEDULES:
        raise ArgumentError(f"`schedule` of [optimizer] is {short(schedule)}; expected one of {', '.join(SCHEDULES)}.")
    if schedule is not None or warmup is not None:
        share = float(warmup) if isinstance(warmup, int | float) else 0.0
        options["learning_rate"] = _schedule(optax, options["learning_rate"], schedule, share, updates)
    optimizer = _called("[optimizer]", name, options, _named(optax, OPTIMIZERS))
    return optimizer if clip is None else optax.chain(optax.clip_by_global_norm(clip), optimizer)


def _schedule(optax: ModuleType, rate: object, name: object, warmup: float, updates: int) -> Callable[..., PyTree]:
    """The learning rate by the number of updates so far."""
    rising = round(warmup * updates)
    falling = {
        "linear": lambda: optax.linear_schedule(rate, 0.0, max(1, updates - rising)),
        "cosine": lambda: optax.cosine_decay_schedule(rate, max(1, updates - rising)),
    }.get(str(name), lambda: optax.constant_schedule(rate))()
    return optax.join_schedules([optax.linear_schedule(0.0, rate, max(1, rising)), falling], [rising])


def _updates_of_epoch(task: Task, window: int, batch: int) -> int:
    """How many updates an epoch makes: windows in which some target counts, in each batch."""
    steps, samples = task.inputs.shape[:2]
    counted = np.ones((steps, 1)) if task.mask is None else np.asarray(task.mask)
    windows = sum(bool(counted[at : at + window].any()) for at in range(0, steps, window))
    return -(-samples // batch) * windows


def _directory(value: object) -> Path:
    if not isinstance(value, str) or not value.strip():
        raise ArgumentError(f"`directory` of [training] is {short(value)}; expected the name of a directory.")
    return check_path("directory", value)


@contextmanager
def _log(directory: Path) -> Iterator[TextIO]:
    """The file of lines beside the checkpoints, open at its end."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        log = (directory / "log.jsonl").open("a", encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"`directory` {str(directory)!r} cannot be written to: {error.strerror}.") from error
    with log:
        yield log


def _accuracy_of(task: Task) -> Callable[..., jax.Array]:
    """One answer a sequence, or one at each step where the target changes from step to step."""
    return accuracy if bool((task.targets == task.targets[:1]).all()) else step_accuracy


def _dataset(task: Task) -> Dataset:
    return Dataset(task.inputs, task.targets, task.mask)


def _task(section: Mapping[str, object]) -> tuple[Task, Task]:
    options = dict(section)
    test = options.pop("test", 0.2)
    if not isinstance(test, int | float) or isinstance(test, bool) or not 0 < test < 1:
        raise ArgumentError(f"`test` of [data] is {short(test)}; expected the share that is held out, such as 0.2.")
    task = _called("[data]", options.pop("task", None), options, _named(tasks, TASKS), key="task")
    return tasks.split(task, test=test, seed=0)


def _learner(config: Config, data: Task, batch: int, seed: int, model: str | None) -> Learner:
    options = {"name": "d_rtrl", **config.rule}
    rule = _called("[rule]", options.pop("name"), options, RULES)
    if model is not None and config.mesh:
        raise ArgumentError("[mesh] is for the cells of [model]: leave out --model, or train your own model in Python.")
    if model is not None:
        return load_model(model).learner(rule)
    brainstate = need("brainstate", "a cell of `etrax.nn`", "brainstate")
    from .. import nn

    options = check_model_options({"cell": "GRUCell", "neurons": 64, **config.model})
    n_in = data.inputs.shape[-1]
    n_out = data.targets.shape[-1] if data.classes is None else data.classes
    neurons = check_whole("neurons", options.pop("neurons"), "neurons")
    name, cells = options.pop("cell"), _named(nn, CELLS)

    def build(count: int) -> Network:
        sized = {key: lambda make=make, **o: make(n_in, count, **o) for key, make in cells.items()}
        cell = _called("[model]", name, options, sized, key="cell")
        return brainstate.nn.Sequential(cell, nn.Linear(count, n_out))

    budget = _attempt("[model]", name, lambda: check_size(build, neurons, batch, n_in))
    brainstate.random.seed(seed)
    example, (mesh, shard) = jnp.zeros((batch, n_in), jnp.float32), _mesh(config.mesh)

    def compiled() -> Learner:
        return compile_learner(
            build(neurons), rule, example, batch_size=batch, memory_budget=budget, mesh=mesh, shard=shard
        )

    return _attempt("[model]", name, compiled)  # a cell looks at its options only when its states are made


def _mesh(section: Mapping[str, object]) -> tuple[Mesh | None, str | None]:
    """The options `mesh` and `shard` of `etrax.compile`, for many devices."""
    if not section:
        return None, None
    shape, axes, shard = (section.get(k) for k in ("shape", "axes", "shard"))
    sizes, names = (v if isinstance(v, list) else [] for v in (shape, axes))
    legal = all(type(n) is int and n > 0 for n in sizes) and all(isinstance(a, str) and a for a in names)
    if not sizes or len(names) != len(sizes) or not legal:
        raise ArgumentError(
            f"[mesh] has shape {short(shape)} and axes {short(axes)}; expected sizes and names: shape = [2, 4], "
            'axes = ["batch", "neuron"].'
        )
    if not isinstance(shard, str):
        raise ArgumentError(f"`shard` of [mesh] is {short(shard)}; expected 'batch', 'neuron' or 'batch+neuron'.")
    count, devices = math.prod(sizes), jax.devices()
    if count > len(devices):
        raise ArgumentError(f"[mesh] of shape {shape} needs {count} devices; there are {len(devices)}.")
    if len(set(names)) < len(names):
        raise ArgumentError(f"[mesh] has axes {short(axes)}; expected a name for each, no two alike.")
    mesh = Mesh(np.array(devices[:count]).reshape(sizes), names, axis_types=(AxisType.Auto,) * len(sizes))
    return mesh, shard


def _named(module: object, names: tuple[str, ...]) -> dict[str, Callable[..., PyTree]]:
    return {name: getattr(module, name) for name in names}


def _called(
    section: str, name: object, options: Mapping[str, object], functions: Mapping[str, Callable[..., PyTree]],
    key: str = "name",
) -> PyTree:  # fmt: skip
    """What the function of that name returns for these options."""
    if not isinstance(name, str) or name not in functions:
        raise ArgumentError(f"`{key}` of {section} is {short(name)}; expected one of {', '.join(functions)}.")

    def call() -> PyTree:
        inspect.signature(functions[name]).bind(**options)
        return functions[name](**options)

    return _attempt(section, name, call)


def _attempt(section: str, name: object, call: Callable[[], Result]) -> Result:
    """What a section asks for; errors of other libraries, which raise all kinds, name the section."""
    try:
        return call()
    except EtraxError:
        raise
    except Exception as error:
        text = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ArgumentError(f"{section} does not fit {foreign(name)}: {foreign(text)}.") from error


def _whole(section: Mapping[str, object], name: str) -> int:
    value, least, most = section[name], int(name != "seed"), 2**32 - 1 if name == "seed" else MOST
    if type(value) is not int or not least <= value <= most:
        raise ArgumentError(
            f"`{name}` of [training] is {short(value)}; expected a whole number, at least {least} and at most {most}."
        )
    return value


def _check_names(what: str, names: Iterable[str], legal: Collection[str]) -> None:
    for name in names:
        if name not in legal:
            raise ArgumentError(f"there is no {what} `{foreign(name)}`; there are {', '.join(sorted(legal))}.")
