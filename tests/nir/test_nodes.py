"""Each kind of node against its equation in numpy, graphs with cycles and subgraphs, and learners of them."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import nir
import numpy as np
import pytest

import etrax

DT, STEPS = 1e-3, 6
RNG = np.random.default_rng(0)


def noise(*shape):
    return RNG.standard_normal(shape)


def graph_of(node, shape, out):
    nodes = {"in": nir.Input(np.array(shape)), "node": node, "out": nir.Output(np.array(out))}
    return nir.NIRGraph(nodes, [("in", "node"), ("node", "out")], type_check=False)


def run(step, params, hidden, xs):
    """Step by step, outside jit."""
    found = []
    for x in xs:
        hidden, output = step(params, hidden, jnp.asarray(x))
        found.append(output)
    return jnp.stack(found)


def leak(v, tau, goal):
    return v + DT / tau * (goal - v)


def fired(v, threshold, reset):
    return (v > threshold) * 1.0, np.where(v > threshold, reset, v)


def li(n, v, i, x):
    v = leak(v, n.tau, n.v_leak + n.r * x)
    return v, i, v


def cuba_li(n, v, i, x):
    i = leak(i, n.tau_syn, n.w_in * x)
    v = leak(v, n.tau_mem, n.v_leak + n.r * i)
    return v, i, v


def cuba_lif(n, v, i, x):
    v, i, _ = cuba_li(n, v, i, x)
    z, v = fired(v, n.v_threshold, n.v_reset)
    return v, i, z


def lif(n, v, i, x):
    z, v = fired(leak(v, n.tau, n.v_leak + n.r * x), n.v_threshold, n.v_reset)
    return v, i, z


def integrate(n, v, i, x):
    v = v + DT * n.r * x
    return v, i, v


def integrate_and_fire(n, v, i, x):
    z, v = fired(v + DT * n.r * x, n.v_threshold, n.v_reset)
    return v, i, z


N = 4
TAU, R, LEAK = np.linspace(2, 5, N) * DT, np.linspace(1, 3, N), np.linspace(-0.3, 0.3, N)
FIRE = {"v_threshold": np.linspace(0.2, 0.5, N), "v_reset": LEAK - 0.1}
CUBA = {"tau_syn": 1.5 * TAU, "tau_mem": TAU, "r": R, "v_leak": LEAK, "w_in": 2 * R}
NEURONS = {
    "LI": (nir.LI(tau=TAU, r=R, v_leak=LEAK), li),
    "LIF": (nir.LIF(tau=TAU, r=R, v_leak=LEAK, **FIRE), lif),
    "CubaLI": (nir.CubaLI(**CUBA), cuba_li),
    "CubaLIF": (nir.CubaLIF(**CUBA, **FIRE), cuba_lif),
    "I": (nir.I(r=R / DT), integrate),
    "IF": (nir.IF(r=R / DT, **FIRE), integrate_and_fire),
}


@pytest.mark.parametrize("name", sorted(NEURONS))
def test_neurons(name):
    node, reference = NEURONS[name]
    step, params, hidden = etrax.nir.read(graph_of(node, [N], [N]), dt=DT, batch_size=2, dtype=jnp.float64)
    xs, v, i, wanted = noise(STEPS, 2, N), np.zeros((2, N)) + getattr(node, "v_leak", 0), np.zeros((2, N)), []
    for x in xs:
        v, i, y = reference(node, v, i, x)
        wanted.append(y)
    assert params == {} and np.std(wanted) > 0.1
    np.testing.assert_allclose(run(step, params, hidden, xs), wanted, rtol=1e-12, atol=1e-12)


def pooled(x, kernel, stride, padding):
    """Sums over windows of the last two axes, one at a time."""
    x = np.pad(x, [(0, 0), *((p, p) for p in padding)])
    size = [(n - k) // s + 1 for n, k, s in zip(x.shape[1:], kernel, stride, strict=True)]
    return np.stack([
        [x[:, a * stride[0] : a * stride[0] + kernel[0], b * stride[1] : b * stride[1] + kernel[1]].sum((1, 2))
         for b in range(size[1])] for a in range(size[0])
    ]).transpose(2, 0, 1)  # fmt: skip


def convolved(x, weight, bias, stride, pads, dilation, groups):
    """Channels first, any number of axes, one output at a time."""
    x = np.pad(x, [(0, 0), *pads])
    kernel, (out, per) = weight.shape[2:], weight.shape[:2]
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    size = [(n - r) // s + 1 for n, r, s in zip(x.shape[1:], reach, stride, strict=True)]
    y = np.zeros((out, *size))
    for at in np.ndindex(*y.shape):
        group = at[0] // (out // groups)
        window = tuple(slice(a * s, a * s + r, d) for a, s, r, d in zip(at[1:], stride, reach, dilation, strict=True))
        y[at] = (x[(slice(group * per, (group + 1) * per), *window)] * weight[at[0]]).sum() + bias[at[0]]
    return y


W1, W2, B = noise(4, 1, 3), noise(2, 3, 2, 3), noise(4)
LAYERS = {
    "Affine": (nir.Affine(noise(3, 4), noise(3)), (4,), lambda n, x: n.weight @ x + n.bias),
    "Linear": (nir.Linear(noise(3, 4)), (4,), lambda n, x: n.weight @ x),
    "Linear, stacked": (nir.Linear(noise(2, 3, 4)), (2, 4), lambda n, x: np.einsum("aij,aj->ai", n.weight, x)),
    "Scale": (nir.Scale(noise(4)), (4,), lambda n, x: n.scale * x),
    "Threshold": (nir.Threshold(noise(4)), (4,), lambda n, x: (x > n.threshold) * 1.0),
    "Flatten": (nir.Flatten({"input": np.array([2, 3, 2])}, 1, 2), (2, 3, 2), lambda n, x: x.reshape(2, 6)),
    "Flatten, from the end": (nir.Flatten({"input": None}, 0, -1), (2, 3, 2), lambda n, x: x.ravel()),
    "SumPool2d": (
        nir.SumPool2d(np.array([2, 3]), np.array([1, 2]), np.array([1, 0])), (2, 5, 6),
        lambda n, x: pooled(x, (2, 3), (1, 2), (1, 0)),
    ),
    "AvgPool2d": (
        nir.AvgPool2d(np.array([2, 2]), np.array([2, 2]), np.array([1, 1])), (2, 4, 4),
        lambda n, x: pooled(x, (2, 2), (2, 2), (1, 1)) / 4,
    ),
    "Conv1d": (
        nir.Conv1d(None, W1, 2, 1, 2, 2, B), (2, 9), lambda n, x: convolved(x, W1, B, (2,), [(1, 1)], (2,), 2),
    ),
    "Conv1d, same": (
        nir.Conv1d(None, noise(2, 3, 4), 1, "same", 1, 1, B[:2]), (3, 5),
        lambda n, x: convolved(x, n.weight, B, (1,), [(1, 2)], (1,), 1),
    ),
    "Conv2d": (
        nir.Conv2d(None, W2, (1, 2), (0, 1), (2, 1), 1, B[:2]), (3, 5, 6),
        lambda n, x: convolved(x, W2, B, (1, 2), [(0, 0), (1, 1)], (2, 1), 1),
    ),
    "Conv2d, valid": (
        nir.Conv2d(None, W2, 1, "valid", 1, 1, B[:2]), (3, 4, 4),
        lambda n, x: convolved(x, W2, B, (1, 1), [(0, 0)] * 2, (1, 1), 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_layers(name):
    node, shape, reference = LAYERS[name]
    graph = graph_of(node, shape, ())
    step, params, hidden = etrax.nir.read(graph, dtype=jnp.float64)
    x = noise(2, *shape)
    wanted = [reference(node, a) for a in x]
    np.testing.assert_allclose(step(params, hidden, jnp.asarray(x[0]))[1], wanted[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(step(params, hidden, jnp.asarray(x))[1], wanted, rtol=1e-12, atol=1e-12)
    assert hidden == {}


def test_delay():
    """Elements may be late by different numbers of steps, or not at all."""
    steps = np.array([0, 3, 1, 3])
    step, params, hidden = etrax.nir.read(graph_of(nir.Delay(steps * DT), [N], [N]), dt=DT, dtype=jnp.float64)
    xs = noise(STEPS, N)
    wanted = [[xs[t - d, k] if t >= d else 0 for k, d in enumerate(steps)] for t in range(STEPS)]
    np.testing.assert_array_equal(run(step, params, hidden, xs), wanted)


def plain_lif(n):
    return nir.LIF(tau=np.full(n, 2 * DT), r=np.ones(n), v_leak=np.zeros(n), v_threshold=np.full(n, 0.3))


def recurrent(n=3):
    """Input, neurons that read their own spikes of the step before, inside a subgraph; then a leaky readout."""
    inner = nir.NIRGraph(
        {"in": nir.Input([n]), "lif": plain_lif(n), "rec": nir.Affine(noise(n, n), noise(n)), "out": nir.Output([n])},
        [("in", "lif"), ("lif", "rec"), ("rec", "lif"), ("lif", "out")],
    )
    readout = nir.LI(tau=np.full(2, 3 * DT), r=np.ones(2), v_leak=np.zeros(2))
    nodes = {"in": nir.Input([2]), "fc": nir.Linear(3 * noise(n, 2)), "core": inner, "to": nir.Linear(noise(2, n))}
    nodes |= {"li": readout, "out": nir.Output([2])}
    names = list(nodes)
    return nir.NIRGraph(nodes, list(pairwise(names)))


def test_recurrent_edges_carry_the_step_before():
    graph = recurrent()
    step, params, hidden = etrax.nir.read(graph, dt=DT, dtype=jnp.float64)
    assert step.late == {(("core", "lif"), ("core", "rec"))} and set(params) == {"fc", "core", "to"}
    rec, fc, to = graph.nodes["core"].nodes["rec"], graph.nodes["fc"].weight, graph.nodes["to"].weight
    xs, v, z, y, wanted = noise(STEPS, 2), np.zeros(3), np.zeros(3), np.zeros(2), []
    for x in xs:
        z, v = fired(leak(v, 2 * DT, fc @ x + rec.weight @ z + rec.bias), 0.3, 0.0)
        y = leak(y, 3 * DT, to @ z)
        wanted.append(y)
    np.testing.assert_allclose(run(step, params, hidden, xs), wanted, rtol=1e-12, atol=1e-12)


def test_a_ring_of_two_layers_opens_behind_the_second():
    nodes = {"in": nir.Input([3]), "a": plain_lif(3), "w": nir.Linear(noise(3, 3)), "b": plain_lif(3)}
    nodes |= {"back": nir.Linear(noise(3, 3)), "out": nir.Output([3])}
    edges = [("in", "a"), ("a", "w"), ("w", "b"), ("b", "back"), ("back", "a"), ("b", "out")]
    assert etrax.nir.read(nir.NIRGraph(nodes, edges), dt=DT)[0].late == {(("b",), ("back",))}


def test_a_delay_closes_a_ring_by_itself():
    """y(t) = x(t) + w y(t - 2): no neuron is needed, and no step is added."""
    w = 0.5 * noise(3, 3)
    nodes = {"in": nir.Input([3]), "sum": nir.Scale(np.ones(3)), "d": nir.Delay(np.full(3, 2 * DT)), "w": nir.Linear(w)}
    edges = [("in", "sum"), ("sum", "d"), ("d", "w"), ("w", "sum"), ("sum", "out")]
    step, params, hidden = etrax.nir.read(
        nir.NIRGraph(nodes | {"out": nir.Output([3])}, edges), dt=DT, dtype=jnp.float64
    )
    xs, wanted = noise(STEPS, 3), []
    for t, x in enumerate(xs):
        wanted.append(x + (w @ wanted[t - 2] if t >= 2 else 0))
    np.testing.assert_allclose(run(step, params, hidden, xs), wanted, rtol=1e-12, atol=1e-12)
    assert not step.late


def test_several_inputs_and_outputs():
    nodes = {"a": nir.Input([2]), "b": nir.Input([3]), "w": nir.Linear(noise(2, 3)), "s": nir.Scale(np.ones(2))}
    edges = [("a", "s"), ("b", "w"), ("w", "s"), ("s", "one"), ("w", "two")]
    step, params, hidden = etrax.nir.read(
        nir.NIRGraph(nodes | {"one": nir.Output([2]), "two": nir.Output([2])}, edges, type_check=False),
        dtype=jnp.float64,
    )
    a, b = noise(2), noise(3)
    _, found = step(params, hidden, a, b)
    assert step.inputs == ["a", "b"] and set(found) == {"one", "two"}
    np.testing.assert_allclose(found["one"], a + nodes["w"].weight @ b)
    with pytest.raises(etrax.ArgumentError, match=r"takes 2 inputs \(a, b\), not 1"):
        step(params, hidden, a)


def loss(output, target):
    return jnp.mean((output - target) ** 2)


def test_learns_online_and_goes_home():
    """Verdicts say what a trace carries; training moves what `train` names, and only that is written back."""
    graph = recurrent()
    step, params, hidden = etrax.nir.read(graph, dt=DT, surrogate="triangle", train=("weight", "bias", "tau"))
    learner = etrax.compile(step, "d_rtrl", jnp.zeros(2, jnp.float32), params=params, hidden=hidden)
    kinds = {path: str(verdict.kind) for path, verdict in learner.report.verdicts.items()}
    assert kinds["to", "weight"] == kinds["li", "tau"] == "exact" and kinds["core", "rec", "weight"] == "approximate"
    xs, ys = noise(40, 2).astype(np.float32), noise(1, 2).astype(np.float32) * np.ones((40, 1), np.float32)
    value = learner.value_and_grad(loss, window=1)
    (before, grads), _ = value(params, learner.init(), xs, ys)
    assert all(jnp.abs(g).max() > 0 for g in jax.tree.leaves(grads))
    new = jax.tree.map(lambda a, g: a - (0.2 * g if a.ndim > 1 else 0), params, grads)
    assert value(new, learner.init(), xs, ys)[0][0] < before
    home = etrax.nir.write(learner, new)
    np.testing.assert_array_equal(home.nodes["core"].nodes["rec"].weight, new["core"]["rec"]["weight"])
    np.testing.assert_array_equal(home.nodes["li"].r, graph.nodes["li"].r)
    assert (graph.nodes["to"].weight != home.nodes["to"].weight).any()


def test_exact_where_nothing_is_lost():
    """One layer of neurons behind its weights, whatever the simulator: exact against BPTT at windows of one step."""
    graph = graph_of(nir.CubaLIF(**CUBA, **FIRE), [N], [N])
    graph.nodes["fc"] = nir.Affine(2 * noise(N, 3), noise(N))
    graph.nodes["in"] = nir.Input([3])
    graph.edges[:] = [("in", "fc"), ("fc", "node"), ("node", "out")]
    simulator = etrax.nir.Simulator(dt=DT, reset="subtract", late_reset=True, jumps=True)
    step, params, hidden = etrax.nir.read(graph, simulator=simulator, dtype=jnp.float64, surrogate="arctan")
    learner = etrax.compile(step, "d_rtrl", jnp.zeros(3), params=params, hidden=hidden)
    xs, ys = noise(12, 3), noise(12, N)
    table = etrax.testing.compare(learner, loss, params, hidden, xs, ys, window=1)
    table.check()
    assert {str(row.verdict.kind) for row in table.rows} == {"exact"}
