"""Resets: equal to separate sequences, each run on its own from the initial state, under every rule and window."""

import re
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.learn.harness import in_numpy
from tests.learn.oracle import relative_error
from tests.zoo import ZOO

import etrax
from etrax.compiler.analysis import find_samples
from etrax.compiler.ir import leaves_with_paths

T = 7
# Two in a row, one at the first step of a window of three and one at its last.
STEPS = np.array([0, 0, 1, 1, 0, 1, 0], bool)
ALIGNED = np.array([0, 0, 0, 1, 0, 0, 1], bool)
RULES = {
    str(rule): rule
    for rule in (
        etrax.tbptt(), etrax.tbptt(steps=4),
        etrax.d_rtrl(), etrax.d_rtrl(fan_out=0, hops=0), etrax.pp_prop(0.8), etrax.e_prop(0.5),
        etrax.e_prop(0.3, "random", key=1), etrax.three_factor(kappa=0.4), etrax.rflo(0.8), etrax.ottt(0.8),
        etrax.ostl(), etrax.snap(2), etrax.rtrl(), etrax.uoro(1), etrax.kf_rtrl(1),
        *(rule(credit="state") for rule in (etrax.d_rtrl, etrax.pp_prop)),
        *(rule(0.8, credit="state") for rule in (etrax.rflo, etrax.ottt)), etrax.snap(2, credit="state"),
    )
}  # fmt: skip


class Sequence:
    """A learner of a model of the zoo, and a sequence."""

    def __init__(self, name, rule, run=in_numpy):
        for module in ZOO[name].needs:
            pytest.importorskip(module)
        self.model = model = ZOO[name]()
        self.inputs, self.targets = model.make_inputs(T, 0), model.make_target(T, 0)
        first = jax.tree.map(lambda a: a[0], self.inputs)
        self.learner = etrax.compile(model.step, rule, *first, params=model.params, hidden=model.hidden)
        self.run = run

    def grads(self, window, state, a, b, mask=None, reset=None):
        """Gradients of a part of the sequence, and the state at its end."""
        f = self.learner.value_and_grad(self.model.loss, window, "sum")
        inputs, targets = jax.tree.map(lambda v: v[a:b], (self.inputs, self.targets))
        (_, grads), state = self.run(f, self.model.params, state, inputs, targets, mask, reset)
        return grads, state

    def apart(self, window, flags, weight=None):
        """The sum over the pieces between resets, each from the initial state, in the windows of the whole.

        What a rule learns for good (the key of its signs) is that of the stream at the beginning of each window.
        """
        total, state = None, self.learner.init()
        for start in range(0, T, window):
            end, learned = min(start + window, T), self.learner.learned(state)
            cuts = [start, *(t for t in range(start + 1, end) if flags[t]), end]
            for a, b in pairwise(cuts):
                if flags[a]:
                    state = self.learner.init(learned=learned)
                grads, state = self.grads(b - a, state, a, b, None if weight is None else weight[a:b])
                total = grads if total is None else jax.tree.map(jnp.add, total, grads)
        return total


def assert_equal(got, want, tol, context):
    want = dict(leaves_with_paths(want))
    for path, g in leaves_with_paths(got):
        error = relative_error(g, want[path])
        assert error <= tol, (*context, path, error)


def flags_for(rule, window):
    """Kronecker factors draw a sign for every step of a window: pieces of one have others than the whole."""
    return ALIGNED if rule.name == "kf_rtrl" and window > 1 else STEPS


def windows_of(rule, windows):
    """Credit as published is that of windows of one step."""
    if "credit" in rule.options:
        return (1,)
    return [k for k in windows if rule.name != "kf_rtrl" or k < T]


def check_all_lanes(s, windows=(1, 3, T)):
    for window in windows_of(s.learner.rule, windows):
        flags = flags_for(s.learner.rule, window)
        got, _ = s.grads(window, s.learner.init(), 0, T, reset=jnp.asarray(flags))
        assert_equal(got, s.apart(window, flags), tolerance(s), (window,))


def check_lane_by_lane(s, windows=(1, 3, T)):
    lanes = s.learner.resets.by_lane.facts.lanes
    for window in windows_of(s.learner.rule, windows):
        flags = np.stack([np.roll(flags_for(s.learner.rule, window), window * (b % 2)) for b in range(lanes)], 1)
        flags[:, lanes - 1] &= lanes < 3  # the last of several lanes never starts again
        got, _ = s.grads(window, s.learner.init(), 0, T, jnp.ones((T, lanes)), jnp.asarray(flags))
        one = [s.apart(window, flags[:, b], jnp.zeros((T, lanes)).at[:, b].set(1.0)) for b in range(lanes)]
        assert_equal(got, jax.tree.map(lambda *a: sum(a), *one), tolerance(s), (window,))


def tolerance(s):
    """Sums in another order; those of a model in half precision are as far apart as it allows for itself."""
    return 1e-12 if s.model.tol <= 1e-9 else s.model.tol


@pytest.mark.one_in(7)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) for n in ZOO])
def test_zoo(name, rule):
    s = Sequence(name, rule)
    if not s.model.linear:
        pytest.skip("the gradients of pieces do not add up where a derivative rule is not linear")
    check_all_lanes(s)
    if rule.name == "three_factor" or name == "fan_out/rows_of_a_loop":
        return  # a signal that is the loss of all lanes; an output that sums over what lies along the first axis
    if rule.name in ("uoro", "kf_rtrl") and any(g.num_positions == 1 for g in find_samples(s.learner.facts).groups):
        return  # lanes share random factors: they are apart on average
    try:
        lanes = s.learner.resets.by_lane
    except etrax.EtraxError as error:
        lanes = None
        assert "`reset` has a flag for each lane" in str(error)  # a model without lanes
    if lanes is not None:
        check_lane_by_lane(s)


FAST = [
    ("cells/lru", "d_rtrl()", True), ("cells/lstm", "d_rtrl()", False), ("stacks/detached_reset", "d_rtrl()", True),
    ("cells/ind_rnn", "pp_prop(decay=0.8)", True), ("cells/ind_rnn", "ottt(decay=0.8)", True),
    ("cells/ind_rnn", "e_prop(kappa=0.3, feedback='random')", True), ("cells/ind_rnn", "e_prop(kappa=0.5)", False),
    ("cells/ind_rnn", "uoro()", True), ("reads/old_state", "d_rtrl(credit='state')", True),
    ("stabilisers/mlstm_matrix", "d_rtrl()", True), ("as_written/convolution_of_both_factors", "d_rtrl()", True),
]  # fmt: skip


@pytest.mark.parametrize("rule", [etrax.snap(2), etrax.pp_prop(0.8)], ids=str)
def test_lanes_of_complex_data(rule):
    """Of a real weight, whose gradient is real."""
    check_lane_by_lane(Sequence("series/complex_then_real", rule), windows=(3,))


@pytest.mark.parametrize(("name", "rule", "lanes"), FAST, ids=[f"{n}-{r}" for n, r, _ in FAST])
def test_equals_separate_sequences(name, rule, lanes):
    """Whatever D moves and whatever it does not: data, filters, counts, signs; a trace that was equal for all lanes."""
    s = Sequence(name, RULES[rule])
    (check_lane_by_lane if lanes else check_all_lanes)(s, (3,))


B, I, H = 2, 3, 4
RNG = np.random.RandomState(1)
PARAMS = {k: jnp.asarray(RNG.standard_normal(n) * 0.4) for k, n in (("w", (I, H)), ("leak", (H,)), ("b", (H,)))}
XS, YS = jnp.asarray(RNG.standard_normal((T, B, I))), jnp.asarray(RNG.standard_normal((T, B, H)))
START = jnp.asarray(RNG.standard_normal((B, H)))
LANES = np.stack([STEPS, ALIGNED], 1)


def leaky(p, h, x):
    """Its blocks are made of parameters only, so that the trace of its bias is equal for all lanes."""
    h = h * p["leak"] + x @ p["w"] + p["b"]
    return h, jnp.tanh(h)


def by_hand(p, h, x_and_done):
    x, done = x_and_done
    return leaky(p, jnp.where(done[:, None], START, h), x)


def loss(output, target):
    return ((output - target) ** 2).sum()


def learner_of(rule="d_rtrl", step=leaky, x=XS[0], **options):
    return etrax.compile(step, rule, x, **{"params": PARAMS, "hidden": START, **options})


def grads_of(learner, window=3, reset=None, inputs=XS, state=None, params=PARAMS, **options):
    run = learner.value_and_grad(loss, window)
    return run(params, learner.init() if state is None else state, inputs, YS, None, reset, **options)


def close(got, want, tol=1e-12):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert relative_error(a, b) <= tol


@pytest.mark.parametrize("window", [1, 3])
def test_a_reset_that_the_step_writes_itself_gives_the_same(window):
    """A step with `where(done, h0, h)`, done an input, is exact through D: D-RTRL's trace stops there by itself."""
    mine = learner_of(step=by_hand, x=(XS[0], LANES[0]))
    assert {str(v.kind) for v in mine.report.verdicts.values()} == {"exact"}
    want, _ = grads_of(mine, window, inputs=((XS, jnp.asarray(LANES)),))
    got, _ = grads_of(learner_of(), window, reset=LANES)
    close(got, want)


def test_pieces_of_a_stream_add_up_whatever_resets_they_have():
    """A state whose trace is by lane is taken by every function, with and without resets."""
    learner, run = learner_of(), learner_of().value_and_grad(loss, 1, "sum")
    (_, want), end = run(PARAMS, learner.init(), XS, YS, None, jnp.asarray(LANES))
    total, state = jax.tree.map(jnp.zeros_like, PARAMS), learner.init()
    for a, b, reset in ((0, 2, None), (2, 4, LANES[2:4]), (4, 5, None), (5, 7, LANES[5:7].astype(np.int32))):
        (_, grads), state = run(PARAMS, state, XS[a:b], YS[a:b], None, reset)
        total = jax.tree.map(jnp.add, total, grads)
    close((total, state.hidden, state.trace), (want, end.hidden, end.trace))
    assert int(state.step) == T


def test_another_initial_state():
    learner, other = learner_of(), jnp.asarray(RNG.standard_normal((B, H)))
    (_, got), state = grads_of(learner, reset=STEPS, initial=other, state=learner.init(PARAMS, other))
    (_, want), end = grads_of(learner_of(hidden=other), reset=STEPS)
    close((got, state.hidden), (want, end.hidden))
    shapes = learner_of(hidden=jax.ShapeDtypeStruct((B, H), START.dtype))
    (_, got), _ = grads_of(shapes, reset=STEPS, initial=other, state=shapes.init(PARAMS, other))
    close(got, want)


def test_one_step_at_a_time():
    """`step` moves hidden state and trace as a window without loss does."""
    learner = learner_of("pp_prop")
    state, initial = learner.init(), learner.init(lanes=True)
    for t in range(T):
        state, _ = learner.step(PARAMS, state, XS[t], reset=jnp.asarray(LANES[t]))
    _, want = grads_of(learner, 1, reset=LANES)
    close((state.hidden, state.trace), (want.hidden, want.trace))
    assert [a.shape for a in jax.tree.leaves(state)] == [a.shape for a in jax.tree.leaves(initial)]


def test_a_loop_that_carries_the_state():
    """Under `jit` and `scan`: the state of `init(lanes=True)` has the shapes that resets by lane need."""
    learner = learner_of()

    @jax.jit
    def looped(state):
        def body(state, xs):
            return learner.step(PARAMS, state, xs[0], reset=xs[1])

        return jax.lax.scan(body, state, (XS, jnp.asarray(LANES)))[0]

    _, want = grads_of(learner, 1, reset=LANES)
    got = looped(learner.init(lanes=True))
    close((got.hidden, got.trace), (want.hidden, want.trace))


def test_keys_and_counters_start_again_too():
    def step(p, state, x):
        h, n, key = state
        key, now = jax.random.split(key)
        h = 0.9 * h + x @ p + n + jax.random.normal(now, h.shape)
        return (h, n + 1, key), h

    hidden = (jnp.zeros((B, H)), jnp.zeros((), jnp.int32), jax.random.key(3))
    learner = learner_of(step=step, params=PARAMS["w"], hidden=hidden)
    _, end = grads_of(learner, params=PARAMS["w"], reset=np.arange(T) == 4)
    _, want = learner.value_and_grad(loss, 3)(PARAMS["w"], learner.init(), XS[4:], YS[4:])
    close(end.hidden[:2], want.hidden[:2])
    assert (jax.random.key_data(end.hidden[2]) == jax.random.key_data(want.hidden[2])).all()


def test_training_with_resets_is_training_on_each_sequence():
    learner, sgd = learner_of(), optax.sgd(0.05)
    run, flags = learner.train(sgd, loss, window=2), np.arange(T) == 4
    params, _, _, losses = run(PARAMS, sgd.init(PARAMS), learner.init(), XS, YS, None, flags)
    want, opt, first = PARAMS, sgd.init(PARAMS), []
    for part in (slice(0, 4), slice(4, T)):
        want, opt, _, some = run(want, opt, learner.init(), XS[part], YS[part])
        first.append(some)
    close((params, losses), (want, jnp.concatenate(first)))


@pytest.mark.parametrize("window", [1, 3])
def test_a_stream_that_starts_again(window):
    learner, sgd = learner_of(), optax.sgd(0.05)
    stream = learner.online(sgd, loss, window=window)
    for t in range(T):
        stream.feed(XS[t], YS[t], LANES[t] if LANES[t].any() else False)
    stream.flush()
    run = learner.train(sgd, loss, window=window)
    params, _, state, _ = run(PARAMS, sgd.init(PARAMS), learner.init(), XS, YS, None, LANES)
    close((stream.params, stream.state.hidden, stream.state.trace), (params, state.hidden, state.trace))
    stream.feed(XS[0], YS[0], True)
    stream.flush()
    assert stream.step == T + 1


def test_a_program_without_resets_is_as_it_was():
    """Nothing of resets is in it: no flag, no choice between two states, no block read at each step."""
    learner = learner_of()
    run = learner.value_and_grad(loss, 3)
    args = (PARAMS, learner.init(), XS, YS)
    texts = [str(jax.make_jaxpr(run)(*args, None, *more)) for more in ((), (None,))]
    assert texts[0] == texts[1] and not re.search(r"f64\S* = select_n", texts[0])
    assert re.search(r"f64\S* = select_n", str(jax.make_jaxpr(run)(*args, None, jnp.asarray(STEPS))))


PAST_RULES = ["d_rtrl()", "rtrl()", "snap(n=2)", "uoro()", "kf_rtrl()", "pp_prop(decay=0.8)", "e_prop(kappa=0.5)"]


@pytest.mark.parametrize("lane", [None, 0], ids=["all", "lane"])
@pytest.mark.parametrize(
    "rule",
    [r if r in PAST_RULES[:1] else pytest.param(r, marks=pytest.mark.slow) for r in [*PAST_RULES, "rflo(decay=0.8)",
     "ottt(decay=0.8)", "d_rtrl(credit='state')"]],
)  # fmt: skip
def test_what_is_not_finite_ends_with_the_sequence(rule, lane):
    """A number that broke before a reset, in an earlier window or in the same one, leaves nothing behind it."""
    s = Sequence("cells/lru", RULES[rule])
    for window, bad, start in ((1, 3, 4), (3, 3, 4)):
        if window in windows_of(s.learner.rule, (1, 3)):
            flags = np.zeros(T, bool) if lane is None else np.zeros((T, s.learner.resets.by_lane.facts.lanes), bool)
            flags[start if lane is None else (start, lane)] = True
            inputs = s.inputs
            _, want = s.grads(window, s.learner.init(), 0, T, reset=jnp.asarray(flags))
            at = (bad, ...) if lane is None else (bad, lane)
            s.inputs = jax.tree.map(lambda a, at=at: a.at[at].set(jnp.nan), inputs)
            _, got = s.grads(window, s.learner.init(), 0, T, reset=jnp.asarray(flags))
            s.inputs = inputs
            close((got.hidden, got.trace), (want.hidden, want.trace))
