"""Public functions with valid arguments: a test replaces some of them by something that nobody meant."""

import functools
import inspect
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import optax
from tests.learn.table import ROWS

import etrax
import etrax.nn

T, B, I, H = 4, 2, 3, 4
RNG = np.random.default_rng(0)
XS, YS = jnp.asarray(RNG.standard_normal((T, B, I))), jnp.asarray(RNG.standard_normal((T, B, H)))
PARAMS, HIDDEN = {"w": jnp.asarray(RNG.standard_normal((I, H)))}, jnp.zeros((B, H))


def step(params, h, x):
    h = 0.9 * h + x @ params["w"]
    return h, h


def loss(output, target):
    return (output**2).mean() if target is None else ((output - target) ** 2).mean()


@functools.cache
def learner():
    return etrax.compile(step, "d_rtrl", XS[0], params=PARAMS, hidden=HIDDEN)


@functools.cache
def sgd():
    return optax.sgd(0.1)


@functools.cache
def comparison():
    return etrax.testing.compare(learner(), loss, PARAMS, HIDDEN, XS, YS, window=2)


@functools.cache
def recording():
    return etrax.viz.record(learner(), XS)


@functools.cache
def gradient():
    return learner().value_and_grad(loss, window=2)


@functools.cache
def training():
    return learner().train(sgd(), loss, window=2)


@functools.cache
def trainer():
    return etrax.Trainer(learner(), sgd(), loss, window=2)


@functools.cache
def data():
    return etrax.train.Dataset(np.asarray(XS), np.asarray(YS))


@functools.cache
def task():
    return etrax.tasks.copy(key=0, size=4)


class Call(NamedTuple):
    """A function, and valid arguments by name."""

    run: Callable[..., Any]
    valid: dict[str, Callable[[], Any]]


def call(run, **valid):
    return Call(run, {k: v if callable(v) else (lambda v=v: v) for k, v in valid.items()})


def held(value):
    """A value that is a function itself."""
    return lambda: value


LEARNER = {
    "compile": call(
        lambda model, rule, x, **o: etrax.compile(model, rule, x, **o), model=held(step), rule="d_rtrl",
        x=lambda: XS[0], params=lambda: PARAMS, hidden=lambda: HIDDEN, batch_size=None, trace_dtype=None,
        check_finite=False, memory_budget=None,
    ),
    "init": call(
        lambda **o: learner().init(**o), params=lambda: PARAMS, hidden=lambda: HIDDEN, learned=None, lanes=False
    ),
    "step": call(
        lambda params, state, x, **o: learner().step(params, state, x, **o), params=lambda: PARAMS,
        state=lambda: learner().init(), x=lambda: XS[0], reset=False, initial=lambda: HIDDEN,
    ),
    "plain_step": call(
        lambda **o: learner().plain_step(**o), params=lambda: PARAMS, hidden=lambda: HIDDEN, inputs=lambda: (XS[0],)
    ),
    "learned": call(lambda **o: learner().learned(**o), state=lambda: learner().init()),
    "check": call(lambda **o: learner().check(**o), state=lambda: learner().init()),
    "memory": call(lambda **o: learner().memory(**o), window=2, steps=None, batch=None, donate=False),
    "value_and_grad": call(
        lambda **o: learner().value_and_grad(**o), loss_fn=held(loss), window=2, reduction="mean", donate=False
    ),
    "gradient": call(
        lambda **o: gradient()(**o), params=lambda: PARAMS, state=lambda: learner().init(), inputs=lambda: XS,
        targets=lambda: YS, mask=None, reset=None, initial=None,
    ),
    "gradient with resets": call(
        lambda **o: gradient()(PARAMS, learner().init(), XS, YS, **o), reset=lambda: np.zeros(T, bool),
        initial=lambda: HIDDEN,
    ),
    "train": call(
        lambda **o: learner().train(**o), optimizer=sgd, loss_fn=held(loss), window=2, reduction="mean", donate=False
    ),
    "training": call(
        lambda **o: training()(**o), params=lambda: PARAMS, opt_state=lambda: sgd().init(PARAMS),
        state=lambda: learner().init(), inputs=lambda: XS, targets=lambda: YS, mask=None, reset=None,
    ),
    "online": call(
        lambda **o: learner().online(**o), optimizer=sgd, loss_fn=held(loss), window=2, params=lambda: PARAMS,
        state=lambda: learner().init(), opt_state=lambda: sgd().init(PARAMS), donate=False,
    ),
    "feed": call(
        lambda inputs, target, **o: learner().online(sgd(), loss, window=2).feed(inputs, target, **o),
        inputs=lambda: XS[0], target=lambda: YS[0], reset=True, initial=lambda: HIDDEN,
    ),
}  # fmt: skip


def rule_calls():
    """Each rule with the options of its fullest row in the conformance table, and defaults for the rest."""
    found = {}
    for row in sorted(ROWS.values(), key=lambda row: len(row.rule.options)):
        function, options = getattr(etrax, row.rule.name), row.rule.options
        valid = {n: held(options.get(n, p.default)) for n, p in inspect.signature(function).parameters.items()}
        found |= {row.rule.name: call(function, **valid)} if valid else {}
    return found


RULES = rule_calls() | {
    "partition": call(etrax.partition, rules=lambda: {"w": etrax.d_rtrl()}, default=lambda: etrax.tbptt()),
    "directional": call(
        etrax.directional, rules=lambda: ["tbptt"], random=1, last=True, by_parameter=False, key=0
    ),
    "register_weight_op": call(
        lambda primitive, rule: etrax.register_weight_op(primitive, rule), primitive="bad_input_op",
        rule=lambda: etrax.OpRule("mine", True, lambda c: False, lambda c: (), None, None, None, None),
    ),
    "register_primitive": call(
        lambda primitive, record: etrax.register_primitive(primitive, record), primitive="bad_input_primitive",
        record=etrax.Primitive,
    ),
}  # fmt: skip

TESTING = {
    name: call(
        lambda f=name, **o: getattr(etrax.testing, f)(learner(), loss)(**o), params=lambda: PARAMS,
        hidden=lambda: HIDDEN, inputs=lambda: XS, targets=lambda: YS,
    )
    for name in ("bptt", "dense_rtrl")
} | {
    "bptt of": call(lambda **o: etrax.testing.bptt(**o), learner=learner, loss_fn=held(loss), reduction="mean"),
    "finite_differences of": call(
        lambda **o: etrax.testing.finite_differences(**o), learner=learner, loss_fn=held(loss), epsilon=1e-6
    ),
    "dense_rtrl of": call(lambda **o: etrax.testing.dense_rtrl(**o), learner=learner, loss_fn=held(loss)),
    "compare": call(
        etrax.testing.compare, learner=learner, loss_fn=held(loss), params=lambda: PARAMS, hidden=lambda: HIDDEN,
        inputs=lambda: XS, targets=lambda: YS, window=2, mask=None, tolerance=None,
    ),
    "comparison[...]": call(lambda path: comparison()[path], path=("w",)),
    "report.to_html": call(lambda file: learner().report.to_html(file), file=None),
    "report.verdicts": call(lambda: learner().report.verdicts),
}  # fmt: skip

TRAIN = {
    "Trainer": call(
        etrax.Trainer, learner=learner, optimizer=sgd, loss_fn=held(loss), window=2, update="window", gradient=None,
        metrics=None, meter=None,
    ),
    "fit": call(
        # A great number of epochs is legal, and an exception in a callback is the user's way out.
        lambda **o: trainer().fit(epochs=1, progress=False, **o), data=data, validation=None, params=lambda: PARAMS,
        opt_state=None, shuffle=True, key=0, monitor=None, mode=None, patience=None, train_metrics=False,
        checkpoint=None, batch_first=False, log_every=None, project=None,
    ),
    "fit, batches": call(
        lambda **o: trainer().fit(epochs=1, progress=False, **o), data=lambda: [tuple(data()[:2])], batches=None,
    ),
    "evaluate": call(
        lambda **o: trainer().evaluate(**o), params=lambda: PARAMS, data=data, batch_first=False,
    ),
    "projected": call(etrax.train.projected, optimizer=sgd, project=held(lambda p: p)),
    "neurobench": call(
        etrax.train.neurobench, learner=learner, params=lambda: PARAMS, inputs=lambda: XS, hidden=lambda: HIDDEN,
        samples=2,
    ),
    "Dataset": call(
        lambda **o: trainer().evaluate(PARAMS, etrax.train.Dataset(**o)), inputs=lambda: np.asarray(XS),
        targets=lambda: np.asarray(YS), mask=None, reset=lambda: np.zeros((T, B), bool),
    ),
    "Dataset.labelled": call(
        etrax.train.Dataset.labelled, inputs=lambda: np.asarray(XS), labels=lambda: np.zeros(B), mask=None
    ),
    "pad": call(etrax.train.pad, sequences=lambda: [np.ones((2, 3)), np.ones((4, 3))], count="all"),
    "packed": call(etrax.train.packed, episodes=lambda: [(np.ones((n, 3)), np.ones(n)) for n in (2, 4)], lanes=2),
    "accuracy": call(
        etrax.train.accuracy, outputs=lambda: YS, targets=lambda: jnp.zeros((T, B), int), mask=lambda: jnp.ones((T, B))
    ),
    "step_accuracy": call(
        etrax.train.step_accuracy, outputs=lambda: YS, targets=lambda: jnp.zeros((T, B), int),
        mask=lambda: jnp.ones((T, B)),
    ),
}  # fmt: skip

TASKS = {
    "copy": call(etrax.tasks.copy, key=0, size=4, length=3, delay=2, symbols=4),
    "integrator": call(etrax.tasks.integrator, key=0, size=4, steps=5, hold=0, distractors=0, rate=0.2),
    "delayed_match": call(
        etrax.tasks.delayed_match, key=0, size=4, stimuli=2, cue=2, delay=2, channels=3, rate=0.5, noise=0.0
    ),
    "evidence": call(
        etrax.tasks.evidence, key=0, size=4, cues=3, cue=2, gap=1, delay=2, recall=2, channels=3, rate=0.4, noise=0.1
    ),
    "short_evidence": call(
        etrax.tasks.short_evidence, key=0, size=4, cues=3, cue=2, gap=1, delay=2, recall=2, channels=3, rate=0.4,
        noise=0.1,
    ),
    "rate_spikes": call(etrax.tasks.rate_spikes, values=lambda: np.full((2, 3), 0.5), steps=4, key=0, max_rate=1.0),
    "latency_spikes": call(etrax.tasks.latency_spikes, values=lambda: np.full((2, 3), 0.5), steps=4),
    "delta_spikes": call(etrax.tasks.delta_spikes, signal=lambda: np.ones((4, 2, 3)), threshold=0.5),
    "Task": call(
        etrax.tasks.Task, inputs=lambda: np.ones((4, 2, 3)), targets=lambda: np.ones((4, 2)),
        mask=lambda: np.ones((4, 2), bool), classes=None,
    ),
    "take": call(lambda which: task().take(which), which=lambda: [0, 1]),
    "labelled": call(
        etrax.tasks.labelled, inputs=lambda: np.ones((4, 2, 3)), labels=lambda: np.zeros(2, int), classes=2, mask=None
    ),
    "split": call(etrax.tasks.split, task=task, test=0.5, seed=0),
    "standardise": call(lambda train: etrax.tasks.standardise(train), train=task),
    "last_only": call(etrax.tasks.last_only, task=task),
    "fashion_mnist": call(etrax.tasks.fashion_mnist, part="train", order="rows", size=2, directory="none"),
    "spoken_digits": call(etrax.tasks.spoken_digits, longest=20),
    "small_digits": call(etrax.tasks.small_digits, order="rows"),
}  # fmt: skip

VIZ = {
    "record": call(
        lambda **o: etrax.viz.record(**o), learner=learner, inputs=lambda: XS, params=None, state=None,
        parameters=None, states=None, sample=None,
    ),
    "traces": call(
        lambda **o: etrax.viz.traces(**o), recording=recording, parameters=None, states=None, rows=4, ax=None
    ),
    "cosines": call(
        lambda **o: etrax.viz.cosines(**o), comparisons=lambda: {2: comparison()}, along="window", log=False, ax=None,
    ),
    "states": call(
        lambda **o: etrax.viz.states(**o), recording=recording, states=None, units=4, sample=None, ax=None
    ),
    "raster": call(lambda **o: etrax.viz.raster(**o), spikes=recording, state=(), sample=0, ax=None),
}  # fmt: skip


def cell():
    """A new one each time: compiling with `batch_size=` creates its states anew."""
    found = etrax.nn.GRUCell(I, H)
    brainstate.nn.init_all_states(found)
    return found


@functools.cache
def minfo():
    return etrax.extract_module_info(cell(), XS[0, 0])


@functools.cache
def executor():
    found = etrax.ETraceGraphExecutor(cell())
    found.compile_graph(XS[0, 0])
    return found


BY_MODULE = (
    "compile_etrace_graph", "extract_module_info", "find_hidden_groups_from_module",
    "find_hidden_param_op_relations_from_module", "add_hidden_perturbation_in_module",
)  # fmt: skip
BY_INFO = (
    "find_hidden_groups_from_minfo", "find_hidden_param_op_relations_from_minfo", "add_hidden_perturbation_from_minfo",
)  # fmt: skip
GRAPH = {
    name: call(lambda model, x, f=name: getattr(etrax, f)(model, x), model=cell, x=lambda: XS[0, 0])
    for name in BY_MODULE
}
GRAPH |= {name: call(lambda minfo, f=name: getattr(etrax, f)(minfo), minfo=minfo) for name in BY_INFO}
GRAPH |= {
    "ETraceGraphExecutor": call(lambda model: etrax.ETraceGraphExecutor(model), model=cell),
    "solve_h2w_h2h_jacobian": call(lambda x: executor().solve_h2w_h2h_jacobian(x), x=lambda: XS[0, 0]),
    "explain": call(
        lambda **o: executor().graph.explain(**o), weight_path=("Wz", "weight"), hidden_path=("h",), kind=None
    ),
    "compile a module": call(
        lambda model, x, batch_size: etrax.compile(model, "d_rtrl", x, batch_size=batch_size), model=cell,
        x=lambda: XS[0, 0], batch_size=None,
    ),
}  # fmt: skip


# What nobody meant, by name.
JUNK: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "-1": lambda: -1,
    "3": lambda: 3,
    "10**12": lambda: 10**12,
    "1.5": lambda: 1.5,
    "0.5": lambda: 0.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "1j": lambda: 1j,
    "''": lambda: "",
    "'nonsense'": lambda: "nonsense",
    "bytes": lambda: b"x",
    "[]": lambda: [],
    "[1.0, 2.0]": lambda: [1.0, 2.0],
    "ragged": lambda: [[1.0], [1.0, 2.0]],
    "()": lambda: (),
    "{}": lambda: {},
    "{'w': 1}": lambda: {"w": 1},
    "{'v': array}": lambda: {"v": jnp.ones(3)},
    "{1, 2}": lambda: {1, 2},
    "object": lambda: object(),
    "function of none": lambda: lambda: 0,
    "function of any": lambda: lambda *a, **k: 0,
    "class": lambda: dict,
    "np.float32": lambda: np.float32,
    "array of text": lambda: np.array(["a", "b"]),
    "array of objects": lambda: np.array([object(), None], dtype=object),
    "array of objects, fitting": lambda: np.full((T, B, I), None, dtype=object),
    "empty": lambda: np.zeros(0),
    "empty, three axes": lambda: np.zeros((0, B, I)),
    "scalar": lambda: jnp.ones(()),
    "vector": lambda: jnp.ones(5),
    "matrix": lambda: jnp.ones((I, H)),
    "one step": lambda: jnp.ones((B, I)),
    "sequence": lambda: jnp.ones((T, B, I)),
    "batch first": lambda: jnp.ones((B, T, I)),
    "targets": lambda: jnp.ones((T, B, H)),
    "five axes": lambda: jnp.ones((1, 2, 3, 4, 5)),
    "whole numbers": lambda: jnp.arange(T),
    "float32": lambda: jnp.ones((T, B, I), jnp.float32),
    "complex": lambda: jnp.ones((T, B, I), complex),
    "nan, fitting": lambda: jnp.full((T, B, I), jnp.nan),
    "key": lambda: jax.random.key(0),
    "keys": lambda: jax.random.split(jax.random.key(0), 3),
    "shape": lambda: jax.ShapeDtypeStruct((B, I), float),
    "learner": learner,
    "state": lambda: learner().init(),
    "deleted": lambda: deleted(),
}


def deleted():
    """A state that was given away."""
    state = learner().init()
    for leaf in jax.tree.leaves(state):
        leaf.delete()
    return state


@functools.cache
def file():
    path = f"{tempfile.mkdtemp()}/update.etrax"
    learner().export(path, sgd(), loss)
    return path


@functools.cache
def directory():
    path = tempfile.mkdtemp()
    etrax.save(path, params=PARAMS, learner=learner())
    return path


FILES = {
    "write_back": call(etrax.write_back, module=lambda: brainstate.nn.Linear(2, 2), params=None, state=None),
    "load": call(etrax.load, path=file),
    "artifact": call(
        lambda **o: etrax.load(file())(**o), params=lambda: PARAMS, opt_state=lambda: sgd().init(PARAMS),
        state=lambda: learner().init(), inputs=lambda: XS[0], targets=lambda: YS[0],
    ),
    "export": call(
        lambda **o: learner().export(**o), path="exported", optimizer=sgd, loss_fn=held(loss), window=1, target=None,
        platforms=None,
    ),
    "save": call(
        lambda **o: etrax.save(**o), directory=tempfile.mkdtemp, background=False, params=lambda: PARAMS,
        opt_state=lambda: sgd().init(PARAMS), state=lambda: learner().init(), learner=learner,
    ),
    "restore": call(
        lambda **o: etrax.restore(**o), directory=directory, like=lambda: {"params": PARAMS}, learner=learner
    ),
    "compare_rules": call(
        lambda **o: etrax.compare_rules(**o), model=learner, loss_fn=held(loss), params=lambda: PARAMS,
        hidden=lambda: HIDDEN, inputs=lambda: XS, targets=lambda: YS, rules=lambda: ["tbptt"], window=2,
        mask=None, reset=None, slow=False, memory=None, progress=False,
    ),
    "with_rule": call(lambda **o: learner().with_rule(**o), rule="tbptt"),
    "align_entries": call(
        lambda **o: etrax.align_entries(**o), rows=lambda: np.array([3, 0, 1, 0]), num_rows=4, parts=2
    ),
}  # fmt: skip

CALLS = LEARNER | GRAPH | RULES | TESTING | TRAIN | TASKS | VIZ | FILES
