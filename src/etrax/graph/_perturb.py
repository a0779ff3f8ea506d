"""Hidden perturbation: h = f(x) becomes h = f(x) + p, so that ∂L/∂h = ∂L/∂p."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from .._compat import JaxprEqn, Literal, Var, build_closed, is_inexact, new_variable, open_jaxpr, renamed, zeros_of
from ..compiler.ir import Path, PyTree, format_path, interpret
from ._bypass import Bypass
from ._columns import HiddenObject
from ._group import HiddenGroup
from ._module_info import HiddenLeaf, ModuleInfo
from ._show import show


class HiddenPerturbation(NamedTuple):
    """The step with one more input per differentiable hidden state, added where its new value is computed.

    All that the step computes from the new value later on, the output above all, sees the perturbation.
    `perturb_jaxpr` is closed: it takes what `ModuleInfo.jaxpr` takes, then the perturbations.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> [p.shape for p in learner.graph.hidden_perturb.init_perturb_data()]
    [(4,)]
    """

    perturb_vars: list[Var]
    perturb_hidden_paths: list[Path]
    perturb_hidden_states: list[HiddenObject]
    perturb_jaxpr: PyTree
    bypass: Bypass | None = None

    @property
    def bypass_param_paths(self) -> tuple[Path, ...]:
        """Parameters that reach an output of the step along a path that crosses no new hidden state."""
        return self.bypass.param_paths if self.bypass else ()

    @property
    def bypass_vars(self) -> tuple[Var, ...]:
        """Their variables in `ModuleInfo.jaxpr`, one for each leaf: `bypass_data` are copies of these."""
        return self.bypass.vars if self.bypass else ()

    @property
    def bypass_hidden_paths(self) -> tuple[Path, ...]:
        """Hidden states whose values before the step reach an output in that way."""
        return self.bypass.hidden_paths if self.bypass else ()

    @property
    def bypass_hidden_vars(self) -> tuple[Var, ...]:
        """Their variables in `ModuleInfo.jaxpr`: `bypass_hidden_data` are copies of these."""
        return self.bypass.hidden_vars if self.bypass else ()

    def _checked(self, perturb_data: Iterable[object]) -> list[jax.Array]:
        flat = jax.tree.leaves(list(perturb_data))
        if len(flat) != len(self.perturb_vars):
            raise ValueError(
                f"got {len(flat)} perturbations, expected {len(self.perturb_vars)}: one for each of "
                f"{', '.join(map(format_path, self.perturb_hidden_paths))}."
            )
        return flat

    def eval_jaxpr(
        self,
        inputs: Iterable[object],
        perturb_data: Iterable[object],
        bypass_data: Sequence[object] | None = None,
        bypass_hidden_data: Sequence[object] | None = None,
    ) -> list[jax.Array]:
        """Run on what `ModuleInfo.jaxpr` takes (flat) and one perturbation per hidden state.

        With copies of the values of `bypass_vars` and `bypass_hidden_vars`, the outputs have derivatives in them along
        the paths that cross no new hidden state; the outputs themselves are the same.
        """
        jaxpr, consts = open_jaxpr(self.perturb_jaxpr)
        flat, data = jax.tree.leaves(list(inputs)), self._checked(perturb_data)
        if len(flat) + len(data) != len(jaxpr.invars):
            raise ValueError(
                f"got {len(flat)} inputs, expected {len(jaxpr.invars) - len(data)}: the leaves of the model's "
                "arguments, then of the values of its states."
            )
        for path, variable, value in zip(self.perturb_hidden_paths, self.perturb_vars, data, strict=True):
            if jnp.shape(value) != variable.aval.shape:
                raise ValueError(
                    f"the perturbation of {format_path(path)} has shape {list(jnp.shape(value))}, expected "
                    f"{list(variable.aval.shape)}: that of the state."
                )
        outs = interpret(jaxpr, consts, [*flat, *data], lambda *_: None)
        if bypass_data is None and bypass_hidden_data is None:
            return outs
        params = _counted(bypass_data, self.bypass_vars, "parameters", self.bypass_param_paths)
        hidden = _counted(bypass_hidden_data, self.bypass_hidden_vars, "hidden states", self.bypass_hidden_paths)
        return outs if self.bypass is None else self.bypass.attach(outs, flat, params, hidden)

    def init_perturb_data(self) -> list[jax.Array]:
        """Zeros: the step as it is."""
        return [zeros_of(v.aval) for v in self.perturb_vars]

    def perturb_data_to_hidden_group_data(
        self, perturb_data: Iterable[object], hidden_groups: Iterable[HiddenGroup]
    ) -> list[jax.Array]:
        """One array (..., *varshape, num_state) per group, behind the leading axes of the data; units are dropped."""
        values = dict(zip(self.perturb_hidden_paths, self._checked(perturb_data), strict=True))
        hidden_groups = list(hidden_groups)
        for group in hidden_groups:
            for path in group.hidden_paths:
                if path not in values:
                    raise ValueError(f"group {group.index} holds state {format_path(path)}, which has no perturbation.")
        return [g.concat_hidden([values[p] for p in g.hidden_paths]) for g in hidden_groups]

    def bypass_hidden_data_to_hidden_group_data(
        self, bypass_hidden_data: Sequence[object], hidden_groups: Sequence[HiddenGroup]
    ) -> list[jax.Array]:
        """One array (*varshape, num_state) per group, with zeros for states that have no such path."""
        paths = self.bypass_hidden_paths
        data = _counted(bypass_hidden_data, self.bypass_hidden_vars, "hidden states", paths)
        # A state without such a path has the derivative zero along it.
        values = dict(zip(self.perturb_hidden_paths, self.init_perturb_data(), strict=True))
        values |= dict(zip(paths, data, strict=True))
        return [g.concat_hidden([values[p] for p in g.hidden_paths]) for g in hidden_groups]

    def dict(self) -> dict[str, object]:
        return self._asdict()

    @property
    def _brief(self) -> str:
        return f"HiddenPerturbation of {', '.join(map(format_path, self.perturb_hidden_paths))}"

    def __repr__(self) -> str:
        return show(self)


def _counted(
    data: Sequence[object] | None, variables: Sequence[Var], what: str, paths: Sequence[Path]
) -> list[jax.Array]:
    """The leaves of copies, one for each of the variables."""
    flat = jax.tree.leaves(list(data or ()))
    if len(flat) != len(variables):
        raise ValueError(
            f"got {len(flat)} copies of {what}, expected {len(variables)}: one for each leaf of "
            f"{', '.join(map(format_path, paths)) or 'none'}."
        )
    return flat


def perturb(info: ModuleInfo) -> HiddenPerturbation:
    """Add a perturbation to every hidden state of a traced step that has derivatives."""
    perturbed = perturb_jaxpr(info.closed_jaxpr, info.hidden_leaves, len(info.step.jaxpr.eqns))
    return perturbed._replace(bypass=Bypass(info))


def perturb_jaxpr(closed_jaxpr: PyTree, hidden: Sequence[HiddenLeaf], originals: int) -> HiddenPerturbation:
    """Add a perturbation to every hidden state that has derivatives; equations from number `originals` on are copies.

    Each of these makes a state of its own from what another state, or none, is made of.
    """
    jaxpr, consts = open_jaxpr(closed_jaxpr)
    leaves = [leaf for leaf in hidden if is_inexact(leaf.invar.aval)]
    perturbations = {leaf.outvar: new_variable(leaf.outvar.aval) for leaf in leaves}
    clean: dict[Var, Var] = {}  # by the variable of a state, that of its value before it is perturbed
    eqns: list[JaxprEqn] = []
    for i, eqn in enumerate(jaxpr.eqns):
        if i >= originals:  # a copy is one of the clean value: two equal states are perturbed apart
            eqn = renamed(eqn, {v: clean[v] for v in eqn.invars if not isinstance(v, Literal) and v in clean})
        states = [v for v in eqn.outvars if v in perturbations]
        clean.update((v, new_variable(v.aval)) for v in states)
        # All that reads a state later reads its old variable, which is now the sum.
        eqns.append(renamed(eqn, {v: clean[v] for v in states}) if states else eqn)
        eqns += [_plus(clean[v], perturbations[v], v) for v in states]
    new = list(perturbations.values())
    closed = build_closed([*jaxpr.invars, *new], jaxpr.outvars, eqns, jaxpr, jaxpr.constvars, consts)
    return HiddenPerturbation(new, [leaf.path for leaf in leaves], [leaf.state for leaf in leaves], closed)


def _plus(a: Var, b: Var, result: Var) -> JaxprEqn:
    """The equation result = a + b."""
    eqn = _sum_of(result.aval.shape, result.aval.dtype)
    return renamed(eqn, {**dict(zip(eqn.invars, (a, b), strict=True)), eqn.outvars[0]: result})


# States of one shape share the equation: it is traced once, and renamed for each.
@lru_cache(maxsize=256)
def _sum_of(shape: tuple[int, ...], dtype: DTypeLike) -> JaxprEqn:
    """An equation that adds two arrays."""
    aval = jax.ShapeDtypeStruct(shape, dtype)
    (eqn,) = open_jaxpr(jax.make_jaxpr(lax.add)(aval, aval))[0].eqns
    return eqn
