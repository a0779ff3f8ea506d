"""Every wrong argument raises before anything runs, and names what is wrong and where."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.train.common import B, H, I, N, T, data, learner, loss, params

import etrax
from etrax.train import Dataset, Trainer, accuracy, pad


def refused(message, call, *args, **options):
    with pytest.raises(ValueError, match=message) as caught:
        call(*args, **options)
    assert isinstance(caught.value, etrax.EtraxError)


def never(output, target):
    raise AssertionError("the loss must not be reached")


D = data()
DATA = {
    "no dataset": (
        (D.inputs, D.targets),
        r"`data` is a tuple; pass a task of `etrax.tasks`, `etrax.train.Dataset\(inputs, targets",
    ),
    "too few axes": (Dataset(D.inputs[0, 0]), r"`data.inputs` at 'inputs\[0\]' has shape \[3\].*expected \(T, N, …\)"),
    "too many axes": (Dataset(D.inputs[None, None]), r"has shape \[1, 1, 6, 7, 3\].*takes \[3, 3\]"),
    "other features": (Dataset(D.inputs[..., :2]), r"'inputs\[0\]' has shape \[6, 7, 2\]; expected \(6, 7, 3\)"),
    "no samples": (Dataset(D.inputs[:, :0]), r"is empty: its shape \(T, N, …\) is \[6, 0, 3\]"),
    "no steps": (Dataset(D.inputs[:0]), r"is empty: its shape \(T, N, …\) is \[0, 7, 3\]"),
    "dtype": (Dataset(D.inputs.astype(np.float32)), "is float32, but the model was compiled with float64"),
    "count": (Dataset((D.inputs, D.inputs)), r"holds 2 array\(s\), but the step takes 1"),
    "targets N": (
        Dataset(D.inputs, D.targets[:, :5]),
        r"`data.targets` at 'targets' has shape \[6, 5, 2\]; .*\(6, 7",
    ),
    "targets T": (Dataset(D.inputs, {"y": D.targets[1:]}), r"`data.targets` at 'y' has shape \[5, 7, 2\]"),
    "one per sample": (Dataset(D.inputs, np.zeros(N)), r"For one target per sample use `Dataset.labelled`"),
    "mask shape": (Dataset(D.inputs, D.targets, D.mask[:, 0]), r"`data.mask` has shape \[6\]; expected \(6, 7\)"),
    "mask kind": (Dataset(D.inputs, D.targets, D.mask * 1j), "`data.mask` is complex128; expected numbers or booleans"),
    "mask tree": (Dataset(D.inputs, D.targets, {"m": D.mask}), r"`data.mask` has shape \[\]; expected \(6, 7\)"),
    "mask negative": (Dataset(D.inputs, D.targets, -1.0 * D.mask), "negative or not finite"),
    "mask zero": (Dataset(D.inputs, D.targets, 0 * D.mask), "is zero everywhere: no step counts"),
}


@pytest.fixture(scope="module")
def made():
    return Trainer(learner(), optax.sgd(0.1), never, metrics={"accuracy": accuracy})


@pytest.mark.parametrize("what", DATA)
def test_data(made, what):
    wrong, message = DATA[what]
    refused(message, made.fit, wrong, 1, progress=False)
    refused(message, made.evaluate, params(), wrong)
    refused(message.replace("`data", "`validation"), made.fit, D, 1, validation=wrong, progress=False)


FIT = {
    "epochs 0": ({"epochs": 0}, "`epochs` is 0; expected a whole number of epochs, at least 1"),
    "epochs 2.5": ({"epochs": 2.5}, "`epochs` is 2.5"),
    "patience 0": ({"patience": 0, "validation": D}, "`patience` is 0"),
    "nothing to watch": ({"patience": 2}, "`patience` needs something to watch: pass `validation=`"),
    "monitor": ({"monitor": "val_acc", "validation": D}, "'val_acc'; this run measures loss, val_loss, val_accuracy"),
    "mode": ({"mode": "up", "validation": D}, "`mode` is 'up'; expected 'min' or 'max'"),
    "callback": ({"callback": 3}, "`callback` is an int; expected a function of one record"),
    "key": ({"key": "a"}, "`fit` needs `key=`"),
    "params": ({"params": {"w": jnp.ones(3)}}, "`params` does not have the structure"),
}


@pytest.mark.parametrize("what", FIT)
def test_fit(made, what):
    options, message = FIT[what]
    refused(message, made.fit, D, **{"epochs": 1, "progress": False, **options})


def test_trainer():
    one, sgd = learner(), optax.sgd(0.1)
    refused("`learner` is a function; pass what `etrax.compile` returns", Trainer, never, sgd, loss)
    refused("`optimizer` is a float; pass an optax optimizer", Trainer, one, 0.1, loss)
    refused("`loss_fn` is a str", Trainer, one, sgd, "mse")
    refused("`update` is 'step'; expected 'window' or 'sequence'", Trainer, one, sgd, loss, update="step")
    refused("`window` is 0", Trainer, one, sgd, loss, window=0)
    refused("it needs `update='sequence'`", Trainer, one, sgd, loss, gradient=etrax.testing.bptt)
    refused(r"`metrics\['a'\]` is an int", Trainer, one, sgd, loss, metrics={"a": 1})
    refused("under a name other than 'loss'", Trainer, one, sgd, loss, metrics={"loss": accuracy})
    made = Trainer(one, sgd, loss, metrics={"a": lambda o, t, m: o})
    refused(r"metric 'a' returned shape \[6, 3, 2\]; expected \[6, 3\].*or \[3\]", made.evaluate, params(), D)


def test_batch_sizes_that_differ():
    step = lambda p, h, x, y: (h + x @ p["w"] + y[:1] @ p["w"], h)
    example = jnp.zeros((B, I)), jnp.zeros((2, I))
    made = etrax.compile(step, "d_rtrl", *example, params={"w": params()["w"]}, hidden=jnp.zeros((B, H)))
    wrong = Dataset((D.inputs, D.inputs))
    refused("with 2 along its first axis and with 3", Trainer(made, optax.sgd(0.1), never).fit, wrong, 1)


def test_model_compiled_from_shapes():
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (params(), jnp.zeros((B, H))))
    from tests.train.common import step

    made = etrax.compile(step, "d_rtrl", jnp.zeros((B, I)), params=shapes[0], hidden=jnp.zeros((B, H)))
    fit = Trainer(made, optax.sgd(0.1), loss).fit
    refused("without values for `params`: pass `params=` to `fit`", fit, D, 1, progress=False)
    assert len(fit(D, 1, params=params(), progress=False).history) == 1
    made = etrax.compile(step, "d_rtrl", jnp.zeros((B, I)), params=params(), hidden=shapes[1])
    refused("without values for `hidden`", Trainer(made, optax.sgd(0.1), never).fit, D, 1, progress=False)


def test_labels_and_sequences():
    refused(r"`labels` has shape \[6\], but `inputs` holds 7 samples", Dataset.labelled, D.inputs, np.zeros(T))
    refused(r"found no input of shape \(T, N, …\)", Dataset.labelled, np.zeros(T), np.zeros(T))
    refused("got no sequences", pad, [])
    refused(r"`sequences\[1\]` has no steps", pad, [np.ones((2, 3)), np.ones((0, 3))])
    refused(r"`sequences\[1\]` is float64\[2, 4\] and `sequences\[0\]`", pad, [np.ones((2, 3)), np.ones((2, 4))])
    refused("`count` is 'first'", pad, [np.ones(2)], "first")


def test_wrong_loss_is_named():
    made = Trainer(learner(), optax.sgd(0.1), lambda o, t: o - t)
    refused("`loss_fn` must return one real number per step", made.fit, D, 1, progress=False)
