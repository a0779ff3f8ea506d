"""The record that a rule hands to the runtime: how a trace begins, gives credit and moves, and what few rules add."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import jax
import numpy as np
from jax import Array

Trace = TypeVar("Trace")
Outer = TypeVar("Outer")

# (leaves, weights, ys): all input leaves of the step, the weight of every site, the output of every live site's op.
StepReader: TypeAlias = Callable[[Sequence[Array], Sequence[Array], Mapping[int, Array]], Any]
# A step or a window, differentiated backwards: cotangents of the states after it → those of the states before it, and
# those of every site's output; all by number.
PullBack: TypeAlias = Callable[[Mapping[int, Array]], tuple[dict[int, Array], dict[int, Array]]]


class WindowData(NamedTuple):
    """A window that has been run, as a transport sees it.

    | field | is |
    |---|---|
    | `steps` | the number of its steps, K |
    | `records` | what `EachStep.record` gave, stacked over the steps |
    | `data(j)` | the operands of site j's op that change from step to step, stacked over the steps |
    | `fixed[j]` | its other operands beside the weight |
    | `pull` | the derivative of the window, backwards: from states at the exit to states at the entry, and ops |
    | `pull_states()` | `pull` of the steps without outputs and loss, which run again: cheaper for many cotangents |
    | `signals` | what `Signal.of_step` gave, stacked over the steps; () where there was no loss |
    | `entry_states`, `exit_states` | all states before the first step, and after the last |
    | `entry_bar` | ∂L/∂h_0 with the estimated future in it; None for a rule without `Future` |
    | `carry` | what `EachStep.advance` has made of `EachStep.begin` by the last step |
    | `zero_after_credit` | a zero that XLA cannot fold and that depends on the credit |
    | `params`, `weights` | the parameters, and the weight of every site |
    | `steady` | values of the last inputs, where these are made of parameters only (`Facts.parameter_inputs`) |
    | `resets` | flags (K,) or (K, B): whether all lanes, or which, start again before each step; None: none does |
    | `sites_at_exit`, `exit_bar` | the sites whose whole gradient is the loss in the new states, ∂L/∂h_K, on the trace at the exit; none in windows of several steps |

    Adding `zero_after_credit` to a factor of a trace orders the move after the read, so that the trace is updated in
    place: XLA would copy a trace that is overwritten before it has been read.
    """  # noqa: E501

    steps: int
    records: Any
    data: Callable[[int], tuple[Array, ...]]
    fixed: Sequence[tuple[Array, ...]]
    pull: PullBack
    pull_states: Callable[[], PullBack]
    signals: Any = ()
    entry_states: Sequence[Array] = ()
    exit_states: Sequence[Array] = ()
    entry_bar: Mapping[int, Array] | None = None
    carry: Any = ()
    zero_after_credit: Array | float = 0.0
    params: Sequence[Array] = ()
    weights: Sequence[Array] = ()
    steady: Sequence[Array] = ()
    resets: Array | None = None
    sites_at_exit: frozenset[int] = frozenset()
    exit_bar: Mapping[int, Array] = MappingProxyType({})


@dataclass(frozen=True)
class EachStep(Generic[Trace]):
    """What happens at each step, inside the window's loop.

    `record` reads what `move` and `credit` will need of the step. What a trace wants to move step by step is begun by
    `begin(trace)` and moved by `advance(carry, leaves, weights, ys)`; `restart(carry, flags)` clears what is carried of
    the lanes, or of all, that start again before a step.
    """

    record: StepReader = lambda leaves, weights, ys: ()
    begin: Callable[[Trace], Any] = lambda trace: ()
    advance: Callable[[Any, Sequence[Array], Sequence[Array], Mapping[int, Array]], Any] = lambda carry, *step: carry
    restart: Callable[[Any, Array], Any] = lambda carry, flags: carry


class StepOutputs(NamedTuple):
    """A step as it ran: the outputs of its weight ops, by site, and its own."""

    ys: Mapping[int, Array]
    outputs: list[Array]


@dataclass(frozen=True)
class Signal(Generic[Trace]):
    """A learning signal in place of the gradient of the loss.

    `of_step(trace, leaves, weights, ran, step_data, loss_of, loss_weight)` gives the signals of one step; `ran` is what
    the step gave, so that nobody runs it again for its values. The gradient of the sites in `replaces` is the credit,
    which is made of these signals, and nothing else. A trace meets a signal in the states `seen`, or in any if None.
    """

    of_step: Callable[[Trace, Sequence[Array], Sequence[Array], StepOutputs, Any, Any, Array | float], Any]
    replaces: frozenset[int]
    seen: frozenset[int] | None = None


@dataclass(frozen=True)
class Future(Generic[Trace]):
    """An estimate of what the losses after a window will owe to it.

    `estimate(trace, states)` gives cotangents of the states at the exit; they count in the gradient of `sites`.
    """

    estimate: Callable[[Trace, Sequence[Array]], dict[int, Array]]
    sites: frozenset[int]


@dataclass(frozen=True)
class Persistent(Generic[Trace]):
    """What outlives a sequence: matrices that a rule trains, its random key.

    `learned(trace)` takes it out, `renew(fresh, learned)` puts it into the trace of the next sequence.
    """

    learned: Callable[[Trace], Any] = lambda trace: ()
    renew: Callable[[Trace, Any], Trace] = lambda fresh, learned: fresh


class SeenThrough(NamedTuple):
    """Sites that the loss of a step sees through the new values of some states alone, by a trace that holds all of it.

    Their gradient in a window of one step is ∂ℓ/∂h_1 · ε_1, which equals ∂ℓ/∂y · u + ∂ℓ/∂h_0 · ε_0.
    """

    sites: frozenset[int] = frozenset()
    states: frozenset[int] = frozenset()


@dataclass(frozen=True)
class FusedCredit(Generic[Trace]):
    """Credit that is cheaper to take at another place than in `Transport.credit`.

    `in_product(trace, g, window)` gives it per site as data and cotangents (n, …) of n steps more, which join those of
    the window in the product that makes the weight's gradient. `at_exit(trace, window)` reads it off the moved trace.
    `rows_at_exit(trace, window)` gives it as such rows.
    What `through_states()` gives is for windows of one step: there the gradient of these sites is all taken at the exit
    (`WindowData.sites_at_exit`), in one pass over the trace.
    """

    in_product: Callable[[Trace, Mapping[int, Array], WindowData], dict[int, tuple[Array, Array]]] = lambda *_: {}
    at_exit: Callable[[Trace, WindowData], dict[int, Array]] = lambda *_: {}
    through_states: Callable[[], SeenThrough] = SeenThrough
    rows_at_exit: Callable[[Trace, WindowData], dict[int, tuple[Array, Array]]] = lambda *_: {}


@dataclass(frozen=True)
class Transport(Generic[Trace]):
    """ε_K = A ε_0 + C for one rule, and the credit (∂L/∂h_0) · ε_0.

    `init()` is the trace of parameters that have not acted yet. `credit(trace, g, window)` is the gradient of each
    site's weight through the entry state, given g = ∂L/∂h_0. `move(trace, window)` is the trace at the window's exit.

    The rest is optional. `parts(trace)` lists by site the arrays of the trace that belong to it, to look at and to
    name; of sites in `samples_first()`, these have their first axis, of samples, before one of slots, else slots come
    first. Sites in `without_gradient` have no gradient at all. Where `moves_in_pieces`, the trace may be moved over
    parts of a window one after the other; one that is drawn at random once a window would then be another.
    """

    init: Callable[[], Trace]
    credit: Callable[[Trace, Mapping[int, Array], WindowData], dict[int, Array]]
    move: Callable[[Trace, WindowData], Trace]
    each_step: EachStep[Trace] = field(default_factory=lambda: EachStep())
    signal: Signal[Trace] | None = None
    future: Future[Trace] | None = None
    persistent: Persistent[Trace] = field(default_factory=lambda: Persistent())
    fused: FusedCredit[Trace] = field(default_factory=lambda: FusedCredit())
    parts: Callable[[Trace], dict[int, list[Array]]] = lambda trace: {}
    without_gradient: frozenset[int] = frozenset()
    moves_in_pieces: bool = True
    samples_first: Callable[[], frozenset[int]] = frozenset

    @property
    def in_pieces(self) -> bool:
        """Whether a window can be differentiated piece by piece, with the same gradients and the same trace."""
        return self.moves_in_pieces and self.signal is None and self.future is None

    @property
    def nbytes(self) -> int:
        """Size of the trace."""
        arrays = jax.tree.leaves(jax.eval_shape(self.init))
        return sum(int(np.prod(a.shape, dtype=np.int64)) * a.dtype.itemsize for a in arrays)


def embed_trace(
    transport: Transport[Trace], init: Callable[[], Outer], of: Callable[[Outer], Trace],
    put: Callable[[Outer, Trace], Outer], view: Callable[[WindowData], WindowData],
) -> Transport[Outer]:  # fmt: skip
    """Run a transport over a larger trace that contains its own, for what watches or combines transports.

    `of` takes its trace out of the larger one, `put` puts a moved one in; `view` gives the window as the transport
    itself would have seen it.
    """
    signal, future, persistent, fused = transport.signal, transport.future, transport.persistent, transport.fused
    each = transport.each_step
    return Transport(
        init,
        lambda trace, g, window: transport.credit(of(trace), g, view(window)),
        lambda trace, window: put(trace, transport.move(of(trace), view(window))),
        EachStep(each.record, lambda trace: each.begin(of(trace)), each.advance, each.restart),
        signal and Signal(lambda trace, *step: signal.of_step(of(trace), *step), signal.replaces),
        future and Future(lambda trace, states: future.estimate(of(trace), states), future.sites),
        Persistent(
            lambda trace: persistent.learned(of(trace)),
            lambda fresh, learned: put(fresh, persistent.renew(of(fresh), learned)),
        ),
        FusedCredit(
            lambda trace, g, window: fused.in_product(of(trace), g, view(window)),
            lambda trace, window: fused.at_exit(of(trace), view(window)),
            fused.through_states,
            lambda trace, window: fused.rows_at_exit(of(trace), view(window)),
        ),
        lambda trace: transport.parts(of(trace)),
        transport.without_gradient,
        transport.moves_in_pieces,
        transport.samples_first,
    )


def by_site(sites: Iterable[int], entries: Iterable[Any]) -> dict[int, list[Array]]:
    """The arrays of entries that belong to sites, one entry each."""
    arrays: dict[int, list[Array]] = {}
    for j, entry in zip(sites, entries, strict=True):
        arrays.setdefault(j, []).extend(jax.tree.leaves(entry))
    return arrays


def add_to(out: dict[int, Array], site: int, term: Array) -> None:
    """Sum terms by site."""
    out[site] = out[site] + term if site in out else term
