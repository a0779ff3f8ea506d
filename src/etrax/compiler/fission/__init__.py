"""Splitting a loop over steps: what is on no cycle runs for all steps at once."""

from ._fission import split_scan as split_scan
from ._schedule import Part as Part
from ._schedule import Parted as Parted
from ._schedule import Schedule as Schedule
from ._schedule import products_to_part as products_to_part
from ._schedule import schedule as schedule
