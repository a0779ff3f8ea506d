"""Derivatives of a step's outputs along paths that cross no new hidden state.

A spike that is read before the reset, or a readout inside the step, depends on parameters and on the states before the
step directly. With θ and h the copies of those that have such a path, and every other value held,

    output = o + d(θ, h) − d(θ, h),  the second d without derivatives,

where d runs the step on the copies with its new hidden states held. Its derivatives in the copies are those along these
paths alone; what goes through the new hidden states is that of the perturbations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import jax
import jax.numpy as jnp
from jax import lax

from .._compat import INLINED, JaxprEqn, Var, is_inexact, open_jaxpr, run_equation
from ..compiler.ir import Address, Path, interpret
from ._module_info import ModuleInfo

# A loop without a reverse derivative, and an explicit stop: no derivative passes them.
_STOPS = ("while", "stop_gradient")


class Bypass:
    """Which parameters and hidden states have such a path; the step is searched when it is first asked for."""

    def __init__(self, info: ModuleInfo):
        self.info = info

    def __repr__(self) -> str:
        return f"Bypass of {list(self.param_paths)} and {list(self.hidden_paths)}"

    @property
    def param_paths(self) -> tuple[Path, ...]:
        return tuple(path for path in self.info.weight_path_to_invars if path in self._sources)

    @property
    def hidden_paths(self) -> tuple[Path, ...]:
        return tuple(p for p, v in self.info.hidden_path_to_invar.items() if v in self._sources and is_inexact(v.aval))

    @property
    def vars(self) -> tuple[Var, ...]:
        """The variables of `module_info.jaxpr` that the copies of parameters stand for."""
        return tuple(v for path in self.param_paths for v in self.info.weight_path_to_invars[path])

    @property
    def hidden_vars(self) -> tuple[Var, ...]:
        return tuple(self.info.hidden_path_to_invar[path] for path in self.hidden_paths)

    @property
    def _ends(self) -> list[int]:
        """The numbers of the jaxpr's outputs that can be a path's end: all but new hidden states, and parameters and
        other states that are passed on."""
        info, jaxpr = self.info, self.info.jaxpr
        hidden, passed_on = set(info.hidden_path_to_outvar.values()), set(jaxpr.invars)
        outs = [v if isinstance(v, Var) and is_inexact(v.aval) and v not in hidden else None for v in jaxpr.outvars]
        return [
            k
            for k, v in enumerate(outs[: info.num_var_out + info.num_var_state])
            if v is not None and (k < info.num_var_out or v not in passed_on)
        ]

    @cached_property
    def _sources(self) -> frozenset[Path | Var]:
        """Paths of parameters, and variables of hidden states, that reach an output without crossing a new state."""
        jaxpr, consts = open_jaxpr(self.info.closed_jaxpr)
        cut = set(self.info.hidden_path_to_outvar.values())
        # Values are sets of sources: this is an abstract interpreter over what a variable depends on.
        start = {v: frozenset([path]) for path, vs in self.info.weight_path_to_invars.items() for v in vs}
        start |= {v: frozenset([v]) for v in self.info.hidden_path_to_invar.values()}

        def handle(site: Address, eqn: JaxprEqn, operands: list[frozenset]) -> list[frozenset] | None:
            crossed = [len(site) == 1 and v in cut for v in eqn.outvars]  # new states are made by the step itself
            if eqn.primitive.name in INLINED and not any(crossed):
                return None
            sources = [s for s in operands if isinstance(s, frozenset)]  # the others are literals
            reached = frozenset() if eqn.primitive.name in _STOPS else frozenset().union(*sources)
            return [frozenset() if stop or not is_inexact(v.aval) else reached
                    for stop, v in zip(crossed, eqn.outvars, strict=True)]  # fmt: skip

        inputs = [start.get(v, frozenset()) for v in jaxpr.invars]
        outs = interpret(jaxpr, [frozenset() for _ in consts], inputs, handle)
        return frozenset().union(*(outs[k] for k in self._ends if isinstance(outs[k], frozenset)))

    def attach(
        self,
        outs: list[jax.Array],
        inputs: Sequence[jax.Array],
        params: Sequence[jax.Array],
        hidden: Sequence[jax.Array],
    ) -> list[jax.Array]:
        """The outputs of a step with their derivatives in the copies; no number changes."""
        jaxpr, consts = open_jaxpr(self.info.closed_jaxpr)
        cut = set(self.info.hidden_path_to_outvar.values())
        copies = dict(zip([*self.vars, *self.hidden_vars], [*params, *hidden], strict=True))
        # All that is no copy is a constant here, so that only the paths asked for have a derivative.
        args = [copies.get(v, lax.stop_gradient(x)) for v, x in zip(jaxpr.invars, inputs, strict=True)]

        def handle(site: Address, eqn: JaxprEqn, operands: list[jax.Array]) -> list[jax.Array] | None:
            stopped = [len(site) == 1 and v in cut for v in eqn.outvars]
            if eqn.primitive.name in _STOPS:
                return run_equation(eqn, [lax.stop_gradient(x) for x in operands])
            if not any(stopped):
                return None
            results = run_equation(eqn, operands)
            return [lax.stop_gradient(x) if stop else x for stop, x in zip(stopped, results, strict=True)]

        direct = interpret(jaxpr, consts, args, handle)
        merged = list(outs)
        for k in self._ends:
            d = direct[k]
            # Infinity minus infinity is not a number, so an output that overflows stays as it is.
            merged[k] = jnp.where(jnp.isfinite(d), outs[k] + (d - lax.stop_gradient(d)), outs[k])
        return merged
