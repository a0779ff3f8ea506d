"""A learner watched over a sequence: hidden states, outputs and traces at every step.

A trace has whatever form its rule gives it. What it stands for is dh/dθ, and what every rule can do with it is
credit: g · ε for a gradient g of the hidden state. With ones for g this is, for one hidden state h and every number
of a parameter θ,

    e_t[θ] = Σ_p ∂h_t[p] / ∂θ        as the rule estimates it,

of the shape of θ. Where a number acts on one position per sample it is the eligibility trace itself, and different
rules can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._arguments import MOST, check_arrays, check_whole
from .._errors import ArgumentError
from ..compiler.ir import Path, PyTree, Role, format_path, lies_under
from ..compiler.opened import Weights
from ..learn import Learner, LearnerState, check_learner
from ..rules import diagonal_transport
from ..runtime import FusedCredit, Transport, WindowRun, evolve, run_window
from ._panels import as_paths


def _shapes(arrays: dict[str, np.ndarray]) -> str:
    return ", ".join(f"{name} {list(a.shape)}" for name, a in arrays.items())


@dataclass(frozen=True)
class Recording:
    """What `record` returns: arrays with time first.

    `states[path]` and `outputs[path]` after each step; `traces[parameter, state]`, of the parameter's shape, wherever
    the rule carries one. `step` is the number of steps taken before.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> etrax.viz.record(learner, jnp.ones((5, 3))).states[()].shape
    (5, 4)
    """

    rule: str
    states: dict[Path, np.ndarray]
    outputs: dict[Path, np.ndarray]
    traces: dict[tuple[Path, Path], np.ndarray]
    step: int = 0

    def __repr__(self) -> str:
        """Shapes, not values."""
        parts = (("states", self.states, "hidden"), ("outputs", self.outputs, "output"))
        shapes = [
            f"{what}: {_shapes({format_path(p, root): a for p, a in of.items()})}" for what, of, root in parts if of
        ]
        pairs = {f"{format_path(p, 'params')} on {format_path(s, 'hidden')}": a for (p, s), a in self.traces.items()}
        shapes += [f"traces: {_shapes(pairs)}"] if pairs else []
        return f"Recording({self.rule}, {len(self.time)} steps; {'; '.join(shapes)})"

    @property
    def time(self) -> np.ndarray:
        """The number of each step, counted from 1."""
        steps = len(next(iter((*self.states.values(), *self.outputs.values()))))
        return self.step + 1 + np.arange(steps)


def record(
    learner: Learner, inputs: PyTree, *, params: PyTree = None, state: LearnerState | None = None,
    parameters: Sequence[Path] | None = None, states: Sequence[Path] | None = None, sample: int | None = None,
) -> Recording:  # fmt: skip
    """Run a learner over a sequence, without learning, and keep what it holds after every step.

    `inputs` are time-major, as for `value_and_grad`. Traces take T × |θ| numbers for every state: name the `parameters`
    and `states` whose traces you want, by path or as a report names them: "rnn.w", or "rnn" for all below it. By
    default all are recorded, with `parameters=[]` none. Traces are summed over the positions of a state; `sample` takes
    those at one index of its first axis, the batch.

    >>> import etrax, etrax.viz, jax.numpy as jnp
    >>> def step(params, h, x):
    ...     h = 0.5 * h + x @ params["w"]
    ...     return h, h
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(2), params={"w": jnp.ones((2, 1))}, hidden=jnp.zeros(1))
    >>> etrax.viz.record(learner, jnp.ones((3, 2))).traces[("w",), ()][:, 0, 0].tolist()
    [1.0, 1.5, 1.75]
    """
    check_learner(learner)
    if state is not None:
        learner.program.check_state(state)
        check_arrays("state.hidden", state.hidden)
    facts = learner.facts
    transport, start = _readable(learner, state)
    names = [leaf.path for leaf in facts.step.select(Role.PARAM)]
    chosen = _chosen("parameters", parameters, names)
    probes = {i: _probe(learner, i, sample) for i in _probed(learner, states)} if chosen else {}
    params = learner.params if params is None else params
    check_arrays("params", params)
    check_arrays("inputs", inputs)
    x, length = learner.program.inputs_of_sequence(inputs)
    if length is None:
        raise ArgumentError("`record` needs inputs, which say how many steps there are; this step takes none.")

    @jax.jit
    def run(params: object, hidden: object, trace: object, x: list[jax.Array]) -> PyTree:
        p = learner.program.params(params)
        w = learner.program.weights(p)

        def body(carry: tuple[list[jax.Array], PyTree], step: tuple[list[jax.Array], list[jax.Array]]) -> tuple:
            x, ahead = step
            h, trace, outs = evolve(facts, transport, p, w, carry[0], carry[1], [a[None] for a in x])
            traces = {i: _read(learner, transport, p, w, h, trace, ahead, g) for i, g in probes.items()}
            return (h, trace), (h, [o[0] for o in outs], {i: [rows[k] for k in chosen] for i, rows in traces.items()})

        # A trace is read as the next step would read it; the last one is read with the last input once more.
        ahead = [jnp.concatenate([a[1:], a[-1:]]) for a in x]
        return lax.scan(body, (learner.program.states(hidden), trace), (x, ahead))[1]

    h, outs, read = run(params, learner.hidden if state is None else state.hidden, start, x)
    traces = {
        (names[k], facts.states[i].path): np.asarray(read[i][n]) for n, k in enumerate(chosen) for i in read
    }  # fmt: skip
    return Recording(
        str(learner.rule),
        {leaf.path: np.asarray(a) for leaf, a in zip(facts.states, h, strict=True)},
        {leaf.path: np.asarray(a) for leaf, a in zip(facts.step.select(Role.OUTPUT), outs, strict=True)},
        {key: a for key, a in sorted(traces.items(), key=lambda item: names.index(item[0][0])) if a.any()},
        0 if state is None else int(state.step),
    )


def _readable(learner: Learner, state: LearnerState | None) -> tuple[Transport, PyTree]:
    """The transport whose credit reads the trace, and the trace to begin with.

    A rule with a learning signal of its own carries the trace of D-RTRL under it.
    """
    transport = learner.program.transport
    if transport.signal is None:
        return transport, transport.init() if state is None else state.trace
    if learner.rule.members or state is not None:
        raise ArgumentError(
            f"`record` cannot read the trace of {learner.rule} {'from a `state`' if state is not None else ''}, since "
            "its learning signal needs a loss. Record from the start with that rule alone; its trace is D-RTRL's."
        )
    plain = diagonal_transport(learner.facts)
    return plain, plain.init()


def _read(
    learner: Learner, transport: Transport, p: list[jax.Array], w: Weights, h: list[jax.Array], trace: object,
    x: list[jax.Array], g: PyTree,
) -> list[jax.Array]:  # fmt: skip
    """g · ε for every parameter: a window of one step with no loss, in which g is what comes back to its entry."""

    def no_loss(outs: list[jax.Array], _: object) -> tuple[jax.Array, tuple[()]]:
        return jnp.zeros(()), ()

    in_product = transport.fused.in_product
    reader = replace(
        transport,
        credit=lambda trace, _, window: transport.credit(trace, g, window),
        move=lambda trace, window: (),
        signal=None,
        future=None,
        fused=FusedCredit(lambda trace, _, window: in_product(trace, g, window)),
    )
    result = run_window(learner.facts, reader, WindowRun(p, w, h, trace, [a[None] for a in x], (), no_loss))
    return jax.tree.leaves(learner.program.param_grads(p, result.grads))


def _probed(learner: Learner, states: Sequence[Path] | None) -> list[int]:
    """Numbers of the hidden states whose traces are asked for."""
    leaves = sorted(learner.facts.group_of_leaf)
    paths = [learner.facts.states[i].path for i in leaves]
    return [leaves[k] for k in _chosen("states", states, paths)]


def _probe(learner: Learner, leaf: int, sample: int | None) -> dict[int, np.ndarray]:
    """Ones on a state, or on one sample of it; zeros on the others."""
    facts = learner.facts
    g = {i: np.zeros(facts.states[i].aval.shape, facts.states[i].aval.dtype) for i in facts.group_of_leaf}
    shape = g[leaf].shape
    if sample is not None:
        check_whole("sample", sample, "samples", least=-MOST)
    if sample is not None and (not shape or not -shape[0] <= sample < shape[0]):
        raise ArgumentError(
            f"`sample` is {sample}, but the state {facts.state_name(leaf)} has shape {list(shape)}: it is an index of "
            "its first axis."
        )
    g[leaf][... if sample is None else sample] = 1
    return g


def _chosen(what: str, asked: Sequence[Path] | None, paths: list[Path]) -> list[int]:
    """Numbers of the paths that are asked for: all by default."""
    if asked is None:
        return list(range(len(paths)))
    if isinstance(asked, list | tuple) and not asked:
        return []
    root = "params" if what == "parameters" else "hidden"
    numbers: dict[int, None] = {}
    for path in as_paths(what, asked, paths):
        name = path[0] if len(path) == 1 and isinstance(path[0], str) else path
        under = [i for i, p in enumerate(paths) if p == path or (path != () and lies_under(p, name))]
        if not under:
            names = ", ".join(format_path(p, root) for p in paths)
            raise ArgumentError(f"`{what}` has no {format_path(path, root)}; there are {names}.")
        numbers.update(dict.fromkeys(under))
    return list(numbers)
