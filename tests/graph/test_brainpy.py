"""Networks of brainpy.state: neurons, synapses and projections with physical units."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

brainstate = pytest.importorskip("brainstate")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    bps = pytest.importorskip("brainpy.state")
    u = pytest.importorskip("saiunit")
    braintools = pytest.importorskip("braintools")

from tests.graph.cells import cut, run, values  # noqa: E402

import etrax  # noqa: E402
from etrax.graph import ETraceGraphExecutor, compile_etrace_graph  # noqa: E402

I, H = 3, 5
pytestmark = pytest.mark.filterwarnings("ignore")


class Net(brainstate.nn.Module):
    """Recurrent neurons behind an AlignPost projection, and a readout of their spikes."""

    def __init__(self, neuron, synapse, output):
        super().__init__()
        unit = u.mS if output is bps.COBA else u.mA
        zeros = braintools.init.ZeroInit(unit=unit)
        near = {} if neuron is bps.Gif else {"V_initializer": braintools.init.Uniform(0.2, 1.5, unit=u.mV)}
        self.neurons = neuron(H, **near)
        self.projection = bps.AlignPostProj(
            comm=brainstate.nn.Linear(I + H, H, w_init=braintools.init.KaimingNormal(unit=unit), b_init=zeros),
            syn=synapse.desc(H, g_initializer=zeros),
            out=bps.COBA.desc(E=0 * u.mV) if output is bps.COBA else bps.CUBA.desc(scale=1.0),
            post=self.neurons,
        )
        self.readout = brainstate.nn.Linear(H, 2)

    def update(self, x):
        self.projection(jnp.concatenate([x, self.neurons.get_spike()], -1))
        self.neurons()
        return self.readout(self.neurons.get_spike())


def mantissa(x):
    return jax.tree.leaves(x)[0]


STATES = {bps.LIF: 1, bps.ALIF: 2, bps.Gif: 4}


@pytest.mark.parametrize("output", [bps.CUBA, bps.COBA])
@pytest.mark.parametrize("synapse", [bps.Expon, bps.DualExpon])
@pytest.mark.parametrize("neuron", list(STATES))
def test_network(neuron, synapse, output):
    with brainstate.environ.context(dt=0.1 * u.ms):
        brainstate.random.seed(0)
        net = Net(neuron, synapse, output)
        brainstate.nn.init_all_states(net)
        for state in net.states(brainstate.HiddenState).values():
            unit = u.get_unit(state.value)
            state.value = state.value + np.linspace(0.01, 0.2, H) * unit
        x = jnp.asarray([0.3, -0.2, 0.9])
        before = values(net)
        executor = ETraceGraphExecutor(net)
        executor.compile_graph(x)
        (group,) = executor.graph.hidden_groups
        assert group.num_state == STATES[neuron] + (1 if synapse is bps.Expon else 2)
        assert {r.path for r in executor.graph.hidden_param_op_relations} == {("projection", "comm", "weight")}
        out, hidden, _, (h2w, h2h), pull = jax.jit(executor.solve_h2w_h2h_l2h_jacobian)(x)
        assert all(jax.tree.all(jax.tree.map(lambda a, b: a is b, v, before[p])) for p, v in values(net).items())
        check(net, x, group, out, hidden, h2h[0])
        (weight,) = [v for (path, _, _), v in h2w.items() if path == ("projection", "comm", "weight", "weight")]
        assert weight.dense().shape == (I + H, H, group.num_state)
        assert set(pull(out)) == set(group.hidden_paths)


def check(net, x, group, out, hidden, found):
    """Values, and blocks against `jax.jacrev` of the model with its layers cut."""
    old = values(net)
    expected, new = run(net, old, x)
    np.testing.assert_allclose(out, expected, rtol=1e-12)
    structures = {p: jax.tree.structure(old[p]) for p in group.hidden_paths}
    for path in group.hidden_paths:
        assert jax.tree.structure(hidden[path]) == structures[path]
        np.testing.assert_allclose(mantissa(hidden[path]), mantissa(new[path]), rtol=1e-12)

    def step(h):
        given = {p: jax.tree.unflatten(structures[p], [h[..., k]]) for k, p in enumerate(group.hidden_paths)}
        _, after = run(net, {**old, **given}, x)
        return jnp.stack([mantissa(after[p]) for p in group.hidden_paths], -1)

    with cut():
        dense = jax.jacrev(step)(group.concat_hidden([old[p] for p in group.hidden_paths]))
    blocks = np.stack([dense[n, :, n, :] for n in range(H)])
    np.testing.assert_allclose(found, blocks, rtol=1e-9, atol=1e-12)


def test_missing_time_step():
    from etrax._errors import CompilationError

    with brainstate.environ.context(dt=0.1 * u.ms):
        net = Net(bps.LIF, bps.Expon, bps.CUBA)
        brainstate.nn.init_all_states(net)
    if "dt" in brainstate.environ.all():
        pytest.skip("the environment has a time step")
    with pytest.raises(CompilationError, match=r"brainstate\.environ\.set\(dt="):
        compile_etrace_graph(net, jnp.ones(I))
    with brainstate.environ.context(dt=0.1 * u.ms):  # the failed compile left nothing in the projections
        assert len(compile_etrace_graph(net, jnp.ones(I)).hidden_groups) == 1


def test_uninitialised_states():
    from etrax._errors import CompilationError

    with brainstate.environ.context(dt=0.1 * u.ms), pytest.raises(CompilationError, match="init_all_states"):
        compile_etrace_graph(Net(bps.LIF, bps.Expon, bps.CUBA), jnp.ones(I))


def test_neurons_of_brainspike_learn_exactly():
    """Models with the names of NEST, which came with brainpy.state up to 0.1 and are a package of their own now."""
    brainspike = pytest.importorskip("brainspike")

    class Spiking(brainstate.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = brainstate.ParamState(jnp.asarray(np.random.RandomState(0).uniform(200, 600, (I, H))))
            self.neurons = brainspike.iaf_psc_delta(H)
            self.readout = brainstate.nn.Linear(H, 2)

        def update(self, x):
            self.neurons.update(x=(x @ self.w.value) * u.pA)
            return self.readout(self.neurons.V.value.to_decimal(u.mV))

    with brainstate.environ.context(dt=0.1 * u.ms, t=0.0 * u.ms, i=0):
        model = Spiking()
        brainstate.nn.init_all_states(model)
        learner = etrax.compile(model, "d_rtrl", jnp.ones(I))
        assert {verdict.kind for verdict in learner.report.verdicts.values()} == {"exact"}
        assert "test_brainpy.py" in learner.report.verdicts["w",].reason
        xs = jnp.asarray(np.random.RandomState(1).uniform(0, 1, (6, I)))
        table = etrax.testing.compare(learner, lambda o, y: (o**2).mean(), None, None, xs, window=1)
        table.check()
