"""Operations of one's own: there a primitive with rules of its traces, here a function that is read as what it does."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import jax

from ...compiler.ir import PyTree


class ETPPrimitive:
    """A named operation. `bind` runs it; Etrax reads what it is made of, so the rules of its traces are not needed."""

    def __init__(self, name: str):
        self.name = name
        self.rules: dict[str, Callable | None] = {}

    def def_impl(self, impl: Callable[..., object]) -> None:
        self._impl = impl

    def bind(self, *args: jax.Array, **params: object) -> PyTree:
        return self._impl(*args, **params)

    def register_dt_to_t(self, fn: Callable) -> None:
        self.register_etp_rules(dt_to_t=fn)

    def register_xy_to_dw(self, fn: Callable) -> None:
        self.register_etp_rules(xy_to_dw=fn)

    def register_init_drtrl(self, fn: Callable) -> None:
        self.register_etp_rules(init_drtrl=fn)

    def register_init_pp(self, fn: Callable) -> None:
        self.register_etp_rules(init_pp=fn)

    def register_etp_rules(self, **rules: Callable | None) -> None:
        """Rules of its traces, kept and not used; the first one of an operation warns."""
        if not self.rules:
            warnings.warn(
                f"the rules of {self.name!r} are not used: Etrax reads the derivatives and the trace of an operation "
                "off its implementation. A rule that says anything else has no effect; `etrax.register_weight_op` "
                "takes a rule that has.",
                stacklevel=3,
            )
        self.rules.update(rules)

    def __repr__(self) -> str:
        return self.name


def register_primitive(
    name: str, impl_fn: Callable[..., object], *, batched: bool = False, gradient_enabled: bool = False,
    trainable_invars_fn: Callable[..., dict[str, int]] | None = None, x_invar_index: int | None = 0,
    y_outvar_index: int = 0,
) -> ETPPrimitive:  # fmt: skip
    """An operation that runs `impl_fn`. What the arguments say of its weights, Etrax finds in the function itself.

    >>> import jax.numpy as jnp
    >>> double = register_primitive("double", lambda x, w: 2 * x @ w)
    >>> double.bind(jnp.ones(2), jnp.ones((2, 1))).tolist()
    [4.0]
    """
    primitive = ETPPrimitive(name)
    primitive.def_impl(impl_fn)
    return primitive
