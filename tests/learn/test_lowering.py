"""Every rule on every model lowers for devices that are not here: one gradient over windows, by `jax.export`.

The program is traced as it would be on that device, with its thresholds.
"""

from itertools import product

import jax
import pytest
from jax import export
from tests.learn.cases import CASES
from tests.learn.table import ROWS, subject
from tests.zoo import ZOO

import etrax
from etrax._machine import MACHINES, compiling_for

PLATFORMS = ("cuda", "tpu")
RULES = list(ROWS)


def struct(a):
    return jax.ShapeDtypeStruct(a.shape, a.dtype)


def lowered(run, args, platform):
    """The module that a device would be given. An op that it does not know would have raised."""
    exported = export.export(jax.jit(run), platforms=[platform])(*jax.tree.map(struct, args))
    assert exported.platforms == (platform,)
    return exported.mlir_module()


def rows():
    """Each rule once in the fast suite, models and platforms in turn."""
    for rule, case, platform in product(RULES, CASES, PLATFORMS):
        turn = RULES.index(rule)
        fast = case == list(CASES)[turn % len(CASES)] and platform == PLATFORMS[turn % 2]
        yield pytest.param(rule, case, platform, id=f"{rule}-{case}-{platform}", marks=() if fast else pytest.mark.slow)


@pytest.mark.parametrize(("rule", "case", "platform"), list(rows()))
def test_table(rule, case, platform):
    with compiling_for(MACHINES[platform]):
        s = subject(ROWS[rule], case, jax.numpy.float32)
        assert "stablehlo" in lowered(s.run, (s.xs[0], s.targets[0]), platform)


# One model of each class of ops and loops in the fast suite.
FAST = {"ops/bcoo", "ops/conv2d", "ops/embedding_take", "fan_out/mamba", "states/sixteen_coupled", "control/scan_4"}
# A callback runs on the host that traced it, and brainevent's kernels where it has them: nothing of ours.
CALLBACKS = {"closures/callback_on_an_input", "closures/callback_as_derivative", "control/cond_of_equal_branches"}
ELSEWHERE = CALLBACKS | {"ops/csr", "ops/csr_events"}


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in ZOO if n not in ELSEWHERE]
)
def test_zoo(name, platform):
    entry = ZOO[name]
    for package in entry.needs:
        pytest.importorskip(package)
    m = entry()
    inputs, targets = m.make_inputs(4, 0), m.make_target(4, 0)
    with compiling_for(MACHINES[platform]):
        example = jax.tree.map(lambda a: a[0], inputs)
        learner = etrax.compile(m.step, "d_rtrl", *example, params=m.params, hidden=m.hidden)
        run = learner.value_and_grad(m.loss, window=2)
        assert lowered(lambda p, s, x, y: run(p, s, x, y), (m.params, learner.init(), inputs, targets), platform)
