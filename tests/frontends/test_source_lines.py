"""A reason names the innermost line of the user's own code, and the parameter's path, in every kind of module."""

import inspect
import sys
import types

import jax
import jax.numpy as jnp
import pytest

import etrax

X = jnp.ones(3)


def in_order(h, w):
    """A way that no trace is carried on: through a sort."""
    return jnp.sort(h @ w)


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return f"{__file__.rpartition('/')[2]}:{first + next(i for i, s in enumerate(lines) if text in s)}"


def brainstate_module():
    brainstate = pytest.importorskip("brainstate")

    class Layer(brainstate.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = brainstate.ParamState(jnp.ones((3, 3)))
            self.h = brainstate.HiddenState(jnp.zeros(3))

        def update(self, x):
            self.h.value = jnp.tanh(x + in_order(self.h.value, self.w.value))
            return self.h.value

    return brainstate.nn.Sequential(Layer()), {}, ("layers", 0, "w")


def nnx_module():
    nnx = pytest.importorskip("flax.nnx")

    class Layer(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones((3, 3)))

        def __call__(self, h, x):
            h = jnp.tanh(x + in_order(h, self.w[...]))
            return h, h

    class Net(nnx.Module):
        def __init__(self):
            self.layer = Layer()

        def __call__(self, h, x):
            return self.layer(h, x)

    return Net(), {"hidden": jnp.zeros(3)}, ("layer", "w")


def equinox_module():
    eqx = pytest.importorskip("equinox")

    class Layer(eqx.Module):
        w: jax.Array

        def __call__(self, x, h):
            return jnp.tanh(x + in_order(h, self.w))

    return Layer(jnp.ones((3, 3))), {"hidden": jnp.zeros(3)}, ("w",)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [brainstate_module, nnx_module, equinox_module])
def test_innermost_line_and_path(make):
    model, options, path = make()
    learner = etrax.compile(model, "d_rtrl", X, **options)
    assert line_of(in_order, "jnp.sort") in learner.report.verdicts[path].reason
    assert "'" + ".".join(map(str, path)).replace(".0", "[0]") + "'" in str(learner.report)


def brainstate_layers():
    brainstate = pytest.importorskip("brainstate")

    class Order(brainstate.nn.Module):
        def update(self, x):
            return jnp.sort(x)

    class Net(brainstate.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = brainstate.ParamState(jnp.ones((3, 3)))
            self.h = brainstate.HiddenState(jnp.zeros(3))
            self.inner = brainstate.nn.Sequential(Order())

        def update(self, x):
            self.h.value = jnp.tanh(x @ self.w.value + self.inner(self.h.value))
            return self.h.value

    return Net(), {}, "'inner.layers[0]'"


def nnx_layers():
    nnx = pytest.importorskip("flax.nnx")

    class Order(nnx.Module):
        def __call__(self, x):
            return jnp.sort(x)

    class Net(nnx.Module):
        def __init__(self):
            self.w, self.first, self.last = nnx.Param(jnp.ones((3, 3))), Order(), Order()

        def __call__(self, h, x):
            h = jnp.tanh(x @ self.w[...] + self.last(h))
            return h, h

    return Net(), {"hidden": jnp.zeros(3)}, "'first' or 'last'"  # they run the same line


def equinox_layers():
    eqx = pytest.importorskip("equinox")

    class Order(eqx.Module):
        def __call__(self, x):
            return jnp.sort(x)

    class Inner(eqx.Module):
        order: Order

    class Net(eqx.Module):
        w: jax.Array
        inner: list

        def __call__(self, x, h):
            return jnp.tanh(x @ self.w + self.inner[0].order(h))

    return Net(jnp.ones((3, 3)), [Inner(Order())]), {"hidden": jnp.zeros(3)}, "'inner[0].order'"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [brainstate_layers, nnx_layers, equinox_layers])
def test_a_layer_without_parameters_is_named(make):
    model, options, name = make()
    learner = etrax.compile(model, "d_rtrl", X, **options)
    (verdict,) = learner.report.verdicts.values()
    method = "update" if make is brainstate_layers else "__call__"
    assert f"{line_of(make, 'jnp.sort')} ({method}) in layer {name}" in verdict.reason


def stored_in(folder, tmp_path, name):
    """A module with a function, in a file below a folder, as if it had been imported from there."""
    file = tmp_path / folder / f"{name}.py"
    file.parent.mkdir(parents=True)
    file.write_text("import jax.numpy as jnp\n\n\ndef mixed(h, w):\n    return jnp.sort(h @ w)\n")
    module = types.ModuleType(name)
    exec(compile(file.read_text(), str(file), "exec"), module.__dict__)
    return module


def caller(module):
    def step(w, h, x):
        h = jnp.tanh(x + module.mixed(h, w))  # the caller
        return h, h

    learner = etrax.compile(step, "d_rtrl", X, params=jnp.ones((3, 3)), hidden=jnp.zeros(3))
    return learner.report.verdicts[()].reason


def test_a_library_is_known_by_its_place_and_not_by_a_folders_name(tmp_path, monkeypatch):
    here = line_of(caller, "# the caller")
    assert here in caller(stored_in("lib/site-packages/cells", tmp_path, "gru"))
    assert "mine.py:5" in caller(stored_in("projects/flax/models", tmp_path, "mine"))
    checked_out = stored_in("src/optax", tmp_path, "cells")
    monkeypatch.setitem(sys.modules, "optax", types.SimpleNamespace(__file__=str(tmp_path / "src/optax/__init__.py")))
    assert here in caller(checked_out)


def test_lines_of_a_notebook_are_told_by_their_cell(monkeypatch):
    """Jupyter compiles a cell as a file of its own, and its shell knows which cell that is."""
    shell = types.SimpleNamespace(compile=types.SimpleNamespace(_filename_map={"/tmp/ipykernel_7/123.py": 4}))
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    source = etrax.compiler.ir.Source
    assert str(source("/tmp/ipykernel_7/123.py", 9, "step")) == "In[4]:9 (step)"
    assert str(source("/home/me/model.py", 9, "step")) == "model.py:9 (step)"
