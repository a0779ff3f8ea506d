"""Learning rules, one file each. See README.md in this folder."""

from ._auto import Sample as Sample
from ._auto import work_of as work_of
from ._by_name import RULES as RULES
from ._by_name import as_rule as as_rule
from ._comparison import COMPARED as COMPARED
from ._comparison import check_budget as check_budget
from ._comparison import compared_rules as compared_rules
from ._d_rtrl import diagonal_transport as diagonal_transport
from ._directional import CallMemory as CallMemory
from ._directional import directional as directional
from ._partition import combined_transport as combined_transport
from ._partition import frozen as frozen
from ._rule import Candidates as Candidates
from ._rule import Rule as Rule
from ._rule import RuleWarning as RuleWarning
from ._rule import without_credit as without_credit
from ._signals import guided_transport as guided_transport
from ._source import Moment as Moment
from ._source import Source as Source
from ._uoro import next_keys as next_keys
from ._uoro import numbers_of as numbers_of
from ._verdicts import Kind as Kind
from ._verdicts import Verdict as Verdict
from ._verdicts import other_signal_verdict as other_signal_verdict
from ._words import words_of as words_of
from .registered import *  # noqa: F403
