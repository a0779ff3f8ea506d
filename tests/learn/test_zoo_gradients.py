"""Every row of the zoo: gradients against BPTT with windows of 1, 3 and 7 steps out of 7, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzz.evaluate import Evaluator
from tests.learn.oracle import bptt, relative_error
from tests.machines import write_out_everything
from tests.zoo import EXACT, REPORTED, UNUSED, ZOO

import etrax
from etrax.compiler.ir import leaves_with_paths

T = 7


def with_xla(function, *args):
    return function(*args)


def gradients(model, rule, windows, inputs, targets, run=with_xla):
    first = jax.tree.map(lambda a: a[0], inputs)
    learner = etrax.compile(model.step, rule, *first, params=model.params, hidden=model.hidden)
    found = {}
    for window in windows:
        gradient = learner.value_and_grad(model.loss, window=window)
        (_, grads), _ = run(gradient, model.params, learner.init(), inputs, targets)
        found[window] = dict(leaves_with_paths(grads))
    return learner.report.verdicts, found


def kind_of(verdict):
    return {"exact": EXACT, "unused": UNUSED}.get(verdict.kind, REPORTED)


# Windows of 3 out of 7 steps are 3, 3 and 1: the fast suite runs these in numpy, the slow one every length by XLA.
WINDOWS = [pytest.param((3,), id="3"), pytest.param((1, 3, 7), id="1,3,7", marks=pytest.mark.slow)]


def runner(windows):
    """Compiling takes ten times as long as the rest, and is not under test here."""
    return Evaluator() if windows == (3,) else with_xla


# Two hundred parameters take a minute and a half to compile.
MANY = [pytest.param(n, marks=pytest.mark.slow if n == "size/two_hundred" else ()) for n in ZOO]


@pytest.mark.fast_seconds(6)
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", MANY)
def test_d_rtrl(name, windows):
    entry = ZOO[name]
    for module in entry.needs:
        pytest.importorskip(module)
    model = entry()
    inputs, targets = model.make_inputs(T, 0), model.make_target(T, 0)
    run = runner(windows)
    want = dict(leaves_with_paths(bptt(model, inputs, targets, run)))
    verdicts, found = gradients(model, "d_rtrl", windows, inputs, targets, run)
    for path, expected in model.expect.items():
        verdict = verdicts[path]
        assert kind_of(verdict) == expected or path in model.either, (path, verdict)
        for window, grads in found.items():
            error = relative_error(grads[path], want[path])
            assert np.isfinite(error), (path, window)
            if verdict.kind in ("exact", "unused") or window == T:
                assert error <= model.tol, (path, window, error, verdict)
            elif verdict.least_window is not None and window >= verdict.least_window:
                assert np.any(grads[path]), f"{path} is silently zero with windows of {window}"
            else:
                assert verdict.kind == "truncated"
                assert not np.any(grads[path]), f"{path} gets credit with windows of {window}: {verdict}"


# Whole influence matrices of these are large: one convolution stands for the others in the fast suite.
LARGE = {n for n in ZOO if n.startswith("ops/conv") and n != "ops/conv1d_stride"} | {"size/two_hundred"}


@pytest.mark.fast_seconds(4)
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize(  # every second model in the fast suite: `rtrl` does not depend on what the analysis proves
    "name", [pytest.param(n, marks=pytest.mark.slow if n in LARGE or k % 2 else ()) for k, n in enumerate(ZOO)]
)
def test_rtrl_is_exact(name, windows):
    whole_influence_is_exact(name, windows, "rtrl")


@pytest.mark.fast_seconds(6)
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in LARGE else ()) for n in ZOO])
def test_depth_without_bound_is_exact(name, windows):
    """What a parameter reaches is proved by the analysis, and no row of its influence is missing."""
    whole_influence_is_exact(name, windows, etrax.d_rtrl(depth=1e12))


def whole_influence_is_exact(name, windows, rule):
    entry = ZOO[name]
    for module in entry.needs:
        pytest.importorskip(module)
    model = entry()
    inputs, targets = model.make_inputs(T, 1), model.make_target(T, 1)
    run = runner(windows)
    want = dict(leaves_with_paths(bptt(model, inputs, targets, run)))
    verdicts, found = gradients(model, rule, windows, inputs, targets, run)
    for path in model.expect:
        assert (verdicts[path].kind in ("exact", "unused")) == model.linear, (path, verdicts[path])
        for window, grads in found.items():
            error = relative_error(grads[path], want[path])
            assert error <= model.tol or not (model.linear or window == T), (path, window, error)


@pytest.mark.parametrize(
    "name", ["cells/gru", "cells/lstm", "cells/lru", "ops/einsum_heads", "plain/leak", "cells/quasi_lstm"]
)
@pytest.mark.fast_seconds(3)
def test_as_large_models_are_computed(monkeypatch, name):
    """Sums that are written out, and traces that are moved after their credit, in models too small for it."""
    write_out_everything(monkeypatch)
    model = ZOO[name]()
    inputs, targets = model.make_inputs(T, 0), model.make_target(T, 0)
    want = dict(leaves_with_paths(bptt(model, inputs, targets, Evaluator())))
    verdicts, found = gradients(model, "d_rtrl", (3,), inputs, targets, Evaluator())
    exact = [path for path, verdict in verdicts.items() if verdict.kind == "exact"]
    assert exact
    for path in exact:
        assert relative_error(found[3][path], want[path]) < model.tol, path


@pytest.mark.parametrize("numba", [False, True])
@pytest.mark.parametrize("name", [n for n in ZOO if n.startswith("ops/csr")])
def test_sparse_products_with_and_without_numba(monkeypatch, name, numba):
    """Where brainevent has no compiled kernels the products are our own; neither may depend on what is installed."""
    pytest.importorskip("brainevent")
    monkeypatch.setattr("etrax.compiler.ops._sparse.find_spec", lambda _: object() if numba else None)
    model = ZOO[name]()
    inputs, targets = model.make_inputs(T, 0), model.make_target(T, 0)
    want = dict(leaves_with_paths(bptt(model, inputs, targets, Evaluator())))
    _, found = gradients(model, "d_rtrl", (3,), inputs, targets, Evaluator())
    for path, g in found[3].items():
        assert relative_error(g, want[path]) < model.tol, path


def test_the_oracle_can_fail():
    """A rule that carries no trace is caught by the very checks above."""
    model = ZOO["weights/plain"]() if "weights/plain" in ZOO else next(iter(ZOO.values()))()
    inputs, targets = model.make_inputs(T, 0), model.make_target(T, 0)
    want = dict(leaves_with_paths(bptt(model, inputs, targets)))
    _, found = gradients(model, "tbptt", (1,), inputs, targets)
    path = next(iter(model.expect))
    assert relative_error(found[1][path], want[path]) > 1e-3
    assert jnp.any(found[1][path])
