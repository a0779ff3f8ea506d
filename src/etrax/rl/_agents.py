r"""Agents that learn at every step of one stream: no replay, no batches, memory constant in its length.

An agent is two pure functions over one state. `step` is told what the world shows now, what the last action brought,
and whether that ended an episode (the observation is then the first of the next one); it learns, and says what to do:

    state = agent.init(key)
    state, info = agent.step(state, observation, reward, done)      # info.action, info.error, info.step_size

The order within a step is that of the theory: the temporal-difference error is formed with the parameters by which the
last action was chosen, then parameters change, then the next action is chosen by the new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .._arguments import check_decay, check_key, check_number
from .._compat import transfers_meant
from ..compiler.ir import PyTree, Role
from ..learn import Learner, Optimizer, check_learner, check_optimizer
from ._eligibility import Credit, eligibility
from ._step_sizes import effective_step_size, takes_error


class AgentState(NamedTuple):
    """What the next step needs.

    `observation` and `action` are the last ones, `score` is what the model said of them, `hidden` is its state after it
    saw them, and `credit` is from before that. `waiting` is true until the first observation has come; `steps`
    is the number of observations so far.
    """

    params: PyTree
    opt_state: PyTree
    credit: Credit
    hidden: PyTree
    observation: PyTree
    action: Array
    score: Array
    waiting: Array
    key: Array
    steps: Array


class AgentInfo(NamedTuple):
    """What one may look at: the action to take, its value, the last error δ, and ‖update‖ / ‖δ z‖."""

    action: Array
    value: Array
    error: Array
    step_size: Array


class Agent(NamedTuple):
    """`init(key, params=None) -> state` and `step(state, observation, reward, done) -> (state, info)`, both pure."""

    init: Callable[..., AgentState]
    step: Callable[..., tuple[AgentState, AgentInfo]]


class Choice(NamedTuple):
    """What a policy makes of the outputs: an action, what it is worth, and whether the trace of the return goes on."""

    action: Array
    value: Array
    goes_on: Array


def actor_critic(
    learner: Learner, optimizer: Optimizer, *, discount: float, trace_decay: float | PyTree, value_weight: float = 1.0,
    entropy: float = 0.0,
) -> Agent:  # fmt: skip
    r"""An actor and a critic in one model, whose output is `(logits, value)`.

    The score of a step is :math:`\log\pi(a) + c\,v + \beta\,\mathrm{sign}(\delta)\,H(\pi)`, with c the `value_weight`
    and β the `entropy` weight. `trace_decay` is λ: one number, or a tree of them that begins like the parameters.
    `optimizer` is a step size of `etrax.rl`, or any optax optimizer, which is then given :math:`-\delta z`.

    >>> import etrax, jax, jax.numpy as jnp
    >>> def model(w, h, x):
    ...     h = 0.9 * h + x @ w["in"]
    ...     return h, (h @ w["actor"], h @ w["critic"])
    >>> w = {"in": jnp.ones((2, 4)), "actor": jnp.zeros((4, 3)), "critic": jnp.zeros(4)}
    >>> learner = etrax.compile(model, "d_rtrl", jnp.zeros(2), params=w, hidden=jnp.zeros(4))
    >>> agent = etrax.rl.actor_critic(learner, etrax.rl.obgd(), discount=0.99, trace_decay=0.9)
    >>> state = agent.init(jax.random.key(0))
    >>> for reward in (0.0, 1.0):
    ...     state, info = agent.step(state, jnp.ones(2), reward, False)
    >>> info.action.shape, bool(info.error > 0)
    ((), True)
    """
    value_weight = check_number("actor_critic", "value_weight", value_weight, 0, float("inf"), "of at least 0")
    entropy = check_number("actor_critic", "entropy", entropy, 0, float("inf"), "of at least 0")

    def choose(output: PyTree, key: Array, steps: Array) -> Choice:
        logits, value = output
        return Choice(jax.random.categorical(key, logits), value, jnp.array(True))

    def score(output: PyTree, target: tuple[Array, Array]) -> Array:
        (logits, value), (action, error) = output, target
        log_policy = jax.nn.log_softmax(logits)
        spread = -(jnp.exp(log_policy) * log_policy).sum()
        return log_policy[action] + value_weight * value + entropy * jnp.sign(error) * spread

    def value_after(output: PyTree) -> Array:
        return output[1]

    return _agent("actor_critic", learner, optimizer, discount, trace_decay, choose, score, value_after)


def q_learning(
    learner: Learner, optimizer: Optimizer, *, discount: float, trace_decay: float | PyTree,
    exploration: float | Callable[[Array], Array] = 0.01,
) -> Agent:  # fmt: skip
    r"""Watkins' Q(λ) of a model whose output holds a value for each action.

    `exploration` is ε, the probability of a random action: a number, or a function of the number of steps (an optax
    schedule). After an action that was not the best one the trace of the return is emptied: what comes then says
    nothing of the actions before.

    >>> import etrax, jax, jax.numpy as jnp
    >>> model = lambda w, h, x: (0.9 * h + x @ w["in"], (0.9 * h + x @ w["in"]) @ w["q"])
    >>> w = {"in": jnp.ones((2, 4)), "q": jnp.zeros((4, 3))}
    >>> learner = etrax.compile(model, "d_rtrl", jnp.zeros(2), params=w, hidden=jnp.zeros(4))
    >>> agent = etrax.rl.q_learning(learner, etrax.rl.adaptive_q(decay=0.8), discount=0.99, trace_decay=0.8)
    >>> state, info = agent.step(agent.init(jax.random.key(0)), jnp.ones(2), 0.0, False)
    >>> int(state.steps)
    1
    """
    if callable(exploration):
        schedule = exploration
    else:
        schedule = _constant(check_decay("q_learning", "exploration", exploration, closed=True))

    def choose(output: Array, key: Array, steps: Array) -> Choice:
        explore, which = jax.random.split(key)
        best = jnp.argmax(output)
        other = jax.random.randint(which, (), 0, output.shape[-1])
        action = jnp.where(jax.random.bernoulli(explore, schedule(steps)), other, best)
        return Choice(action, output[action], output[action] >= output[best])

    def score(output: Array, target: tuple[Array, Array]) -> Array:
        return output[target[0]]

    return _agent("q_learning", learner, optimizer, discount, trace_decay, choose, score, jnp.max)


def _constant(rate: float) -> Callable[[Array], Array]:
    return lambda steps: jnp.asarray(rate)


def _agent(
    name: str, learner: Learner, optimizer: Optimizer, discount: float, trace_decay: float | PyTree,
    choose: Callable[[PyTree, Array, Array], Choice], score: Callable[[PyTree, Any], Array],
    value_after: Callable[[PyTree], Array],
) -> Agent:  # fmt: skip
    """An agent from how it chooses, what it credits, and what it expects of the observation that follows."""
    check_learner(learner)
    check_optimizer(optimizer)
    discount = check_decay(name, "discount", discount, closed=True)
    decays = jax.tree.map(lambda rate: discount * check_decay(name, "trace_decay", rate, closed=True), trace_decay)
    traces = eligibility(learner, score, decays)

    @transfers_meant()
    def init(key: Array, params: PyTree = None) -> AgentState:
        params = learner.params if params is None else params
        credit = traces.init(params)
        shown = _nothing_seen(learner)
        zero = jnp.zeros(())
        return AgentState(
            params, optimizer.init(params), credit, learner.hidden, shown, jnp.zeros((), jnp.int32), zero,
            jnp.array(True), check_key("key", key), jnp.zeros((), jnp.int32),
        )  # fmt: skip

    def learn(state: AgentState, observation: PyTree, reward: Array, done: Array) -> tuple[AgentState, Array, Array]:
        """δ, the trace of the last step, and the update; then a new episode where the last one has ended."""
        _, output = learner.plain_step(state.params, state.hidden, observation)
        error = reward + jnp.where(done, 0.0, discount * value_after(output)) - state.score
        credit, _ = traces.step(state.params, state.credit, state.observation, (state.action, error))
        if takes_error(optimizer):
            extra = {"error": error, "grads": credit.grads}
            updates, opt_state = optimizer.update(credit.trace, state.opt_state, state.params, **extra)
            step_size = opt_state.step_size
        else:
            updates, opt_state = optimizer.update(traces.gradient(credit, error), state.opt_state, state.params)
            step_size = effective_step_size(updates, credit.trace, error)
        params = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), state.params, updates)
        credit = traces.reset(credit, done, params)
        hidden = jax.tree.map(lambda a, b: jnp.where(done, a, b), learner.hidden, state.hidden)
        return state._replace(params=params, opt_state=opt_state, credit=credit, hidden=hidden), error, step_size

    def step(state: AgentState, observation: PyTree, reward: Array, done: Array) -> tuple[AgentState, AgentInfo]:
        observation = jax.tree.map(jnp.asarray, observation)
        reward, done = jnp.asarray(reward, state.score.dtype), jnp.asarray(done, bool)
        learned, error, step_size = learn(state, observation, reward, done)
        # Before the first observation there was no action to learn from.
        state = jax.tree.map(lambda old, new: jnp.where(state.waiting, old, new), state, learned)
        error, step_size = (jnp.where(state.waiting, 0.0, a) for a in (error, step_size))
        key, now = jax.random.split(state.key)
        hidden, output = learner.plain_step(state.params, state.hidden, observation)
        choice = choose(output, now, state.steps)
        credit = traces.cut(state.credit, ~choice.goes_on)
        state = AgentState(
            state.params, state.opt_state, credit, hidden, observation, choice.action.astype(jnp.int32),
            choice.value.astype(state.score.dtype),
            jnp.array(False), key, state.steps + 1,
        )  # fmt: skip
        return state, AgentInfo(state.action, choice.value, error, step_size)

    return Agent(init, jax.jit(step))


def _nothing_seen(learner: Learner) -> PyTree:
    """Inputs of one step, all zero, as the step takes them."""
    step = learner.facts.step
    leaves = [jnp.zeros(leaf.aval.shape, leaf.aval.dtype) for leaf in step.select(Role.INPUT)]
    inputs = jax.tree.unflatten(step.trees[Role.INPUT], leaves)
    return inputs[0] if len(inputs) == 1 else inputs
