"""Runs each case of the command line, `model,cut,rule,options…`, on eight devices and on one, and prints JSON.

With `PROCESS=address,number` it is one of two processes, which have four of the devices each.
"""

import functools
import json
import os
import re
import sys

DEVICES, PROCESS = 8, os.environ.get("PROCESS")
if __name__ == "__main__":
    count = "--xla_force_host_platform_device_count="
    given = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(count)]
    os.environ["XLA_FLAGS"] = " ".join([*given, f"{count}{DEVICES // 2 if PROCESS else DEVICES}"])

import jax  # noqa: E402
import numpy as np  # noqa: E402

jax.config.update("jax_enable_x64", True)
if __name__ == "__main__" and PROCESS:
    jax.distributed.initialize(PROCESS.split(",")[0], 2, int(PROCESS.split(",")[1]), heartbeat_timeout_seconds=600)

import optax  # noqa: E402
from jax.experimental.multihost_utils import process_allgather  # noqa: E402

import etrax  # noqa: E402

sys.path.insert(0, os.path.dirname(__file__))
from models import MODELS, B, H, I, O  # noqa: E402

# No other axis is as long as a window, nor a product of others: arrays that travel are told apart by their shapes.
T, WINDOW = 10, 5
RULES = {
    "tbptt": etrax.tbptt(), "d_rtrl": etrax.d_rtrl(), "pp_prop": etrax.pp_prop(), "e_prop": etrax.e_prop(kappa=0.5),
    "random": etrax.e_prop(feedback="random", key=jax.random.key(0)),
    "ottt": etrax.ottt(0.9), "rflo": etrax.rflo(0.9), "three_factor": etrax.three_factor(),
    "modulated": etrax.three_factor(lambda output, target: ((output - target) ** 2).mean(-1)), "rtrl": etrax.rtrl(),
    "snap": etrax.snap(2), "uoro": etrax.uoro(0), "kf_rtrl": etrax.kf_rtrl(0), "synthetic": etrax.synthetic(),
}  # fmt: skip
MESHES = {"batch": ((8,), ("data",)), "neuron": ((8,), ("neuron",)), "batch+neuron": ((2, 4), ("data", "neuron"))}
COLLECTIVES = r"= (.*?) (all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)(?:-start)?\("


def loss(output, target):
    return ((output - target) ** 2).mean()


def results(learner, params, xs, ys, masked):
    """Gradients, states and traces after a sequence in two pieces, and what training on it gives; and the program."""
    mask = np.asarray(np.random.default_rng(2).random(xs.shape[:2]) > 0.3, xs.dtype) if masked else None
    gradient = jax.jit(learner.value_and_grad(loss, window=WINDOW))
    gradient = gradient.lower(params, learner.init(), xs, ys, mask).compile()
    _, state = gradient(params, learner.init(), xs, ys, mask)
    (value, gradients), state = gradient(params, state, xs, ys, mask)
    optimizer = optax.chain(optax.clip_by_global_norm(0.01), optax.adam(0.1) if xs.dtype == float else optax.sgd(0.1))
    trained = learner.train(optimizer, loss, window=WINDOW)(params, optimizer.init(params), state, xs, ys, mask)
    found = {"loss": value, "gradients": gradients, "states": state.hidden, "traces": state.trace, "trained": trained}
    return found, gradient.as_text()


def difference(many, one):
    """The largest, in units of the largest number of its array or of 1."""
    pairs = [
        (np.asarray(p, float), np.asarray(q, float)) for p, q in zip(*map(jax.tree.leaves, (many, one)), strict=True)
    ]
    assert jax.tree.structure(many) == jax.tree.structure(one)
    assert all(p.shape == q.shape for p, q in pairs)
    return max(
        (float((np.abs(p - q) / max(1.0, np.abs(q).max(initial=0))).max(initial=0)) for p, q in pairs), default=0
    )


def whole(tree):
    """Arrays of all processes, as numpy's."""
    return jax.tree.map(lambda a: process_allgather(a, tiled=True) if PROCESS else np.asarray(a), tree)


def said(text):
    """What devices say to each other in a compiled program, each with the arrays that it gives: [kind, array, …]."""
    return [[kind, *re.findall(r"\w+\[[\d,]*\]", shapes)] for shapes, kind in re.findall(COLLECTIVES, text)]


def data(options):
    rng = np.random.default_rng(3)
    steps = T + ("ragged" in options)
    return np.abs(rng.standard_normal((steps, B, I))), rng.standard_normal((steps, B, O))


@functools.cache
def on_one_device(model, rule, options):
    step, params, hidden = MODELS[model]()
    xs, ys = data(options)
    if "float32" in options:
        params, hidden, xs, ys = jax.tree.map(lambda a: a.astype(np.float32), (params, hidden, xs, ys))
    learner = etrax.compile(step, RULES[rule], xs[0], params=params, hidden=hidden)
    return (step, params, hidden, xs, ys), results(learner, params, xs, ys, "masked" in options)[0]


def check(model, word, rule, options):
    (step, params, hidden, xs, ys), one = on_one_device(model, rule, options)
    shape, names = MESHES[word]
    learner = etrax.compile(
        step, RULES[rule], xs[0], params=params, hidden=hidden, mesh=jax.make_mesh(shape, names), shard=word
    )
    many, text = results(learner, jax.device_put(params, learner.shardings.params), xs, ys, "masked" in options)
    many = whole(many)
    leaves = jax.tree.leaves(learner.init().trace)
    return {
        "difference": {name: difference(many[name], one[name]) for name in one},
        "said": said(text),
        "trace_shapes": [a.addressable_shards[0].data.shape for a in leaves] + [a.shape for a in leaves],
        "weight_shapes": [
            shape
            for a, s in zip(*map(jax.tree.leaves, (params, learner.shardings.params)), strict=True)
            for shape in (a.shape, s.shard_shape(a.shape))
            if a.ndim > 1 and shape != a.shape
        ],
        # Of arrays with an axis of neurons: what a trace keeps of inputs alone has no axis that neurons are cut along.
        "pieces": [a.addressable_shards[0].data.size / a.size for a in leaves if max(a.shape, default=0) >= H],
        "params": {k: list(map(str, s.spec)) for k, s in learner.shardings.params.items()},
    }


if __name__ == "__main__":
    for case in sys.argv[1:]:
        model, word, rule, *options = case.split(",")
        try:
            found = check(model, word, rule, tuple(options))
        except Exception as error:
            if os.environ.get("RAISE"):
                raise
            found = {"error": f"{type(error).__name__}: {error}"[-2000:]}
        print(json.dumps({"case": case, **found}), flush=True)
