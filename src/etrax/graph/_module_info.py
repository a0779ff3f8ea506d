"""The traced step as one closed jaxpr: inputs and states in, outputs and states out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from .._compat import Jaxpr, Literal, Var, build_closed, open_jaxpr, shape_struct
from .._errors import CompilationError
from ..compiler.ir import Bound, Path, PyTree, Role, Step, format_path, interpret
from ._columns import HiddenObject
from ._show import show
from ._slices import with_separate_hidden_outputs

# Values of states by path; quantities where the model's are.
Values: TypeAlias = dict[Path, PyTree]
# Values to start from: by path, or in the order of the compiled states; None: the model's current ones.
OldValues: TypeAlias = Mapping[Path, object] | Sequence[object] | None
# The model's output, new hidden values, new other values, and all values by variable of the jaxpr.
StepResult: TypeAlias = tuple[PyTree, Values, Values, dict[Var, jax.Array | None]]


class HiddenLeaf(NamedTuple):
    """A hidden state of a jaxpr: its path, the object that holds it, and its variables before and after the step."""

    path: Path
    state: HiddenObject
    invar: Var
    outvar: Var


class ModuleInfo(NamedTuple):
    """A model's step: its jaxpr, and which variable is which state.

    `closed_jaxpr` takes the leaves of the inputs, then those of `compiled_model_states` in order: parameters, hidden,
    other, each as the model's step meets them. It gives the leaves of the outputs, then those of the same states, then
    the variables added by `add_jaxpr_outs`. `retrieved_model_states` are all states of the model by path, touched by
    the step or not; a parameter and a state of one path are at `('params', *path)` and `('hidden', *path)`.
    `state_id_to_path` is keyed by `id(state)`, for who holds a state and wants its path.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> len(learner.graph.module_info.jaxpr.eqns) > 0
    True
    """

    bound: Bound
    step: Step
    closed_jaxpr: PyTree  # JAX has no public name for its class in every version
    num_var_out: int
    num_var_state: int
    retrieved_model_states: Mapping[Path, PyTree]
    compiled_model_states: tuple[PyTree, ...]
    compiled_state_paths: tuple[Path, ...]
    state_id_to_path: dict[int, Path]
    weight_invars: tuple[Var, ...]
    weight_path_to_invars: dict[Path, tuple[Var, ...]]
    invar_to_weight_path: dict[Var, Path]
    hidden_path_to_invar: dict[Path, Var]
    hidden_path_to_outvar: dict[Path, Var]
    invar_to_hidden_path: dict[Var, Path]
    outvar_to_hidden_path: dict[Var, Path]
    hidden_outvar_to_invar: dict[Var, Var]

    @property
    def jaxpr(self) -> Jaxpr:
        """The bare jaxpr."""
        return open_jaxpr(self.closed_jaxpr)[0]

    @property
    def hidden_leaves(self) -> tuple[HiddenLeaf, ...]:
        """The hidden states in the order of the model."""
        handles = {e.path: e.handle for e in self.bound.states if e.role is Role.HIDDEN}
        pairs = self.hidden_path_to_invar.items()
        return tuple(HiddenLeaf(path, handles[path], v, self.hidden_path_to_outvar[path]) for path, v in pairs)

    def add_jaxpr_outs(self, variables: Sequence[Var]) -> ModuleInfo:
        """Put more variables of the jaxpr among its outputs; those already there are not repeated.

        >>> import etrax, jax.numpy as jnp
        >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
        >>> info = etrax.extract_module_info(step, jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
        >>> wider = info.add_jaxpr_outs([info.jaxpr.eqns[0].outvars[0]])
        >>> len(wider.jaxpr.outvars) - len(info.jaxpr.outvars)
        1
        """
        jaxpr, consts = open_jaxpr(self.closed_jaxpr)
        outputs = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
        defined = {*jaxpr.constvars, *jaxpr.invars, *(v for e in jaxpr.eqns for v in e.outvars)}
        for v in variables:
            if v not in defined:
                raise CompilationError(f"`add_jaxpr_outs` was given {v}, which is no variable of this `jaxpr`.")
        new = [v for v in dict.fromkeys(variables) if v not in outputs]
        closed = build_closed(jaxpr.invars, [*jaxpr.outvars, *new], jaxpr.eqns, jaxpr, jaxpr.constvars, consts)
        return self._replace(closed_jaxpr=closed)

    def flat_inputs(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], old_state_vals: OldValues = None
    ) -> list[jax.Array]:
        """What the jaxpr takes: leaves of the model's arguments, then of the states' values (the current ones if None).

        `old_state_vals` are values by path, or in the order of `compiled_model_states`. Where a parameter and a state
        share a path, the keys are `('params', *path)` and `('hidden', *path)`.
        """
        inputs = jax.tree.leaves(self.bound.encode(tuple(args), kwargs))
        if old_state_vals is None:
            values = jax.tree.leaves(list(self.bound.read()))
            if any(isinstance(x, jax.ShapeDtypeStruct) for x in values):
                raise CompilationError(
                    "the step was compiled for shapes and has no current values: pass `old_state_vals`, one for each "
                    f"of {', '.join(map(format_path, self.bound.keys))}."
                )
            return self._checked([*inputs, *(values[i] for e in self.bound.states for i in e.leaves)])
        if isinstance(old_state_vals, Mapping):
            for key in self.bound.keys:
                if key not in old_state_vals:
                    raise CompilationError(
                        f"`old_state_vals` has no value for state {format_path(key)}; pass one for each of "
                        f"{', '.join(map(format_path, self.bound.keys))}."
                    )
            old_state_vals = [old_state_vals[key] for key in self.bound.keys]
        if len(old_state_vals) != len(self.compiled_state_paths):
            raise CompilationError(
                f"`old_state_vals` holds {len(old_state_vals)} values, expected {len(self.compiled_state_paths)}: one "
                f"for each of {', '.join(map(format_path, self.bound.keys))}."
            )
        pairs = zip(self.compiled_state_paths, old_state_vals, strict=True)
        return self._checked([*inputs, *(x for path, value in pairs for x in self.bound.encode_state(path, value))])

    def _checked(self, flat: list[jax.Array]) -> list[jax.Array]:
        """Refuse values of other shapes than the step was compiled for."""
        paths = [("argument", leaf.path) for leaf in self.step.select(Role.INPUT)]
        paths += [(e.role.value, e.path) for e in self.bound.states for _ in e.leaves]
        for (what, path), v, x in zip(paths, self.jaxpr.invars, flat, strict=True):
            shape, compiled = shape_struct(x).shape, shape_struct(v.aval).shape
            if shape != compiled:
                raise CompilationError(
                    f"{what} {format_path(path)} has shape {list(shape)}, but the model was compiled "
                    f"with shape {list(compiled)}. Compile again for the new shape."
                )
        return flat

    def sort_outputs(self, values: Sequence[jax.Array | None]) -> StepResult:
        """What the jaxpr gives, as (outputs, new hidden values by path, new other values by path, all by variable)."""
        outputs = jax.tree.unflatten(self.step.trees[Role.OUTPUT], values[: self.num_var_out])
        by_role: dict[Role, Values] = {Role.HIDDEN: {}, Role.OTHER: {}, Role.PARAM: {}}
        at = self.num_var_out
        for entry in self.bound.states:
            end = at + len(entry.leaves)
            by_role[entry.role][entry.path] = self.bound.decode_state(entry.path, values[at:end])
            at = end
        # Literals have no variable to be found by.
        temps = {v: x for v, x in zip(self.jaxpr.outvars, values, strict=True) if not isinstance(v, Literal)}
        return self.bound.decode_output(outputs), by_role[Role.HIDDEN], by_role[Role.OTHER], temps

    def step_leaves(self, flat: Sequence[jax.Array]) -> list[jax.Array]:
        """What the jaxpr takes, in the order of the input leaves of `step`."""
        inputs = len(self.step.select(Role.INPUT))
        numbers = [i for e in self.bound.states for i in e.leaves]
        states = dict(zip(numbers, flat[inputs:], strict=True))
        return [*(states[i] for i in range(len(states))), *flat[:inputs]]

    def sort_step_outputs(self, outs: Sequence[jax.Array]) -> tuple[PyTree, Values, Values]:
        """Output leaves of `step`, as (outputs, new hidden values by path, new other values by path)."""
        n = len(self.step.states)
        # The jaxpr gives back the parameters too, which the step does not: zeros stand for them, and are dropped.
        leaves = [*(jnp.zeros(()) for _ in self.weight_invars), *outs[:n]]
        values = [*outs[n:], *(leaves[i] for e in self.bound.states for i in e.leaves)]
        return self.sort_outputs([*values, *(None for _ in self.jaxpr.outvars[len(values) :])])[:3]

    def jaxpr_call(self, *args: object, old_state_vals: OldValues = None, **kwargs: object) -> StepResult:
        """Run the step: (outputs, hidden values by path, other values by path, values by variable). Writes no state."""
        jaxpr, consts = open_jaxpr(self.closed_jaxpr)
        flat = self.flat_inputs(args, kwargs, old_state_vals)
        return self.sort_outputs(interpret(jaxpr, consts, flat, lambda *_: None))

    def dict(self) -> dict[str, object]:
        return self._asdict()

    def __repr__(self) -> str:
        return show(self)

    @property
    def _brief(self) -> str:
        hidden, weights = len(self.hidden_path_to_invar), len(self.weight_path_to_invars)
        eqns = len(self.jaxpr.eqns)
        return f"ModuleInfo({eqns} equations, {weights} weights, {hidden} hidden states, {self.num_var_out} outputs)"


def module_info_of(bound: Bound) -> ModuleInfo:
    """Lay out a step for inspection."""
    step = with_separate_hidden_outputs(bound.step)
    ins, first = step.jaxpr.invars[len(step.consts) :], step.first_state
    # Numbered as the input leaves are: a parameter leaves the jaxpr as it came in.
    outs = [*step.invars(Role.PARAM), *step.outvars(Role.HIDDEN), *step.outvars(Role.OTHER)]
    # The step has its leaves in the order of the trees; users see states in that of the model.
    order = [(entry, i) for entry in bound.states for i in entry.leaves]
    outputs = step.outvars(Role.OUTPUT)
    closed = build_closed(
        [*step.invars(Role.INPUT), *(ins[i] for _, i in order)],
        [*outputs, *(outs[i] for _, i in order)],
        step.jaxpr.eqns,
        step.jaxpr,
        step.constvars,
        step.consts,
    )
    weights = [(entry.path, ins[i]) for entry, i in order if i < first]
    by_state: dict[Path, list[Var]] = {}
    for path, v in weights:
        by_state.setdefault(path, []).append(v)
    hidden = {step.ins[i].path: (ins[i], outs[i]) for entry, i in order if entry.role is Role.HIDDEN}
    return ModuleInfo(
        bound=bound,
        step=bound.step,
        closed_jaxpr=closed,
        num_var_out=len(outputs),
        num_var_state=len(order),
        retrieved_model_states=bound.known,
        compiled_model_states=tuple(entry.handle for entry in bound.states),
        compiled_state_paths=tuple(entry.path for entry in bound.states),
        state_id_to_path={id(entry.handle): key for entry, key in zip(bound.states, bound.keys, strict=True)}
        | {id(s): p for p, s in bound.known.items()},
        weight_invars=tuple(v for _, v in weights),
        weight_path_to_invars={p: tuple(v) for p, v in by_state.items()},
        invar_to_weight_path={v: p for p, v in weights},
        hidden_path_to_invar={p: v for p, (v, _) in hidden.items()},
        hidden_path_to_outvar={p: v for p, (_, v) in hidden.items()},
        invar_to_hidden_path={v: p for p, (v, _) in hidden.items()},
        outvar_to_hidden_path={v: p for p, (_, v) in hidden.items()},
        hidden_outvar_to_invar={out: into for into, out in hidden.values()},
    )
