"""What Etrax raises. Each message names what was found, where, and what to do."""

from __future__ import annotations


class EtraxError(Exception):
    """Base of every error that Etrax raises on purpose."""


class CompilationError(EtraxError, ValueError):
    """A model or call that cannot be compiled: bad structure, shape, dtype or use."""


class ArgumentError(EtraxError, ValueError):
    """An argument whose type, structure, shape, dtype or length does not fit."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument that is another kind of thing than is asked for."""


class MissingPackageError(EtraxError, ImportError):
    """An optional package that is not installed."""


class NotSupportedError(EtraxError, NotImplementedError):
    """A model that is well formed but outside what the compiler or a rule can serve."""
