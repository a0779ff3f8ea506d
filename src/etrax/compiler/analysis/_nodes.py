"""Nodes of the reach graph: the states, weight ops and outputs of one step, each by its number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, order=True)
class StateNode:
    """The i-th state leaf: hidden leaves come first, then other states."""

    index: int


@dataclass(frozen=True, order=True)
class OpNode:
    """The output of the j-th weight op."""

    index: int


@dataclass(frozen=True, order=True)
class OutputNode:
    """The k-th output leaf of the step."""

    index: int


Node: TypeAlias = StateNode | OpNode | OutputNode
