"""Oracles that ship: slow, short, obvious, and independent of the engine. Check your own model in two lines."""

from ._compare import Comparison as Comparison
from ._compare import GradientError as GradientError
from ._compare import compare as compare
from ._compare import compiler_fault as compiler_fault
from ._oracles import bptt as bptt
from ._oracles import dense_rtrl as dense_rtrl
from ._oracles import finite_differences as finite_differences
from ._rules import RuleRow as RuleRow
from ._rules import RuleTable as RuleTable
from ._rules import compare_rules as compare_rules
