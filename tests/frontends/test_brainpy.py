"""Networks of brainpy.state with connections of one weight: excitation and inhibition, recurrent and from outside."""

import copy
import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax

brainstate = pytest.importorskip("brainstate")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    bps = pytest.importorskip("brainpy.state")
    u = pytest.importorskip("brainunit")

pytestmark = pytest.mark.filterwarnings("ignore")
EXC, INH, T = 56, 24, 5
N = EXC + INH


def projection(pre, weight, tau, reversal, post):
    return bps.AlignPostProj(
        comm=brainstate.nn.EventFixedProb(pre, N, conn_num=0.1, conn_weight=weight * u.mS, seed=1),
        syn=bps.Expon.desc(N, tau=tau * u.ms),
        out=bps.COBA.desc(E=reversal * u.mV),
        post=post,
    )


class Net(brainstate.nn.Module):
    """Excitatory and inhibitory neurons; their spikes come from themselves, or from outside."""

    def __init__(self, recurrent):
        super().__init__()
        self.recurrent = recurrent
        self.neurons = bps.LIF(N, V_rest=-60 * u.mV, V_th=-50 * u.mV, V_reset=-60 * u.mV, tau=20 * u.ms)
        self.exc = projection(EXC, 0.6, 5.0, 0.0, self.neurons)
        self.inh = projection(INH, 6.7, 10.0, -80.0, self.neurons)

    def update(self, spikes):
        spikes = self.neurons.get_spike() if self.recurrent else spikes
        self.exc(spikes[:EXC])
        self.inh(spikes[EXC:])
        self.neurons(20 * u.mA)
        return self.neurons.V.value / u.mV


def line_of(text):
    lines, first = inspect.getsourcelines(Net.update)
    return f"test_brainpy.py:{first + next(i for i, line in enumerate(lines) if text in line)}"


@pytest.fixture(scope="module", params=[False, True], ids=["from outside", "recurrent"])
def learner(request):
    with brainstate.environ.context(dt=0.1 * u.ms):
        net = Net(request.param)
        brainstate.nn.init_all_states(net)
        yield request.param, etrax.compile(net, "d_rtrl", jnp.zeros(N))


def test_each_weight_has_a_trace(learner):
    recurrent, compiled = learner
    for name in ("exc", "inh"):
        verdict = compiled.report.verdicts[name, "comm", "weight"]
        assert verdict.kind == ("approximate" if recurrent else "exact")
        assert line_of(f"self.{name}(") in verdict.reason


@pytest.mark.parametrize("window", [1, 3])
def test_gradients_are_what_was_said(learner, window):
    _, compiled = learner
    xs, ys = np.random.RandomState(0).rand(T, N) < 0.3, jnp.full((T, N), -55.0)
    loss = lambda v, target: jnp.mean((v - target) ** 2)
    arguments = compiled.params, compiled.hidden, jnp.asarray(xs, float), ys
    etrax.testing.compare(compiled, loss, *arguments, window=window).check()


class Delayed(brainstate.nn.Module):
    """Spikes from outside that arrive two steps later."""

    def __init__(self):
        super().__init__()
        self.delay = brainstate.nn.Delay(jax.ShapeDtypeStruct((4,), float), time=3 * u.ms)
        self.comm = brainstate.nn.EventFixedProb(4, N, conn_num=0.1, conn_weight=0.6, seed=0)
        self.v = brainstate.HiddenState(jnp.zeros(N))

    def update(self, spikes):
        self.delay.update(spikes)
        self.v.value = 0.9 * self.v.value + self.comm(self.delay.retrieve_at_step(2))
        return self.v.value


def test_a_delay_before_a_projection():
    with brainstate.environ.context(dt=1.0 * u.ms):
        net = Delayed()
        brainstate.nn.init_all_states(net)
        compiled = etrax.compile(net, "d_rtrl", jnp.zeros(4))
    assert compiled.report.verdicts["comm", "weight"].kind == "exact"


class Carried(brainstate.nn.Delay):
    """A delay line whose slots are hidden states."""

    def init_state(self, *args, **kwargs):
        super().init_state(*args, **kwargs)
        self.history = brainstate.HiddenState(self.history.value)


class Echo(brainstate.nn.Module):
    """A state that reads, element by element, what it was three steps ago."""

    def __init__(self, line):
        super().__init__()
        self.w = brainstate.ParamState(jnp.linspace(-1, 1, 4 * 70).reshape(4, 70))
        self.gain = brainstate.ParamState(jnp.full(70, 0.4))
        self.delay = line(jnp.zeros(70), time=3 * u.ms)

    def init_state(self):
        self.h = brainstate.HiddenState(jnp.zeros(70))

    def update(self, x):
        old = self.delay.retrieve_at_step(jnp.asarray(3))
        self.h.value = 0.8 * self.h.value + x @ self.w.value + self.gain.value * jnp.tanh(old)
        self.delay.update(self.h.value)
        return self.h.value


@pytest.mark.parametrize("line", [brainstate.nn.Delay, Carried])
def test_a_delay_behind_a_state(line):
    """Read at a place that is counted on: exact where its slots are hidden states, and said not to be where not."""
    with brainstate.environ.context(dt=1.0 * u.ms):
        net = Echo(line)
        brainstate.nn.init_all_states(net)
        compiled = etrax.compile(net, "d_rtrl", jnp.zeros(4))
        xs = jnp.asarray(np.random.RandomState(0).rand(2 * T, 4))
        arguments = compiled.params, compiled.hidden, xs, jnp.zeros((2 * T, 70))
        table = etrax.testing.compare(compiled, lambda y, t: jnp.mean((y - t) ** 2), *arguments, window=2)
    kinds = {v.kind for v in compiled.report.verdicts.values()}
    assert kinds == {"exact" if line is Carried else "approximate"}
    table.check()


def test_states_are_called_by_the_shortest_of_their_paths(learner):
    """brainstate finds the neurons inside a projection, and the synapses under a description of theirs."""
    _, compiled = learner
    hidden = {leaf.path for leaf in compiled.facts.states}
    assert ("exc", "post", "V") in hidden and any("_before_updates" in path for path in hidden)
    text = str(compiled.report)
    for name in ("neurons.V", "exc.syn.g", "inh.syn.g"):
        assert f"'{name}'" in text
    assert "_before_updates" not in compiled.report.full()
    (group,) = [g for g in compiled.graph.hidden_groups if ("exc", "post", "V") in g.hidden_paths]
    assert compiled.graph.explain(hidden_path="neurons.V") == compiled.graph.explain(hidden_path=("exc", "post", "V"))
    assert copy.deepcopy(group.hidden_paths) == group.hidden_paths


def test_an_error_calls_states_as_the_report_does():
    class NoUnit(Net):
        def update(self, spikes):
            return super().update(spikes) + 1.0 * u.mV  # of no unit, and of one

    with brainstate.environ.context(dt=0.1 * u.ms):
        net = NoUnit(True)
        brainstate.nn.init_all_states(net)
        with pytest.raises(etrax.CompilationError, match="Its states are") as caught:
            etrax.compile(net, "d_rtrl", jnp.zeros(N))
    text = str(caught.value)
    assert "state 'exc.syn.g': " in text and "state 'neurons.V': " in text and "_before_updates" not in text
