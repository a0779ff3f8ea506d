"""What a model costs where zeros cost nothing, under the names that NeuroBench uses (Yik et al. 2025).

An op y = u·w between layers makes a product for every pair of an element of u and a weight that reads it. Counted by
the op's own rule: Σ_k (∂y_k/∂w)ᵀ 1 with u replaced by 1[u ≠ 0] says how often each weight met a number that is not
zero, whatever the op (a product, a convolution, a sparse matrix).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._arguments import check_arrays, check_whole
from .._compat import is_extended, is_inexact, transfers_meant
from .._errors import ArgumentError
from ..compiler.analysis import Facts
from ..compiler.ir import PyTree
from ..compiler.opened import OpenStep, Weights, WeightSite
from ..learn import Learner, check_learner
from ..runtime import site_math


class _Counts(NamedTuple):
    """Of one op over some steps: how often each weight was met by any number and by one that is not zero, elements of
    its data and those that are zero, and whether all of them were −1, 0 or 1.
    """

    dense: jax.Array
    effective: jax.Array
    elements: jax.Array
    zeros: jax.Array
    spikes: jax.Array


@transfers_meant()
def neurobench(
    learner: Learner, params: PyTree, inputs: PyTree, hidden: PyTree = None, *, samples: int = 1
) -> dict[str, object]:
    """Footprint, sparsity and synaptic operations of a model on a sequence, as NeuroBench names and counts them.

    `inputs` are those of a sequence, time first, of a batch of so many `samples`. The answer:

    - `Footprint`: bytes of parameters and states. `ParameterCount`: how many numbers the parameters are.
    - `ConnectionSparsity`: the share of weights between layers that are zero.
    - `ActivationSparsity`: the share of zeros among what layers read of other layers; of spiking ones, 1 minus the
      rate of spikes a step. None if no layer reads another.
    - `SynapticOperations`: products a step of one sample: `Dense`, all of them; `Effective_MACs`, those of two numbers
      that are not zero; `Effective_ACs`, the same where data are spikes (−1, 0, 1), so that a product is a sum.

    NeuroBench sums operations over the steps of a sample: multiply by their number.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> etrax.train.neurobench(learner, learner.params, jnp.eye(3))["SynapticOperations"]
    {'Effective_MACs': 0.0, 'Effective_ACs': 4.0, 'Dense': 12.0}
    """
    check_learner(learner)
    samples, program = check_whole("samples", samples, "samples"), learner.program
    check_arrays("inputs", inputs)
    leaves, states = program.params(params), program.states(learner.init(params, hidden).hidden)
    xs, length = program.inputs_of_sequence(inputs)
    if length is None:
        raise ArgumentError("`neurobench` counts what inputs make a model do, but the step takes none.")
    sites = [j for j, site in enumerate(learner.facts.sites) if site.rule.mixes and is_inexact(site.call.out)]
    weights = program.weights(leaves)
    counts = jax.device_get(_counted(learner.facts, sites, leaves, states, xs, weights))
    nonzero = [np.asarray(weights.weight[j]) != 0 for j in sites]
    operations = {"Effective_MACs": 0.0, "Effective_ACs": 0.0, "Dense": 0.0}
    for c, is_synapse in zip(counts, nonzero, strict=True):
        kind = "Effective_ACs" if c.spikes else "Effective_MACs"
        operations[kind] += float((c.effective * is_synapse).sum(dtype=np.float64)) / (length * samples)
        operations["Dense"] += float(c.dense.sum(dtype=np.float64)) / (length * samples)
    inner = [c for c, j in zip(counts, sites, strict=True) if learner.facts.sites[j].reads_moving]
    elements, weights_read = sum(float(c.elements) for c in inner), sum(a.size for a in nonzero)
    return {
        "Footprint": sum(np.asarray(a).nbytes for a in (*leaves, *map(_plain, states))),
        "ParameterCount": sum(int(np.size(a)) for a in leaves),
        "ConnectionSparsity": 1 - sum(int(a.sum()) for a in nonzero) / weights_read if weights_read else None,
        "ActivationSparsity": sum(float(c.zeros) for c in inner) / elements if elements else None,
        "SynapticOperations": operations,
    }


def _plain(a: jax.Array) -> jax.Array:
    """The numbers of a random key; other arrays as they are."""
    return jax.random.key_data(a) if is_extended(a) else a


def _counted(
    facts: Facts, sites: Sequence[int], params: Sequence[jax.Array], states: Sequence[jax.Array],
    inputs: Sequence[jax.Array], weights: Weights,
) -> list[_Counts]:  # fmt: skip
    """What each op meets, summed over the steps of a sequence."""
    opened, n = OpenStep(facts.step, facts.sites, frozenset()), len(facts.states)

    @jax.jit
    def run(params: PyTree, states: PyTree, inputs: PyTree) -> PyTree:
        def body(states: list[jax.Array], x: list[jax.Array]) -> tuple[list[jax.Array], list[_Counts]]:
            outs, observed = opened([*params, *states, *x], {})
            return outs[:n], [_of_step(facts.sites[j], weights.fixed[j], observed[j].data) for j in sites]

        _, counts = jax.lax.scan(body, list(states), list(inputs))
        return [_Counts(*(a.sum(0) for a in c[:4]), spikes=c.spikes.all()) for c in counts]

    return run(list(params), list(states), list(inputs))


def _of_step(site: WeightSite, fixed: Sequence[jax.Array], data: Sequence[jax.Array]) -> _Counts:
    numbers = [a for a in data if is_inexact(a)]

    def met(counts: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """How often each weight meets data that count."""
        marked = [counts(a).astype(a.dtype)[None] if is_inexact(a) else a[None] for a in data]
        return jnp.real(site_math.grad(site, fixed, marked, jnp.ones((1, *site.y_shape), site.call.out.dtype)))

    return _Counts(
        met(lambda a: a == a),
        met(lambda a: a != 0),
        jnp.asarray(sum(a.size for a in numbers), jnp.float32),
        sum(((a == 0).sum(dtype=jnp.float32) for a in numbers), jnp.zeros((), jnp.float32)),
        jnp.asarray([((a == 0) | (jnp.abs(a) == 1)).all() for a in numbers]).all(),
    )
