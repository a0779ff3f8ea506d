"""Learning from rewards, one step at a time: eligibility traces of the return over a learner's gradient."""

from ._eligibility import Credit as Credit
from ._eligibility import Eligibility as Eligibility
from ._eligibility import eligibility as eligibility
