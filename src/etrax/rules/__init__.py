"""Learning rules, one file each. See README.md in this folder."""

from collections.abc import Callable

from . import registered
from ._d_rtrl import diagonal_transport as diagonal_transport
from ._partition import frozen as frozen
from ._rule import Rule as Rule
from ._rule import RuleWarning as RuleWarning
from ._verdicts import Kind as Kind
from ._verdicts import Verdict as Verdict
from ._words import words_of as words_of
from .registered import *  # noqa: F403

# The rules that `etrax.compile` knows by name.
RULES: dict[str, Callable[..., Rule]] = {
    name: rule for name, rule in vars(registered).items() if not name.startswith("_")
}
