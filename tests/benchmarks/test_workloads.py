"""The workloads are what they say, and every rival computes the gradient that it is timed for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.recursion import per_step
from benchmarks.rivals import bptt, checkpointed, ours
from benchmarks.workload import PLAIN, loss

import etrax

from .sizes import SMALL

STEPS = 6


def gradients(rival, workload, steps=STEPS):
    program = rival.build(workload, *workload.data(steps))
    return program.gradients(program.run())


def close(found, wanted, tolerance=2e-5):
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        scale = np.abs(value).max() + 1e-6
        np.testing.assert_allclose(found[name] / scale, value / scale, atol=tolerance, err_msg=name)


def by_loop(workload, steps=STEPS):
    """The gradient by reverse mode through a Python loop."""
    inputs, targets = workload.data(steps)

    def total(params):
        hidden, found = workload.hidden, 0.0
        for x, y in zip(inputs, targets, strict=True):
            hidden, output = workload.step(PLAIN, params, hidden, x)
            found += loss(output, y) / steps
        return found

    return jax.jit(jax.grad(total))(workload.params)


@pytest.mark.parametrize("name", SMALL)
def test_single_precision_throughout(name):
    workload = SMALL[name]()
    inputs, targets = workload.data(2)
    hidden, output = jax.eval_shape(
        lambda p, h, x: workload.step(PLAIN, p, h, x), workload.params, workload.hidden, inputs[0]
    )
    leaves = jax.tree.leaves((workload.params, inputs, targets, output))
    assert {a.dtype for a in leaves if a is not inputs} == {jnp.dtype("float32")}
    assert inputs.dtype in (jnp.float32, jnp.int32)  # tokens
    assert jax.tree.map(lambda a: (a.shape, a.dtype), hidden) == jax.tree.map(
        lambda a: (a.shape, a.dtype), workload.hidden
    )
    assert output.shape == targets.shape[1:]


@pytest.mark.parametrize("name", ["lif", "alif", "lif stack", "conv", "coba", "sparse"])
def test_neurons_fire_and_not_always(name):
    workload = SMALL[name]()
    hidden, rates = workload.hidden, []
    for x in workload.data(40)[0]:
        hidden, _ = workload.step(PLAIN, workload.params, hidden, x)
        rates.append(np.mean([np.mean(v > 1) for k, v in hidden.items() if k.startswith("v")]))
    assert 0.001 < np.mean(rates) < 0.5


@pytest.mark.parametrize("name", ["gru", "lstm", "lru", "lif", "alif", "lif stack", "lru stack"])
def test_products_are_those_of_the_step(name):
    workload = SMALL[name]()
    inputs, _ = workload.data(1)
    made = jax.make_jaxpr(lambda p, h, x: workload.step(PLAIN, p, h, x))(workload.params, workload.hidden, inputs[0])
    found = 0
    for eqn in made.jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            found += eqn.outvars[0].aval.size * eqn.invars[0].aval.shape[contracted[0]]
    assert found == workload.products * workload.batch


def test_complex_and_real_states_agree():
    workload = SMALL["lru"]()
    h, pair = workload.hidden, workload.real_hidden
    for x in workload.data(4)[0]:
        h, output = workload.step(PLAIN, workload.params, h, x)
        pair, same = workload.real_step(PLAIN, workload.params, pair, x)
        np.testing.assert_allclose(output, same, atol=1e-5)
    np.testing.assert_allclose(h["h"], pair["re"] + 1j * pair["im"], atol=1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_bptt_with_and_without_checkpoints(name):
    workload = SMALL[name]()
    wanted = by_loop(workload)
    close(gradients(bptt(), workload), wanted)
    close(gradients(checkpointed(STEPS), workload), wanted)


@pytest.mark.parametrize("name", SMALL)
def test_ours_in_one_window_is_bptt(name):
    workload = SMALL[name]()
    wanted = by_loop(workload)
    for rule in ("d_rtrl", "pp_prop"):
        close(gradients(ours(rule, STEPS), workload), wanted, 1e-4)


def test_ours_carries_a_trace():
    workload = SMALL["gru"]()
    program = ours("d_rtrl", 2).build(workload, *workload.data(STEPS))
    assert program.trace_bytes == 4 * workload.batch * 2 * workload.params["z"].size


def test_recursion_by_hand_is_d_rtrl_step_by_step():
    workload = SMALL["gru"]()
    close(gradients(per_step(), workload), gradients(ours("d_rtrl", 1), workload))


@pytest.fixture
def single_precision():
    """braintrace takes no float32 model while float64 is on."""
    import brainstate

    brainstate.environ.set(precision=32)
    yield
    brainstate.environ.set(precision=64)
    jax.config.update("jax_enable_x64", True)


# Products whose outputs are cut into two states: braintrace 0.2.6 keeps no trace of them, and says so.
WITHOUT_TRACE = {"lru stack": ("b0", "b1")}
# Layers that it has no ops for, or reads in another way.
NOT_THEIRS = {"mamba", "deltanet", "embedded mingru", "deep lru"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:ETP primitive")  # it leaves out weights behind other weights, and says so
@pytest.mark.filterwarnings("ignore:ETP op")
@pytest.mark.parametrize("name", [n for n in SMALL if n not in NOT_THEIRS])
def test_peer_windowed_is_d_rtrl(name, single_precision):
    """Another implementation of the same rule, where it is installed: it carries nothing past a layer's own states.

    Where it keeps no trace of a product, ours is nearer to BPTT.
    """
    pytest.importorskip("braintrace", reason="the extra `compare` is not installed")
    from benchmarks.peer import theirs

    workload, left_out = SMALL[name](), WITHOUT_TRACE.get(name, ())
    peer, own = gradients(theirs("D_RTRL", 2), workload), gradients(ours(etrax.d_rtrl(hops=0), 2), workload)
    close(*({k: g for k, g in found.items() if k not in left_out} for found in (peer, own)), 1e-4)
    wanted = by_loop(workload)
    for k in left_out:
        assert np.linalg.norm(own[k] - wanted[k]) < 0.5 * np.linalg.norm(peer[k] - wanted[k])
