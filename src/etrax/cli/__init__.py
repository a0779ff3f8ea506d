"""The command `etrax`. See README.md in this folder."""

from ._main import main as main
