"""Mistakes that people make, by name. `messages.txt` beside this file is what each of them is told: read it.

WRITE_MESSAGES=1 python -m pytest tests/bad_input/test_messages.py        # write messages.txt anew
"""

import contextlib
import re
import warnings
from pathlib import Path

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tests.bad_input.calls import HIDDEN, PARAMS, XS, YS, data, learner, loss, sgd, step, trainer

import etrax

FILE = Path(__file__).with_name("messages.txt")
SHAPES = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (PARAMS, HIDDEN))


def compiled(model=step, rule="d_rtrl", x=XS[0], **options):
    return etrax.compile(model, rule, x, **{"params": PARAMS, "hidden": HIDDEN, **options})


def gradient(
    params=PARAMS, state=None, inputs=XS, targets=YS, mask=None, loss_fn=loss, reset=None, initial=None, **options
):
    state, run = learner().init() if state is None else state, learner().value_and_grad(loss_fn, window=2, **options)
    return run(params, state, inputs, targets, mask, reset, initial=initial)


def reset_lanes(made, lanes, params=PARAMS, x=XS):
    run = made.value_and_grad(lambda o, t: (o**2).mean(), window=2)
    return run(params, made.init(), x, None, None, jnp.zeros((len(x), lanes), bool))


def mixing(w, h, x):
    h = jnp.tanh(h @ w + x)
    return h, h


def train(optimizer, opt_state):
    return learner().train(optimizer, loss, window=2)(PARAMS, opt_state, learner().init(), XS, YS)


class ShutDown(Exception):
    """What a queue of Python raises once it was shut down."""


def batch():
    """The first batch of the data set."""
    return tuple(np.asarray(a)[:, :2] for a in data()[:2])


def iter_then(error):
    yield batch()
    raise error


def stream():
    return learner().online(sgd(), lambda o, t: ((o - t) ** 2).mean(), window=2)


def after_failing(feed):
    """A stream that gives its state away, and what it says when an update fails, or after that."""
    made = compiled(check_finite=True)
    found = made.online(sgd(), lambda o, t: ((o - t) ** 2).mean(), window=1, donate=True)
    trace = jax.tree.map(lambda a: a * jnp.nan if jnp.issubdtype(a.dtype, jnp.inexact) else a, found.state.trace)
    found.state = found.state._replace(trace=trace)
    with contextlib.suppress(etrax.NonFiniteError):
        found.feed(XS[0], YS[0])
    return feed(found)


def module_as_params():
    cell = nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))
    made = etrax.compile(cell, "d_rtrl", jnp.ones(3), hidden=jnp.zeros(4))
    return made.step(cell, made.init(), jnp.ones(3))


def used_twice():
    run, state = learner().value_and_grad(loss, window=2, donate=True), learner().init()
    run(PARAMS, state, XS, YS)
    run(PARAMS, state, XS, YS)


def looping(p, h, x):
    w = jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, 0.5 * c[1]), (0, p["w"]))[1]
    return h + x @ w, h


def clock(p, h):
    h = 0.9 * h + p["w"].sum(0)
    return h, h


def clocked():
    return etrax.compile(clock, "d_rtrl", params=PARAMS, hidden=jnp.zeros(4))


def one_sample():
    return etrax.compile(step, "d_rtrl", XS[0, 0], params=PARAMS, hidden=HIDDEN[0])


def by_dictionary(p, s, x):
    return {"v": 0.9 * s["v"] + x @ p["w"]}, s["v"]


def stateful():
    return etrax.Stateful(brainstate.nn.ValinaRNNCell(3, 4), "d_rtrl", XS[0], batch_size=2)


class Leaky(brainstate.nn.Module):
    """A current in mA drives a potential in mV."""

    def __init__(self):
        super().__init__()
        self.w = brainstate.ParamState(jnp.ones((3, 4)) * u.mA)
        self.v = brainstate.HiddenState(jnp.zeros((2, 4)) * u.mV)

    def update(self, x):
        self.v.value = 0.9 * self.v.value + u.math.matmul(x, self.w.value) * u.ohm
        return self.v.value / u.mV


def of_module(inputs=XS, params=None):
    made = etrax.compile(Leaky(), "d_rtrl", XS[0])
    given = made.params if params is None else params
    return made.value_and_grad(lambda o, y: (o**2).mean(), window=2)(given, made.init(), inputs)


def module_changed():
    online = etrax.Stateful(model := Leaky(), "d_rtrl", XS[0])
    model.w = brainstate.ParamState(jnp.ones((3, 5)) * u.mA)
    return online(XS[0])


def haiku_module():
    return type("Linear", (), {"__module__": "haiku._src.basic", "__call__": lambda self, x: x})()


class Clocked(brainstate.nn.Module):
    """It reads the time of its environment."""

    def update(self, x):
        return x * brainstate.environ.get("t")


MISTAKES = {
    "`params=` forgotten": lambda: etrax.compile(step, "d_rtrl", XS[0], hidden=HIDDEN),
    "`hidden=` forgotten": lambda: etrax.compile(step, "d_rtrl", XS[0], params=PARAMS),
    "`hidden=` forgotten, a dictionary": lambda: etrax.compile(by_dictionary, "d_rtrl", XS[0], params=PARAMS),
    "`hidden=` forgotten, the step ignores it": lambda: etrax.compile(
        lambda p, h, x: (x @ p["w"], x), "d_rtrl", XS[0], params=PARAMS
    ),
    "a key that is not there": lambda: compiled(lambda p, h, x: (h, p["u"])),
    "an attribute that is not there": lambda: compiled(lambda p, h, x: (h, p.u)),
    "one argument too many": lambda: compiled(lambda p, h: (h, h)),
    "shapes that do not fit": lambda: compiled(x=jnp.ones((2, 7))),
    "a Python if on a value": lambda: compiled(lambda p, h, x: (h if h.sum() > 0 else -h, h)),
    "numpy in the step": lambda: compiled(lambda p, h, x: (h, np.sin(h))),
    "no pair returned": lambda: compiled(lambda p, h, x: h),
    "the output returned first": lambda: compiled(lambda p, h, x: (h.sum(), 0.9 * h + x @ p["w"])),
    "`params=` and `hidden=` swapped": lambda: compiled(params=HIDDEN, hidden=PARAMS),
    "a whole sequence as example input": lambda: compiled(x=XS),
    "a state that changes its type": lambda: compiled(lambda p, h, x: (h.astype(jnp.float32), h)),
    "a whole sequence of a batch as example input": lambda: compiled(x=jnp.swapaxes(jnp.ones((9, 2, 3)), 0, 1)),
    "an array of objects as example input": lambda: compiled(x=np.array([[0.0, 1.0], [2.0]], object)),
    "a while loop before the weight": lambda: compiled(looping),
    "text as parameters": lambda: compiled(params={"w": "ones"}),
    "no function": lambda: compiled(3),
    "a class": lambda: compiled(dict),
    "an unknown rule": lambda: compiled(rule="bptt"),
    "a rule misspelt": lambda: compiled(rule="rtlr"),
    "an option misspelt": lambda: etrax.compile(step, "d_rtrl", XS[0], params=PARAMS, hiden=HIDDEN),
    "a rule without its argument": lambda: compiled(rule="uoro"),
    "a rule that was not called": lambda: compiled(rule=etrax.d_rtrl),
    "no rule": lambda: compiled(rule=3),
    "the rule forgotten": lambda: etrax.compile(step, XS[0], params=PARAMS, hidden=HIDDEN),
    "an unknown option": lambda: compiled(windows=3),
    "a trace of whole numbers": lambda: compiled(trace_dtype=int),
    "a budget in words": lambda: compiled(memory_budget="plenty"),
    "a budget too small": lambda: compiled(memory_budget=10),
    "pairs in words": lambda: etrax.d_rtrl(fan_out="a lot"),
    "shapes only, then init": lambda: compiled(params=SHAPES[0], hidden=SHAPES[1]).init(),
    "shapes only, then a stream": lambda: compiled(params=SHAPES[0]).online(sgd(), loss),
    "no inputs and nothing that says how long": lambda: clocked().value_and_grad(loss, window=2)(
        PARAMS, clocked().init(), ()
    ),
    "params and state swapped": lambda: gradient(learner().init(), PARAMS),
    "params and hidden swapped": lambda: learner().init(HIDDEN, PARAMS),
    "opt_state and state swapped": lambda: learner().train(sgd(), loss, window=2)(
        PARAMS, learner().init(), sgd().init(PARAMS), XS, YS
    ),
    "hidden instead of a state": lambda: gradient(state=HIDDEN),
    "a state of another learner": lambda: gradient(state=compiled(rule="tbptt").init()),
    "a state given away": used_twice,
    "parameters of another model": lambda: gradient({"v": jnp.ones(3)}),
    "a module as parameters": module_as_params,
    "parameters of another shape": lambda: gradient({"w": jnp.ones((3, 5))}),
    "parameters of another type": lambda: gradient({"w": jnp.ones((3, 4), jnp.float32)}),
    "inputs with the batch first": lambda: gradient(inputs=jnp.swapaxes(XS, 0, 1)),
    "a batch for a model of one sample": lambda: one_sample().value_and_grad(loss, window=2)(
        PARAMS, one_sample().init(), XS, YS
    ),
    "inputs of one step": lambda: gradient(inputs=XS[0]),
    "inputs as a list": lambda: gradient(inputs=[1.0, 2.0]),
    "two inputs instead of one": lambda: gradient(inputs=(XS, XS)),
    "no steps": lambda: gradient(inputs=XS[:0]),
    "inputs of objects": lambda: gradient(inputs=np.full(XS.shape, None)),
    "inputs of text": lambda: gradient(inputs="spikes"),
    "targets with the batch first": lambda: gradient(targets=jnp.swapaxes(YS, 0, 1)),
    "targets that do not fit the loss": lambda: gradient(targets=jnp.ones((4, 2, 3))),
    "targets of samples instead of steps": lambda: gradient(targets=jnp.ones(2)),
    "targets forgotten": lambda: gradient(targets=None, loss_fn=lambda o, t: ((o - t) ** 2).mean()),
    "a loss per sample": lambda: gradient(loss_fn=lambda o, t: ((o - t) ** 2).mean(-1)),
    "a loss that is no function": lambda: gradient(loss_fn="mse"),
    "a mask of another length": lambda: gradient(mask=jnp.ones(3)),
    "a mask of another batch": lambda: gradient(mask=jnp.ones((4, 5))),
    "a mask as a list": lambda: gradient(mask=[1.0, 0.0, 1.0, 1.0]),
    "a reset of another length": lambda: gradient(reset=np.zeros(3, bool)),
    "a reset with an axis too many": lambda: gradient(reset=np.zeros((4, 2, 1), bool)),
    "a reset of more lanes": lambda: gradient(reset=np.zeros((4, 5), bool)),
    "a reset of numbers": lambda: gradient(reset=np.zeros(4)),
    "a reset as a list": lambda: gradient(reset=[False, True, False, False]),
    "a reset of all steps": lambda: gradient(reset=True),
    "a reset by lane, one sample": lambda: reset_lanes(
        etrax.compile(mixing, "d_rtrl", jnp.ones(4), params=jnp.eye(4), hidden=jnp.ones(4)),
        4,
        jnp.eye(4),
        jnp.ones((4, 4)),
    ),
    "a reset by lane, a state without lanes": lambda: reset_lanes(
        compiled(lambda p, h, x: ((h[0] + x @ p["w"], h[1] + 1), h[0]), hidden=(HIDDEN, jnp.zeros(()))), 2
    ),
    "a reset by lane, data that lanes share": lambda: reset_lanes(
        compiled(lambda p, h, x: (0.9 * h + (x.sum(0) @ p["w"])[None], h), "pp_prop"), 2
    ),
    "a reset, another initial state": lambda: gradient(reset=np.zeros(4, bool), initial=jnp.ones(3)),
    "an initial state without a reset": lambda: gradient(initial=HIDDEN),
    "a reset, shapes only": lambda: compiled(hidden=SHAPES[1]).value_and_grad(loss, window=2)(
        PARAMS, compiled().init(), XS, YS, None, np.zeros(4, bool)
    ),
    "an unknown reduction": lambda: gradient(reduction="max"),
    "a window of none": lambda: learner().value_and_grad(loss, window=0),
    "a depth of nothing": lambda: etrax.d_rtrl(depth=0),
    "a depth in words": lambda: etrax.d_rtrl(depth="deep"),
    "a depth on states": lambda: etrax.d_rtrl(depth="1 MB", credit="state"),
    "checkpoints after no steps": lambda: learner().value_and_grad(loss, window=8, remat=0),
    "checkpoints after half a step": lambda: learner().value_and_grad(loss, window=8, remat=0.5),
    "checkpoints as a flag": lambda: learner().memory(window=8, remat=True),
    "checkpoints under a signal": lambda: compiled(rule="three_factor").train(sgd(), loss, window=8, remat=2),
    "checkpoints under a random trace": lambda: compiled(rule=etrax.uoro(0)).value_and_grad(loss, window=8, remat=2),
    "a number as optimizer": lambda: train(0.1, None),
    "loss and optimizer swapped": lambda: learner().train(loss, sgd(), window=2),
    "no optimizer state": lambda: train(sgd(), None),
    "feed: a list": lambda: stream().feed([1.0, 2.0, 3.0], YS[0]),
    "feed: a sequence": lambda: stream().feed(XS, YS),
    "feed: a reset of a sequence": lambda: stream().feed(XS[0], YS[0], np.zeros((4, 2), bool)),
    "feed: a reset of text": lambda: stream().feed(XS[0], YS[0], "start"),
    "step: a reset of other lanes": lambda: learner().step(PARAMS, learner().init(), XS[0], reset=np.zeros(3, bool)),
    "feed: another shape": lambda: stream().feed(XS[0, 0], YS[0]),
    "feed: a sample that is not finite": lambda: (
        compiled(check_finite=True).online(sgd(), lambda o, t: ((o - t) ** 2).mean()).feed(XS[0] * jnp.nan, YS[0])
    ),
    "feed: a state that was used up": lambda: after_failing(lambda s: s.feed(XS[0], YS[0])),
    "a stream: another state": lambda: setattr(stream(), "state", HIDDEN),
    "a stream: another opt_state": lambda: setattr(stream(), "opt_state", ()),
    "a stream: the opt_state of another optimizer": lambda: learner().online(sgd(), loss, opt_state=(PARAMS, ())),
    "feed: resets of other lanes": lambda: stream().feed(XS[0], YS[0], np.zeros(3, bool)),
    "a module that reads the time": lambda: etrax.compile(Clocked(), "d_rtrl", jnp.ones(3)),
    "a module, an input with a unit": lambda: etrax.compile(Leaky(), "d_rtrl", XS[0] * u.mA),
    "a module, batch first": lambda: of_module(XS.swapaxes(0, 1)),
    "a module, one step": lambda: of_module(XS[0]),
    "a module, a list of steps": lambda: of_module(list(XS)),
    "a module, parameters with units": lambda: of_module(params={"w": jnp.ones((3, 4)) * u.mA}),
    "a module, parameters by paths": lambda: of_module(params={("w",): jnp.ones((3, 4)) * u.mA}),
    "a module that was changed": module_changed,
    "a rule in capitals": lambda: compiled(rule="D_RTRL"),
    "a sequence for a call of one step": lambda: stateful()(XS),
    "a module of a library without a front end": lambda: etrax.compile(haiku_module(), "d_rtrl", XS[0]),
    "e_prop, key": lambda: etrax.e_prop(feedback="random", key="seed"),
    "a decay above 1": lambda: etrax.pp_prop(1.5),
    "snap of zero": lambda: etrax.snap(0),
    "a partition with a rule misspelt": lambda: etrax.partition({"w": "rtl"}),
    "a partition with a path misspelt": lambda: compiled(rule=etrax.partition({"u": "rtrl"})),
    "a partition that applies to nothing": lambda: compiled(
        rule=etrax.partition({"u": etrax.rtrl()}, default=etrax.d_rtrl())
    ),
    "no parameters": lambda: gradient(params=None),
    "a verdict of a parameter that is not there": lambda: learner().report.verdicts["v"],
    "compare: a stateful learner": lambda: etrax.testing.compare(stateful(), loss, PARAMS, HIDDEN, XS, YS),
    "compare: no learner": lambda: etrax.testing.compare(step, loss, PARAMS, HIDDEN, XS, YS),
    "fit: an iterable that raises": lambda: trainer().fit(iter_then(OSError("no such file")), 1, progress=False),
    "fit: an iterable that ends early": lambda: trainer().fit([batch()], 1, batches=3, progress=False),
    "fit: an iterator for two epochs": lambda: trainer().fit(iter([batch()]), 2, progress=False),
    "fit: an iterable that changes its shapes": lambda: trainer().fit(
        [batch(), (batch()[0][..., :2], batch()[1])], 1, progress=False
    ),
    "fit: a queue that is closed": lambda: trainer().fit(iter_then(ShutDown()), 1, progress=False),
    "fit: a batch with a reset of another shape": lambda: trainer().fit(
        [(*batch(), None, np.zeros(7, bool))], 1, progress=False
    ),
    "fit: a projection that drops parameters": lambda: trainer().fit(data(), 1, project=lambda p: {}, progress=False),
    "fit: arrays instead of a data set": lambda: trainer().fit((XS, YS), 1, progress=False),
    "fit: resets of another shape": lambda: trainer().evaluate(
        PARAMS, etrax.train.Dataset(np.asarray(XS), np.asarray(YS), reset=np.zeros(4, bool))
    ),
    "packed: no list": lambda: etrax.train.packed(np.ones((3, 2)), lanes=1),
    "packed: episodes that differ": lambda: etrax.train.packed([(np.ones((3, 2)),), (np.ones((3, 1)),)], lanes=1),
    "packed: one episode in two lanes": lambda: etrax.train.packed([(np.ones((3, 2)),)], lanes=2),
    "packed: an episode that is too long": lambda: etrax.train.packed([(np.ones((3, 2)),)], length=2),
    "packed: how is not said": lambda: etrax.train.packed([(np.ones((3, 2)),)]),
    "packed: inputs longer than targets": lambda: etrax.train.packed([(np.ones((3, 2)), np.ones(2))], lanes=1),
    "a metric of two arguments": lambda: etrax.Trainer(
        learner(), sgd(), loss, window=2, metrics={"error": lambda outputs, targets: outputs - targets}
    ),
    "fit: an optimizer state of another kind": lambda: trainer().fit(data(), 1, opt_state=3, progress=False),
    "compare: resets of another shape": lambda: etrax.testing.compare(
        learner(), loss, PARAMS, HIDDEN, XS, YS, reset=np.zeros(3, bool)
    ),
    "no module": lambda: etrax.compile_etrace_graph(step, XS[0]),
    "an op rule that is none": lambda: etrax.register_weight_op("dot_general", 3),
}


def told(mistake):
    """The type of the error and its text, without what differs between machines and versions of JAX."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            mistake()
        except etrax.EtraxError as error:
            text = str(error)
        else:
            raise AssertionError("this mistake was answered")
    text = re.sub(r"(\w+\.py):\d+", r"\1:…", text)  # line numbers
    text = re.sub(r"(raised \w+).*?( at \w+\.py:….*)?$", r"\1: …\2", text, flags=re.M)  # words of Python and JAX
    text = re.sub(r"JAX says: .*", "JAX says: …", text, flags=re.S)
    return text


def written():
    return "".join(f"## {name}\n\n{told(mistake)}\n\n" for name, mistake in MISTAKES.items())
