"""An agent in a world: environments of gymnax in one scan, those of gymnasium in a Python loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._arguments import check_key, check_whole
from .._compat import transfers_meant
from .._errors import ArgumentError
from ..compiler.ir import PyTree
from ._agents import Agent, AgentState
from ._normalise import Normaliser


class WorldError(ArgumentError):
    """What the world gave cannot be learned from. `state` is that of the agent before it, from which one can go on."""

    def __init__(self, message: str, state: AgentState):
        super().__init__(message)
        self.state = state


class Life(NamedTuple):
    """Per step: the reward, whether it ended an episode, the error δ, and the effective step size."""

    reward: Array
    done: Array
    error: Array
    step_size: Array


def live_in_gymnax(
    agent: Agent, env: Any, steps: int, key: Array, *, env_params: Any = None, params: PyTree = None,
    observations: Normaliser | None = None, rewards: Normaliser | None = None,
    see: Callable[[Array], PyTree] = lambda observation: observation,
) -> tuple[AgentState, Life]:  # fmt: skip
    """An agent in an environment of gymnax (or any with its `reset` and `step`), in one `scan`: `jit` and `vmap` it.

    `observations` and `rewards` normalise what the agent is given; the rewards that are returned are the world's own.
    `see` makes the model's input of an observation. Episodes that end begin again by themselves.
    """
    steps = check_whole("steps", steps, "steps")
    env_params = env.default_params if env_params is None else env_params
    start, first, others = jax.random.split(check_key("key", key), 3)
    observation, world = env.reset(first, env_params)
    state = agent.init(start, params)
    normaliser = observations.init(observation) if observations is not None else ()
    scaled = rewards.init() if rewards is not None else ()

    def one(carry: Any, key: Array) -> tuple[Any, Life]:
        state, world, observation, reward, done, (normaliser, scaled) = carry
        shown, scaled_reward = observation, reward
        if observations is not None:
            normaliser, shown = observations.update(normaliser, observation)
        if rewards is not None:
            scaled, scaled_reward = rewards.update(scaled, reward, done)
        state, info = agent.step(state, see(shown), scaled_reward, done)
        # From gymnax 1.0 on, an episode that ended and one that was cut short are told apart.
        observation, world, reward, *ends, _ = env.step(key, world, info.action, env_params)
        done = jnp.stack([jnp.asarray(end, bool) for end in ends]).any()
        reward = jnp.asarray(reward, jnp.zeros(()).dtype)
        carry = state, world, observation, reward, done, (normaliser, scaled)
        return carry, Life(reward, done, info.error, info.step_size)

    with transfers_meant():
        begin = state, world, observation, jnp.zeros(()), jnp.array(False), (normaliser, scaled)
    (state, *_), life = jax.lax.scan(one, begin, jax.random.split(others, steps))
    return state, life


@transfers_meant()  # the world lies with the host
def live_in_gymnasium(
    agent: Agent, env: Any, steps: int, key: Array, *, params: PyTree = None, observations: Normaliser | None = None,
    rewards: Normaliser | None = None, see: Callable[[Array], PyTree] = lambda observation: observation,
) -> tuple[AgentState, Life]:  # fmt: skip
    """An agent in an environment of gymnasium, which is no JAX program: a Python loop around the compiled agent.

    An observation or a reward that is not finite raises a `WorldError`, which names the step and has the agent's state
    before it.
    """
    steps = check_whole("steps", steps, "steps")
    key = check_key("key", key)
    state = agent.init(key, params)
    observation, _ = env.reset(seed=int(jax.random.randint(key, (), 0, 2**31 - 1)))
    normaliser = observations.init(observation) if observations is not None else ()
    scaled = rewards.init() if rewards is not None else ()
    reward, done, rows = 0.0, False, []
    for number in range(steps):
        if not (np.isfinite(np.asarray(observation, float)).all() and np.isfinite(reward)):
            raise WorldError(
                f"the environment returned an observation or a reward that is not finite at step {number}; the `state` "
                "of this error is the agent before it.",
                state,
            )
        shown, scaled_reward = jnp.asarray(observation), jnp.asarray(reward)
        if observations is not None:
            normaliser, shown = observations.update(normaliser, shown)
        if rewards is not None:
            scaled, scaled_reward = rewards.update(scaled, scaled_reward, done)
        state, info = agent.step(state, see(shown), scaled_reward, done)
        observation, reward, ended, cut_short, _ = env.step(int(info.action))
        done = bool(ended or cut_short)
        if done:
            observation, _ = env.reset()
        rows.append((float(reward), done, info.error, info.step_size))
    return state, Life(*(jnp.asarray(np.array(column)) for column in zip(*rows, strict=True)))
