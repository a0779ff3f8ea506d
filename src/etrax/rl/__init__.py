"""Learning from rewards, one step at a time: eligibility traces of the return over a learner's gradient."""

from ._agents import Agent as Agent
from ._agents import AgentInfo as AgentInfo
from ._agents import AgentState as AgentState
from ._agents import actor_critic as actor_critic
from ._agents import q_learning as q_learning
from ._eligibility import Credit as Credit
from ._eligibility import Eligibility as Eligibility
from ._eligibility import eligibility as eligibility
from ._normalise import Normaliser as Normaliser
from ._normalise import normalise as normalise
from ._normalise import scale_rewards as scale_rewards
from ._step_sizes import adaptive_q as adaptive_q
from ._step_sizes import intentional as intentional
from ._step_sizes import obgd as obgd
from ._worlds import Life as Life
from ._worlds import WorldError as WorldError
from ._worlds import live_in_gymnasium as live_in_gymnasium
from ._worlds import live_in_gymnax as live_in_gymnax
