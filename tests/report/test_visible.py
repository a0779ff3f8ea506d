"""Names from a model or a file are shown, not obeyed: no control character and no turn of direction leaves Etrax."""

import re

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import etrax
from etrax._errors import visible

EVIL = "\x1b[2J\u202e\x07\u2066\x9b"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
W, R, U, V, O = (f"{name}{EVIL}" for name in "wruvo")


def step(p, h, x):
    v = 0.9 * h[V] + x @ p[W] + jnp.tanh(h[V]) @ p[R]
    return {V: v}, {O: v @ p["out"]}


def loss(output, target):
    return (output[O] ** 2).mean()


PARAMS = {W: jnp.ones((3, 4)), R: jnp.ones((4, 4)), "out": jnp.ones((4, 2)), U: jnp.ones(2)}
XS = jnp.ones((5, 2, 3))


@pytest.fixture(scope="module")
def learner():
    return etrax.compile(step, "d_rtrl", XS[0], params=PARAMS, hidden={V: jnp.zeros((2, 4))})


def message(act):
    try:
        act()
    except Exception as error:
        assert isinstance(error, etrax.EtraxError)
        return str(error)
    raise AssertionError("nothing was raised")


def refused(p, h, x):
    raise KeyError(EVIL)


def exported(learner, place):
    learner.export(place / "file", optax.sgd(0.1), loss)
    return repr(etrax.load(place / "file"))


def trained(learner, place, capsys):
    metrics = {f"m{EVIL}": lambda o, t, m: jnp.zeros(2)}
    trainer = etrax.Trainer(learner, optax.sgd(1e-9), loss, metrics=metrics)
    trainer.fit(etrax.train.Dataset(np.ones((4, 2, 3))), 1)
    return capsys.readouterr().out


TEXTS = {
    "report": lambda learner, *_: str(learner.report),
    "whole report": lambda learner, *_: learner.report.full(),
    "page": lambda learner, *_: learner.report.to_html(),
    "notebook": lambda learner, *_: learner.report._repr_html_(),
    "learner": lambda learner, *_: repr(learner),
    "graph": lambda learner, *_: repr(learner.graph),
    "diagnostics": lambda learner, *_: str(learner.graph.explain()),
    "comparison": lambda learner, *_: str(etrax.testing.compare(learner, loss, None, None, XS, window=2)),
    "rules": lambda learner, *_: str(etrax.compare_rules(learner, loss, None, None, XS, rules=["tbptt"], window=2)),
    "partition": lambda learner, *_: str(learner.with_rule(etrax.partition({W: "tbptt"}, default="d_rtrl")).report),
    "data": lambda *_: repr(etrax.train.Dataset({W: np.ones((3, 4, 1))})),
    "artifact": lambda learner, place, _: exported(learner, place),
    "progress": trained,
    "missing": lambda learner, *_: message(lambda: learner.init({W: 1.0})),
    "not there": lambda learner, *_: message(lambda: learner.report.verdicts[EVIL]),
    "a step that raises": lambda *_: message(
        lambda: etrax.compile(refused, "d_rtrl", XS[0], params=PARAMS, hidden=jnp.zeros(2))
    ),
    "a file": lambda learner, place, _: message(lambda: etrax.load(place / EVIL)),
    "an option": lambda *_: message(lambda: etrax.compile(step, EVIL, XS[0], params=PARAMS, hidden={V: XS[0]})),
}


@pytest.mark.parametrize("what", TEXTS)
def test_text(learner, tmp_path, capsys, what):
    text = TEXTS[what](learner, tmp_path, capsys)
    assert not OBEYED.search(text.replace("\n", "")), repr(OBEYED.search(text))


def test_names_stay_what_they_are(learner):
    """In data, as given; in words, told apart and found again by how they are written."""
    assert learner.report.to_dict()["parameters"][0]["path"] in [[name] for name in PARAMS]
    assert learner.report.verdicts[(W,)] == learner.report.verdicts[visible(W)]
    assert "\\x1b[2J\\u202e" in str(learner.report)


def test_what_is_written_out():
    assert (
        visible("plain, ä, 漢字, \U0001f600 and\ttabs\nand lines") == "plain, ä, 漢字, \U0001f600 and\ttabs\nand lines"
    )
    marks = (0x61C, 0x200B, 0x200E, 0x2028, 0x202E, 0x2066, 0xFEFF, 0xD800, 0xE0041)
    for code in (0, 7, 8, 11, 13, 27, 127, 0x85, 0x9B, 0xAD, *marks):
        assert visible(f"a{chr(code)}b").isascii() and visible(f"a{chr(code)}b").startswith("a\\")
