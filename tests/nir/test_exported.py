"""Graphs that snnTorch and norse wrote: the same traces as their own simulators, the same gradients as torch's BPTT.

`export_snntorch.py` and `export_norse.py` made the files in `data`, each in an environment of its own.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import nir
import numpy as np
import pytest

import etrax

DATA = Path(__file__).parent / "data"
# The graph does not say what its neurons do at a spike: "synaptic" was built to go to zero at once.
SIMULATOR = {
    "snntorch_leaky": "snntorch",
    "snntorch_recurrent": "snntorch",
    "snntorch_conv": "snntorch",
    "snntorch_synaptic": etrax.nir.Simulator(detach_reset=False),
    "norse_box": "norse",
    "norse_cuba": "norse",
    "norse_integrate": "norse",
    "norse_conv": "norse",
}
# The node whose membrane the exporter wrote down, too.
MEMBRANE = {"snntorch_leaky": "3", "snntorch_recurrent": "3", "snntorch_conv": "5", "snntorch_synaptic": "3"}


def loss(output, target):
    return jnp.mean((output - target) ** 2)


class Case:
    def __init__(self, name):
        self.name, self.file, self.data = name, DATA / f"{name}.nir", np.load(DATA / f"{name}.npz")
        surrogate = "superspike" if name.startswith("norse") else "fast_sigmoid"
        found = etrax.nir.read(self.file, simulator=SIMULATOR[name], surrogate=surrogate, batch_size=2)
        self.step, self.params, self.hidden = found

    def run(self):
        def one(hidden, x):
            hidden, output = self.step(self.params, hidden, x)
            return hidden, (hidden, output)

        return jax.lax.scan(one, self.hidden, self.data["x"])[1]


@pytest.fixture(scope="module", params=sorted(SIMULATOR))
def case(request):
    return Case(request.param)


def close(a, b, tolerance=1e-5):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max())


def test_traces(case):
    hidden, output = case.run()
    assert output.dtype == jnp.float32 and output.std() > 0.05
    close(output, case.data["out"])
    if case.name in MEMBRANE:
        close(hidden[MEMBRANE[case.name]]["v"], case.data["membranes"])


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ("snntorch_recurrent", "norse_cuba") else pytest.mark.slow)
     for name in sorted(SIMULATOR)],
)  # fmt: skip
def test_online_gradients_are_those_of_torch(name):
    """Windows of one step under a rule that is exact for every model, against torch's reverse mode over all of them."""
    case = Case(name)
    x, y = case.data["x"], case.data["target"]
    learner = etrax.compile(case.step, "rtrl", x[0], params=case.params, hidden=case.hidden)
    (_, grads), _ = learner.value_and_grad(loss, window=1)(case.params, learner.init(), x, y)
    wanted = [name for name in case.data if name.startswith("grad.")]
    assert len(wanted) >= 2
    for name in wanted:
        node, field = name.removeprefix("grad.").replace(".recurrent", ".w_rec").rsplit(".", 1)
        close(grads[node][field], case.data[name], 1e-4)


def test_round_trip(case, tmp_path):
    """What is written back is the graph that was read; with other values, another reader finds those."""
    before, same = nir.read(case.file), etrax.nir.write(case.step, case.params)
    assert set(map(tuple, same.edges)) == set(before.edges) and set(same.nodes) == set(before.nodes)
    for name, node in before.nodes.items():
        old, new = node.to_dict(), same.nodes[name].to_dict()
        assert type(same.nodes[name]) is type(node) and old.keys() == new.keys()
        for field, value in old.items():
            np.testing.assert_array_equal(new[field], value)
    params = jax.tree.map(lambda a: 0.9 * a, case.params)
    nir.write(tmp_path / "trained.nir", etrax.nir.write(case.step, params))
    _, found, _ = etrax.nir.read(tmp_path / "trained.nir", simulator=SIMULATOR[case.name])
    jax.tree.map(np.testing.assert_array_equal, found, params)
