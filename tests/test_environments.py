"""Every public driver under the settings of JAX by which a caller watches their own code.

`jax.transfer_guard("disallow")`: a call like one before moves nothing between host and device, but for what makes new
arrays or has its data with the host. `jax.numpy_rank_promotion("raise")`: from compiling on, no ranks are joined
silently.
"""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import etrax
from etrax import rl

T, B, I, H = 6, 2, 3, 4
RNG = np.random.RandomState(0)
PARAMS = {k: jnp.asarray(RNG.standard_normal(s) * 0.4) for k, s in (("w", (I, H)), ("b", (H,)))}
XS, YS = (jnp.asarray(RNG.standard_normal((T, B, n))) for n in (I, H))
X, Y, H0, MASK = XS[0], YS[0], jnp.zeros((B, H)), jnp.ones(T)


def new_state(w, b, h, x):
    return jnp.tanh(0.9 * h + x @ w + jnp.broadcast_to(b, h.shape))


def step(p, h, x):
    h = new_state(p["w"], p["b"], h, x)
    return h, h


def loss(output, target):
    return ((output - target) ** 2).mean()


class Net(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b = brainstate.ParamState(PARAMS["w"]), brainstate.ParamState(PARAMS["b"])

    def init_state(self, batch_size=None, **_):
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, H)))

    def update(self, x):
        self.h.value = new_state(self.w.value, self.b.value, self.h.value, x)
        return self.h.value


class Cell(nnx.Module):
    def __init__(self):
        self.w, self.b = nnx.Param(PARAMS["w"]), nnx.Param(PARAMS["b"])

    def __call__(self, h, x):
        h = new_state(self.w[...], self.b[...], h, x)
        return h, h


def learner_of(rule="d_rtrl", **options):
    return etrax.compile(step, rule, X, params=PARAMS, hidden=H0, **options)


def brainstate_online():
    online = etrax.Stateful(Net(), "d_rtrl", X, batch_size=B)
    of_step = lambda x, y: loss(online(x), y)
    of_window = lambda x, y: ((online(etrax.MultiStepData(x)) - y) ** 2).mean((1, 2))
    two = XS[:2]

    def run():
        online(X)
        online(etrax.MultiStepData(two))
        online.etrace_grad(XS, YS, step_fn=of_step)
        online.etrace_grad(XS, YS, step_fn=of_step, mask=MASK, return_value=True, loss_output="scalar", reduction="sum")
        online.etrace_grad(XS, YS, step_fn=of_window, chunk_size=2, return_value=True, loss_output="masked")
        online.etrace_evolve(XS, return_outputs=True)
        online.get_etrace_of("w")
        online.reset_state()

    return run


def nnx_online():
    online = etrax.Stateful(Cell(), "d_rtrl", X, hidden=H0)

    def run():
        online(X)
        online.etrace_grad(XS, YS, step_fn=lambda online, x, y: loss(online(x), y), mask=MASK)
        online.etrace_evolve(XS)
        online.reset_state()

    return run


def pure():
    learner, optimizer = learner_of(), optax.adam(1e-2)
    opt_state, state = optimizer.init(PARAMS), learner.init()
    gradient, train = learner.value_and_grad(loss, window=2), learner.train(optimizer, loss, window=4)
    stream = learner.online(optimizer, loss, window=2)

    def run():
        learner.init()
        learner.init(PARAMS, H0)
        learner.step(PARAMS, state, X)
        gradient(PARAMS, state, XS, YS, MASK)
        train(PARAMS, opt_state, state, XS, YS)
        stream.feed(X, Y)
        stream.flush()
        etrax.testing.compare(learner, loss, PARAMS, H0, XS, YS)

    return run


def by_rule(rule):
    def make():
        learner = learner_of(rule)
        gradient = learner.value_and_grad(loss, window=2)
        return lambda: gradient(PARAMS, learner.init(), XS, YS)

    return make


def trainer():
    trainer = etrax.train.Trainer(learner_of(), optax.adam(1e-2), loss, window=2)
    data = etrax.train.Dataset(np.repeat(XS, 3, 1), np.repeat(YS, 3, 1))

    def run():
        trainer.fit(data, 2, validation=data, key=3, progress=False)
        trainer.fit(data, 1, shuffle=False, progress=False)
        trainer.evaluate(PARAMS, data)

    return run


def measured():
    learner = learner_of("pp_prop")
    meter, state, key = learner.meter(loss, window=2, probes=4), learner.init(), jax.random.key(0)

    def run():
        reading = meter.init(PARAMS, state, key)
        meter.read(meter.update(reading, XS, YS))

    return run


def artifact(folder):
    learner, optimizer = learner_of(), optax.adam(1e-2)
    learner.export(folder / "update.etrax", optimizer, loss)
    update, opt_state, state = etrax.load(folder / "update.etrax"), optimizer.init(PARAMS), learner.init()
    return lambda: update(PARAMS, opt_state, state, X, Y)


def saved(folder):
    tree = {"params": PARAMS, "state": learner_of().init()}

    def run():
        etrax.save(folder / "run", **tree)
        etrax.restore(folder / "run", like=tree)

    return run


class World:
    """An environment as gymnax has them, and one as gymnasium has them."""

    default_params = None
    observation = XS[0, 0]

    def reset(self, key=None, params=None, seed=None):
        return (self.observation, ()) if seed is None and key is not None else (np.asarray(self.observation), {})

    def step(self, *args):
        if len(args) > 1:
            return self.observation, (), jnp.float64(1.0), jnp.bool_(False), {}
        return np.asarray(self.observation), 1.0, False, False, {}


def reinforced():
    def model(w, h, x):
        h = new_state(w["w"], w["b"], h, x)
        return h, (h @ w["policy"], h @ w["value"])

    weights = PARAMS | {"policy": jnp.ones((H, 2)), "value": jnp.ones(H)}
    learner = etrax.compile(model, "d_rtrl", World.observation, params=weights, hidden=jnp.zeros(H))
    agents = [rl.actor_critic(learner, o, discount=0.9, trace_decay=0.8) for o in (rl.obgd(), optax.sgd(0.1))]
    credit = rl.eligibility(learner, lambda output, _: output[1], 0.9)
    seen, scaled, key = rl.normalise(), rl.scale_rewards(0.9), jax.random.key(0)
    reward, done = jnp.ones(()), jnp.array(False)

    def run():
        for agent in agents:
            agent.step(agent.init(key), World.observation, reward, done)
        carried, _ = credit.step(weights, credit.init(), World.observation)
        credit.gradient(carried, reward)
        credit.reset(credit.cut(carried, done), done)
        seen.update(seen.init(World.observation), World.observation)
        scaled.update(scaled.init(), reward, done)
        rl.live_in_gymnasium(agents[0], World(), 3, key, observations=seen, rewards=scaled)

    return run


def in_gymnax():
    def model(w, h, x):
        h = new_state(w["w"], w["b"], h, x)
        return h, h @ w["values"]

    weights = PARAMS | {"values": jnp.ones((H, 2))}
    learner = etrax.compile(model, "d_rtrl", World.observation, params=weights, hidden=jnp.zeros(H))
    agent = rl.q_learning(learner, rl.adaptive_q(decay=0.72), discount=0.9, trace_decay=0.8)
    live = jax.jit(lambda key: rl.live_in_gymnax(agent, World(), 3, key))
    key = jax.random.key(0)
    return lambda: live(key)


RULES = ["tbptt", "pp_prop", "rtrl", "e_prop", "three_factor"]
WITH_ARGUMENTS = [etrax.uoro(1), etrax.kf_rtrl(1), etrax.snap(2), etrax.ottt(0.9), etrax.rflo(0.9)]
DRIVERS = {
    "brainstate": brainstate_online,
    "nnx": nnx_online,
    "pure": pure,
    "trainer": trainer,
    "meter": measured,
    "rl": reinforced,
    "gymnax": in_gymnax,
} | {f"rule {rule}": by_rule(rule) for rule in [*RULES, *WITH_ARGUMENTS]}
IN_A_FOLDER = {"artifact": artifact, "save": saved}


@pytest.fixture(params=[*DRIVERS, *IN_A_FOLDER])
def make(request, tmp_path):
    if request.param in DRIVERS:
        return DRIVERS[request.param]
    return lambda: IN_A_FOLDER[request.param](tmp_path)


@pytest.mark.filterwarnings("ignore::etrax.RuleWarning")
def test_warm_calls_move_nothing(make):
    run = make()
    run()
    with jax.transfer_guard("disallow"):
        run()


@pytest.mark.filterwarnings("ignore::etrax.RuleWarning")
def test_no_ranks_are_joined_from_compiling_on(make):
    with jax.numpy_rank_promotion("raise"):
        make()()


def test_the_guard_of_the_caller_still_holds():
    """What they pass from the host, at every call, is theirs to see."""
    learner = learner_of()
    gradient = learner.value_and_grad(loss, window=2)
    state, inputs = learner.init(), np.asarray(XS)
    gradient(PARAMS, state, inputs, YS)
    with jax.transfer_guard("disallow"), pytest.raises(Exception, match="Disallowed host-to-device"):
        gradient(PARAMS, state, inputs, YS)
