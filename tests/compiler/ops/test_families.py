"""Every family of weight ops against the dense Jacobian of the equation itself, in float64."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzz.evaluate import Evaluator
from jax import lax
from jax.experimental.sparse import BCOO
from tests.machines import write_out_everything

from etrax._compat import open_jaxpr, run_equation
from etrax.compiler.analysis import Copies
from etrax.compiler.ir import interpret
from etrax.compiler.ops import rule_for, with_columns
from etrax.compiler.ops._base import call_of
from etrax.runtime import site_math

K = 3
# brainevent, of its own indices in float64.
pytestmark = [
    pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types"),
    pytest.mark.filterwarnings("ignore:Global backend"),
]


class Case(NamedTuple):
    """f(w, x): a function whose only equation that reads both is the op; `family` is what must serve it."""

    f: Callable
    w: tuple[int, ...]
    x: Any
    family: str


CASES: dict[str, Case] = {}


def case(name, f, w, x, family):
    CASES[name] = Case(f, w, x if callable(x) else normal(*x), family)


def normal(*shape):
    return lambda rng: jnp.asarray(rng.standard_normal(shape))


def tokens(n, *shape, low=0):
    return lambda rng: jnp.asarray(rng.randint(low, n, size=shape), jnp.int32)


def coins(*shape):
    return lambda rng: jnp.asarray(rng.uniform(size=shape) < 0.5, float)


# Products: batch axes, either operand order, several contracted axes.
for _name, _f, _w, _x in [
    ("x @ w", lambda w, x: x @ w, (3, 4), (2, 3)),
    ("vector @ w", lambda w, x: x @ w, (3, 4), (3,)),
    ("w @ x", lambda w, x: w @ x, (4, 3), (3, 2)),
    ("w @ vector", lambda w, x: w @ x, (4, 3), (3,)),
    ("x @ vector w", lambda w, x: x @ w, (3,), (2, 3)),
    ("inner", lambda w, x: x @ w, (3,), (3,)),
    ("two lead axes", lambda w, x: x @ w, (3, 4), (2, 5, 3)),
    ("stacked", lambda w, x: jnp.einsum("nbi,nio->nbo", x, w), (2, 3, 4), (2, 5, 3)),
    ("stacked, w first", lambda w, x: jnp.einsum("nio,nbi->nob", w, x), (2, 3, 4), (2, 5, 3)),
    ("heads", lambda w, x: jnp.einsum("bi,ihd->bhd", x, w), (3, 2, 4), (5, 3)),
    ("two contracted", lambda w, x: jnp.einsum("bij,ijo->bo", x, w), (2, 3, 4), (5, 2, 3)),
    ("two contracted, turned", lambda w, x: jnp.einsum("jbi,oij->bo", x, w), (4, 2, 3), (3, 5, 2)),
    ("per sample", lambda w, x: jnp.einsum("bio,bi->bo", w, x), (2, 3, 4), (2, 3)),
    ("raw layout", lambda w, x: lax.dot_general(w, x, (((0, 2), (2, 0)), ((1,), (1,)))), (2, 5, 3, 4), (3, 5, 2, 6)),
    ("outer", lambda w, x: lax.dot_general(x, w, (((), ()), ((), ()))), (4,), (3,)),
]:
    case(f"matmul {_name}", _f, _w, _x, "matmul")

# Convolutions.
_conv = lax.conv_general_dilated
_LAST, _ODD = ("NHWC", "HWIO", "NHWC"), ("HWNC", "OHWI", "CWNH")
for _name, _f, _w, _x in [
    ("1d", lambda w, x: _conv(x, w, (1,), "SAME"), (4, 3, 3), (2, 3, 6)),
    ("1d strided, padded", lambda w, x: _conv(x, w, (2,), [(2, 1)]), (4, 3, 3), (2, 3, 7)),
    ("1d dilated", lambda w, x: _conv(x, w, (1,), "VALID", rhs_dilation=(2,)), (4, 3, 2), (2, 3, 7)),
    ("1d transposed", lambda w, x: _conv(x, w, (1,), [(2, 2)], lhs_dilation=(2,)), (4, 3, 3), (2, 3, 5)),
    ("1d grouped", lambda w, x: _conv(x, w, (1,), "SAME", feature_group_count=2), (6, 2, 3), (2, 4, 6)),
    ("1d depthwise", lambda w, x: _conv(x, w, (1,), "SAME", feature_group_count=3), (6, 1, 3), (2, 3, 6)),
    ("2d", lambda w, x: _conv(x, w, (1, 2), "SAME"), (4, 3, 3, 2), (2, 3, 4, 5)),
    ("2d channels last", lambda w, x: _conv(x, w, (2, 1), "VALID", None, None, _LAST), (3, 2, 3, 4), (2, 5, 4, 3)),
    ("2d all at once", lambda w, x: _conv(x, w, (2, 1), [(1, 0), (2, 1)], (1, 2), (2, 1), _ODD, feature_group_count=2),
     (4, 2, 2, 2), (5, 4, 2, 4)),
    ("3d", lambda w, x: _conv(x, w, (1, 1, 1), "VALID"), (2, 2, 2, 1, 2), (1, 2, 3, 2, 3)),
]:  # fmt: skip
    case(f"conv {_name}", _f, _w, _x, "convolution")

# Rows of a table.
case("lookup", lambda w, t: w[t], (5, 3), tokens(5, 4), "lookup")
case("lookup one", lambda w, t: w[t], (5, 3), tokens(5), "lookup")
case("lookup mapped", lambda w, t: jax.vmap(lambda t: w[t])(t), (5, 3), tokens(12, 8, low=-12), "lookup")
case("lookup grid", lambda w, t: jnp.take(w, t, axis=0), (5, 3), tokens(5, 2, 3), "lookup")
case("lookup of matrices", lambda w, t: w[t], (5, 3, 2), tokens(5, 4), "lookup")
case("lookup of numbers", lambda w, t: w[t], (5,), tokens(5, 4), "lookup")
case("lookup clipped", lambda w, t: jnp.take(w, t, axis=0, mode="clip"), (5, 3), tokens(9, 6, low=-9), "lookup")
case(
    "lookup filled",
    lambda w, t: jnp.take(w, t, axis=0, mode="fill", fill_value=0.0),
    (5, 3),
    tokens(12, 8, low=-12),
    "lookup",
)
case("lookup out of bounds", lambda w, t: w[t], (5, 3), tokens(12, 8, low=-12), "lookup")
case("lookup one row", lambda w, t: lax.dynamic_index_in_dim(w, t, keepdims=False), (5, 3), tokens(9, low=-9), "lookup")
case("lookup column", lambda w, t: jnp.take(w, t, axis=1), (5, 3), tokens(3, 4), "elementwise")

# Sparse matrices: six entries of a (4, 5) matrix, two of them at one place.
AT = jnp.array([[0, 1], [0, 4], [2, 2], [2, 2], [3, 0], [1, 4]])


def sparse(w):
    return BCOO((w, AT), shape=(4, 5))


PADDED = jnp.array([[0, 1], [2, 2], [3, 0], [1, 4], [4, 5], [4, 5]])


def padded(w):
    """The last two entries lie outside of the matrix, where JAX puts those that it does not need."""
    return BCOO((w, PADDED), shape=(4, 5))


case("bcoo @ x", lambda w, x: sparse(w) @ x, (6,), (5, 3), "sparse product")
case("bcoo @ vector", lambda w, x: sparse(w) @ x, (6,), (5,), "sparse product")
case("x @ bcoo", lambda w, x: x @ sparse(w), (6,), (3, 4), "sparse product")
case("vector @ bcoo", lambda w, x: x @ sparse(w), (6,), (4,), "sparse product")
case("padded bcoo @ x", lambda w, x: padded(w) @ x, (6,), (5, 3), "sparse product")
case("x @ padded bcoo", lambda w, x: x @ padded(w), (6,), (3, 4), "sparse product")
case("bcoo.T @ x", lambda w, x: sparse(w).T @ x, (6,), (4, 3), "sparse product")


def brainevent():
    return pytest.importorskip("brainevent")


COLUMNS, STARTS = jnp.array([1, 4, 4, 2, 0, 3], jnp.int32), jnp.array([0, 2, 3, 4, 6], jnp.int32)
FAN_OUT = jnp.array([[1, 4], [4, 4], [2, 0], [3, 1]], jnp.int32)
FAN_IN = jnp.array([[1, 3], [0, 0], [2, 1], [3, 2], [1, 0]], jnp.int32)


def csr(w):
    return brainevent().CSR((w, COLUMNS, STARTS), shape=(4, 5))


def csc(w):
    return brainevent().CSC((w, COLUMNS, STARTS), shape=(5, 4)).T


def fan_out(w):
    return brainevent().FixedNumPerPre((w, FAN_OUT), shape=(4, 5))


def fan_in(w):
    return brainevent().FixedNumPerPost((w, FAN_IN), shape=(4, 5))


def coo(w):
    return pytest.importorskip("saiunit").sparse.COO((w, AT[:, 0], AT[:, 1]), shape=(4, 5))


def events(x):
    return brainevent().BinaryArray(x)


def drawn(kind, *arguments):
    """A matrix drawn at each use, by numba; w takes the place of the one argument that is None."""

    def matrix(w):
        pytest.importorskip("numba")
        return getattr(brainevent(), kind)((*(w if a is None else a for a in arguments), 0.5, 3), shape=(4, 5))

    return matrix


def same(x):
    return x


# Spikes, and graded and negative numbers, which count in an event-driven product as the library has it.
def spikes_and_numbers(*shape):
    return lambda rng: jnp.asarray(rng.choice([0.0, 1.0, 1.0, -1.0, 0.5], size=shape))


def connections(name, matrix, w, family, seen=events, batches=(True, False)):
    """A product from either side, of a batch and of a vector."""
    left, right = lambda w, x: seen(x) @ matrix(w), lambda w, x: matrix(w) @ seen(x)
    draw, label = (spikes_and_numbers, "events") if seen is events else (normal, "x")
    for batch in batches:
        one = "" if batch else "one "
        case(f"{one}{label} @ {name}", left, w, draw(3, 4) if batch else draw(4), family)
        case(f"{name} @ {one}{label}", right, w, draw(5, 3) if batch else draw(5), family)


ONE = "product with one weight"
connections("csr", csr, (6,), "sparse product", same)
connections("csr", csr, (6,), "sparse product")
connections("csr of one weight", csr, (1,), ONE, same, [True])
connections("csr of one weight", csr, (1,), ONE, events, [False])
connections("csc", csc, (6,), "sparse product", events, [True])
connections("fan-out", fan_out, (4, 2), "sparse product")
connections("fan-out of one weight", fan_out, (1,), ONE)
connections("fan-in", fan_in, (5, 2), "sparse product", events, [True])
connections("dense", same, (4, 5), "matmul of events")
case("coo @ x", lambda w, x: coo(w) @ x, (6,), (5, 3), "sparse product")
case("coo @ one x", lambda w, x: coo(w) @ x, (6,), (5,), "sparse product")
case("x @ JITCScalarR", lambda w, x: x @ drawn("JITCScalarR", None)(w), (1,), (3, 4), ONE)
case("JITCNormalR @ one x", lambda w, x: drawn("JITCNormalR", None, 0.3)(w) @ x, (1,), (5,), ONE)
case("x @ JITCNormalC", lambda w, x: x @ drawn("JITCNormalC", 0.3, None)(w), (1,), (3, 4), ONE)
case("events @ JITCUniformC", lambda w, x: events(x) @ drawn("JITCUniformC", -3.0, None)(w), (1,), coins(4), ONE)


class Call(NamedTuple):
    """One use of an op: its equation and the values of its operands at each of K steps."""

    eqn: Any
    weight: int
    operands: list[list[Any]]


def joins(f, w, xs):
    """The equations that join w with x when f runs on each of xs: equation, operand that is the weight, values."""
    jaxpr, consts = open_jaxpr(jax.make_jaxpr(f)(w, xs[0]))
    found: list[tuple[Any, int, list[Any]]] = []
    for x in xs:
        keep, from_w, from_x = [w, x], {id(w)}, {id(x)}

        def handle(site, eqn, values, keep=keep, from_w=from_w, from_x=from_x):
            if eqn.primitive.name in ("jit", "pjit"):
                return None
            mine, data = ([i for i, v in enumerate(values) if id(v) in ids] for ids in (from_w, from_x))
            if mine and data:
                found.append((eqn, mine[0], values))
            outs = run_equation(eqn, values)
            keep.extend(outs)
            (from_x if data else from_w if mine else set()).update(map(id, outs))
            return outs

        interpret(jaxpr, consts, [w, x], handle)
    return found


def drawn_for(c: Case):
    return normal(*c.w)(np.random.RandomState(0)), [c.x(np.random.RandomState(1 + k)) for k in range(K)]


def calls_of(c: Case) -> Call:
    """Find the equation in the jaxpr of f, and its operands for K draws of x."""
    found = joins(c.f, *drawn_for(c))
    eqn, weight, _ = found[0]
    return Call(eqn, weight, [values for _, _, values in found[:: len(found) // K]])


def call_by_shapes(c: Case):
    """The call alone: nothing is computed."""
    w, xs = drawn_for(c)
    found = []
    jax.eval_shape(lambda w, x: found.extend(joins(c.f, w, [x])), w, xs[0])
    return call_of(*found[0][:2])


@pytest.mark.parametrize("name", CASES)
def test_family(name, monkeypatch):
    write_out_everything(monkeypatch)
    c = CASES[name]
    eqn, weight, operands = calls_of(c)
    call = call_of(eqn, weight)
    rule = rule_for(call)
    call = rule.with_rows_last(call)
    assert rule.name == c.family
    if c.family == "elementwise":
        return
    fixed = [operands[0][i] for i in rule.fixed_operands]
    u = [jnp.stack([values[i] for values in operands]) for i in rule.varying(call)]

    def y(w, k):
        values = list(operands[k])
        values[weight] = w
        return rule.rows_moved_last(run_equation(eqn, values)[0])

    shape, w = call.out.shape, operands[0][weight]
    rng = np.random.RandomState(9)
    c, g, p, gs = (jnp.asarray(rng.standard_normal(s)) for s in ((K, *shape), shape, shape, (K, *shape)))
    ones = jnp.eye(g.size).reshape(g.size, *shape)[:12]

    @jax.jit
    def pieces(u):
        trace = rule.outer(call, fixed, u, c)
        applied, grad = rule.apply(call, fixed, trace, g), rule.grad(call, fixed, u, gs)
        scaled = rule.outer(call, fixed, u, c * p), trace * rule.spread(call, fixed, p)
        single = jax.lax.map(lambda e: rule.outer(call, fixed, u, jnp.stack([e] * K)), ones)
        return (
            trace,
            applied,
            grad,
            scaled,
            single,
            jax.vmap(lambda t: rule.apply(call, fixed, t, jnp.ones(shape)))(single),
        )

    rows = np.asarray(jax.jit(lambda w: [jax.jacrev(y)(w, k) for k in range(K)])(w)).reshape(K, g.size, w.size)
    flat = lambda a: np.asarray(a).reshape(*a.shape[: a.ndim - len(shape)], -1)
    same = lambda a, b: np.testing.assert_allclose(
        np.asarray(a).reshape(-1), np.asarray(b).reshape(-1), rtol=1e-12, atol=1e-12
    )
    if rule.kernels.move is not None:
        old = jnp.asarray(rng.standard_normal((2, *rule.trace_shape(call))))
        block = [[p, None], [g, p]]
        moved = jax.jit(lambda u: rule.kernels.move(call, fixed, block, tuple(old), u, (c, 2 * c)))(u)
        at = lambda v: np.asarray(rule.spread(call, fixed, v))
        fresh = np.asarray(rule.outer(call, fixed, u, c))
        keep = np.asarray(rule.outer(call, fixed, [jnp.ones_like(a) for a in u], jnp.ones_like(c))) != 0
        same(moved[0] * keep, (at(p) * old[0] + fresh) * keep)
        same(moved[1] * keep, (at(g) * old[0] + at(p) * old[1] + 2 * fresh) * keep)
    product = rule.kernels.product(call, fixed)
    if product is not None:
        computed = lambda values: product(w)(*(values[i] for i in rule.varying(call)))
        same(computed(operands[0]), y(w, 0))
        data = rule.varying(call)[0]
        pull = lambda f: jax.vjp(
            lambda x: f([x if i == data else v for i, v in enumerate(operands[0])]), operands[0][data]
        )
        same(pull(computed)[1](g)[0], pull(lambda values: rule.rows_moved_last(run_equation(eqn, values)[0]))[1](g)[0])
    trace, applied, grad, scaled, single, totals = pieces(u)
    assert trace.shape == tuple(rule.trace_shape(call))
    assert applied.shape == grad.shape == call.w.shape
    same(applied, np.einsum("kyw,ky,y->w", rows, flat(c), flat(g)))
    same(grad, np.einsum("kyw,ky->w", rows, flat(gs)))
    # Values per element of y scale exactly that element's entries.
    same(*scaled)
    # An element of y has an entry for every element of w that it reads, and shares none with another.
    assert (np.sum(np.asarray(single) != 0, axis=0) <= 1).all()
    same(totals, rows[:, : len(ones)].sum(0))


@pytest.mark.parametrize("name", CASES)
def test_columns(name):
    """An op whose columns stand there several times, or not at all, is the op of weights repeated in the same way."""
    call = call_by_shapes(CASES[name])
    rule = rule_for(call)
    columns = rule.columns(call)
    if columns is None:
        assert rule.name in ("sparse product", ONE, "matmul of events") or call.params["feature_group_count"] > 1
        return
    operands = calls_of(CASES[name]).operands
    if rule.name == "elementwise":
        call = replace(call, out=call.w)
    count = 1 if columns.new else call.out.shape[columns.out]
    of = np.asarray([*range(count), *range(count), 0][1:])
    wide = with_columns(call, columns, of.size)
    assert wide.out.shape[columns.out] == of.size and wide.w.shape[columns.weight] == of.size
    u = [np.stack([values[i] for values in operands]) for i in rule.varying(call)]
    rng = np.random.RandomState(9)
    c, g = (rng.standard_normal(s) for s in ((K, *wide.out.shape), wide.out.shape))
    copies = Copies(None, columns, of, count, 0, None, None)
    each = np.moveaxis(c * g, columns.out, 0)
    back = np.zeros((count, *each.shape[1:]))
    np.add.at(back, of, each)
    back = np.moveaxis(back, 0, columns.out).reshape(K, *call.out.shape)

    def both(u, c, g, back):
        trace = rule.outer(wide, [], u, c)
        assert trace.shape == tuple(rule.trace_shape(wide))
        added = site_math.copies_added(copies, rule.apply(wide, [], trace, g), columns.weight)
        return added, rule.grad(call, [], u, back)

    found, want = Evaluator()(both, u, c, g, back)
    assert found.shape == want.shape
    np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-12)


def test_entries_are_pairs():
    """The size of a trace is the number of pairs of an element of y and an element of w that it can read."""
    for name in (
        "matmul x @ w",
        "matmul stacked",
        "matmul two contracted",
        "bcoo @ x",
        "csr @ one x",
        "conv 1d dilated",
    ):
        eqn, weight, operands = calls_of(CASES[name])
        call = call_of(eqn, weight)

        def y(w, eqn=eqn, weight=weight, operands=operands):
            return run_equation(eqn, [w if i == weight else v for i, v in enumerate(operands[0])])[0]

        pairs = int((np.asarray(jax.jit(jax.jacrev(y))(operands[0][weight])) != 0).sum())
        rule = rule_for(call)
        assert int(np.prod(rule.trace_shape(rule.with_rows_last(call)))) == pairs, name
