"""Learning rules, one file each. See README.md in this folder."""

from collections.abc import Callable

from ._d_rtrl import d_rtrl as d_rtrl
from ._d_rtrl import diagonal_transport as diagonal_transport
from ._e_prop import e_prop as e_prop
from ._ostl import ostl as ostl
from ._ottt import ottt as ottt
from ._partition import frozen as frozen
from ._partition import partition as partition
from ._pp_prop import pp_prop as pp_prop
from ._rflo import rflo as rflo
from ._rtrl import rtrl as rtrl
from ._rule import Rule as Rule
from ._rule import RuleWarning as RuleWarning
from ._snap import snap as snap
from ._synthetic import synthetic as synthetic
from ._tbptt import tbptt as tbptt
from ._three_factor import three_factor as three_factor
from ._uoro import uoro as uoro
from ._verdicts import Kind as Kind
from ._verdicts import Verdict as Verdict
from ._words import words_of as words_of

# The rules that `etrax.compile` knows by name.
RULES: dict[str, Callable[..., Rule]] = {
    f.__name__: f
    for f in (
        tbptt, d_rtrl, pp_prop, e_prop, ostl, snap, rtrl, uoro, ottt, rflo, three_factor, synthetic, partition,
    )
}  # fmt: skip
