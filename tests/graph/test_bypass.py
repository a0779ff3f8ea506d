"""Derivatives of outputs along paths that cross no new hidden state, against those of the written-out step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax

N, I = 4, 3
RNG = np.random.RandomState(0)
PARAMS = {"w": RNG.standard_normal((I, N)), "b": RNG.standard_normal(N), "out": RNG.standard_normal((N, 2))}
HIDDEN = {"v": RNG.standard_normal(N), "a": RNG.standard_normal(N)}
X = RNG.standard_normal(I)


def before_reset(p, h, x):
    """The output is read before the reset; `a` is new in every step and seen by the output through its new value."""
    drive = 0.9 * h["v"] + x @ p["w"]
    spike = jax.nn.sigmoid(3 * drive)
    a = 0.5 * h["a"] + jnp.tanh(p["b"]) * spike
    return {"v": drive - spike, "a": a}, (spike @ p["out"], a.sum())


def after_reset(p, h, x):
    new, _ = before_reset(p, h, x)
    return new, (new["v"] @ p["out"], new["a"].sum())


def nested(p, h, x):
    new, (out, s) = jax.jit(before_reset)(p, h, x)
    return new, (jnp.where(s > 0, out, 2 * out), s)


def stopped(p, h, x):
    new, (out, s) = before_reset(p, h, x)
    return new, (jax.lax.stop_gradient(out), s)


def delayed(p, h, x):
    """The output is a state as it was before the step, and a parameter."""
    new, (_, s) = before_reset(p, h, x)
    return new, (h["v"][:2] + p["b"][:2], s)


def as_it_is(p, h, x):
    new, (_, s) = before_reset(p, h, x)
    return new, (h["v"], s)


BYPASS = {
    delayed: (["b"], ["v"]),
    before_reset: (["w", "out"], ["v"]),
    after_reset: (["out"], []),
    nested: (["w", "out"], ["v"]),
    stopped: ([], []),
}


def perturbation_of(step):
    info = etrax.extract_module_info(step, X, params=PARAMS, hidden=HIDDEN)
    return info, etrax.add_hidden_perturbation_from_minfo(info)


@pytest.mark.parametrize("step", BYPASS)
def test_paths_around_the_new_states_are_found(step):
    _, found = perturbation_of(step)
    params, hidden = BYPASS[step]
    assert sorted(p[-1] for p in found.bypass_param_paths) == sorted(params)
    assert [p[-1] for p in found.bypass_hidden_paths] == hidden
    assert [v.aval.shape for v in found.bypass_vars] == [PARAMS[p[-1]].shape for p in found.bypass_param_paths]
    assert len(found.bypass_hidden_vars) == len(hidden)


@pytest.mark.parametrize("step", BYPASS)
def test_derivatives_in_the_copies_are_those_with_the_new_states_held(step):
    """out(θ, h_old, h_new) with h_new held, by finite differences; and nothing changes in the outputs."""
    info, found = perturbation_of(step)
    inputs = info.flat_inputs((X,), {})
    copies = [PARAMS[p[-1]] for p in found.bypass_param_paths], [HIDDEN[p[-1]] for p in found.bypass_hidden_paths]
    weigh = lambda outs: outs[0] @ np.array([1.0, -2.0]) + 3 * outs[1]

    def run(params, hidden):
        return found.eval_jaxpr(inputs, found.init_perturb_data(), params, hidden)[: info.num_var_out]

    for a, b in zip(run(*copies), found.eval_jaxpr(inputs, found.init_perturb_data()), strict=False):
        np.testing.assert_array_equal(a, b)
    to_params, to_hidden = jax.grad(lambda *c: weigh(run(*c)), (0, 1))(*copies)

    def held(p, h):
        """The step with its new states held: of them, the output of `after_reset` reads v, and all read a's sum."""
        new = before_reset(PARAMS, HIDDEN, X)[0]
        if step is after_reset:
            return weigh((new["v"] @ p["out"], new["a"].sum()))
        out = step(p, h, X)[1][0]
        return weigh((out, new["a"].sum())) if step is not stopped else 0.0

    for paths, grads, at in ((found.bypass_param_paths, to_params, 0), (found.bypass_hidden_paths, to_hidden, 1)):
        for path, grad in zip(paths, grads, strict=True):
            direction = RNG.standard_normal(grad.shape)
            trees = [PARAMS, HIDDEN]
            step_by = lambda e, at=at, path=path, d=direction, trees=trees: held(
                *(t | {path[-1]: t[path[-1]] + e * d} if k == at else t for k, t in enumerate(trees))
            )
            slope = (step_by(1e-6) - step_by(-1e-6)) / 2e-6
            np.testing.assert_allclose((grad * direction).sum(), slope, rtol=1e-6)


@pytest.mark.parametrize("step", BYPASS)
def test_bypass_and_perturbation_together_are_the_whole_derivative(step):
    """dL/dw of one step = what goes around the new states + dL/dp · ∂h_new/∂w."""
    info, found = perturbation_of(step)
    inputs = info.flat_inputs((X,), {})
    names = [p[-1] for p in found.bypass_param_paths]

    def loss(params, p):
        copies = [params[n] for n in names], [HIDDEN[q[-1]] for q in found.bypass_hidden_paths]
        out, s = found.eval_jaxpr(inputs, p, *copies)[: info.num_var_out]
        return (out**2).sum() + s**2

    around, to_new = jax.grad(loss, (0, 1))(PARAMS, found.init_perturb_data())
    cotangent = {path[-1]: g for path, g in zip(found.perturb_hidden_paths, to_new, strict=True)}
    (through,) = jax.vjp(lambda p: step(p, HIDDEN, X)[0], PARAMS)[1](cotangent)

    def whole(p):
        out, s = step(p, HIDDEN, X)[1]
        return (out**2).sum() + s**2

    want = jax.grad(whole)(PARAMS)
    for name in PARAMS:
        np.testing.assert_allclose(around[name] + through[name], want[name], rtol=1e-9, atol=1e-12)


def test_copies_are_counted_and_put_into_groups():
    info, found = perturbation_of(before_reset)
    inputs, zeros = info.flat_inputs((X,), {}), found.init_perturb_data()
    with pytest.raises(ValueError, match="0 copies of parameters, expected 2"):
        found.eval_jaxpr(inputs, zeros, [], [HIDDEN["v"]])
    with pytest.raises(ValueError, match="0 copies of hidden states, expected 1"):
        found.eval_jaxpr(inputs, zeros, [PARAMS[p[-1]] for p in found.bypass_param_paths])
    groups, _ = etrax.find_hidden_groups_from_minfo(info)
    data = found.bypass_hidden_data_to_hidden_group_data([HIDDEN["v"]], groups)
    for group, array in zip(groups, data, strict=True):
        for path, column in zip(group.hidden_paths, group.split_hidden(array), strict=True):
            np.testing.assert_array_equal(column, HIDDEN["v"] if path[-1] == "v" else np.zeros(N))


def test_an_output_that_is_an_old_state_itself():
    info, found = perturbation_of(as_it_is)
    assert [p[-1] for p in found.bypass_hidden_paths] == ["v"] and found.bypass_param_paths == ()
    inputs = info.flat_inputs((X,), {})
    run = lambda v: found.eval_jaxpr(inputs, found.init_perturb_data(), [], [v])[0]
    np.testing.assert_array_equal(jax.jacobian(run)(HIDDEN["v"]), np.eye(N))


def test_an_output_that_overflows_stays_infinite():
    step = lambda w, h, x: (0.9 * h + x @ w, jnp.exp(1e3 * (h + x @ w)))
    info = etrax.extract_module_info(step, X, params=PARAMS["w"], hidden=HIDDEN["v"])
    found = etrax.add_hidden_perturbation_from_minfo(info)
    outs = found.eval_jaxpr(info.flat_inputs((X,), {}), found.init_perturb_data(), [PARAMS["w"]], [HIDDEN["v"]])
    np.testing.assert_array_equal(outs[0], step(PARAMS["w"], HIDDEN["v"], X)[1])
