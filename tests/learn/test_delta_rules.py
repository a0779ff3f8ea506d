"""Delta rules with many keys: the trace that all rows of a memory share, against BPTT and the dense Jacobian."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax

B, I, KEYS, VALUES, T = 2, 3, 9, 4, 7


def unit(k):
    return k / jnp.sqrt((k * k).sum(-1, keepdims=True) + 1e-3)


def parts(p, x):
    return unit(x @ p["q"]), unit(x @ p["k"]), x @ p["v"], jax.nn.sigmoid(x @ p["beta"]), jax.nn.sigmoid(x @ p["alpha"])


def einsum(p, S, x):
    q, k, v, beta, alpha = parts(p, x)
    S = alpha[:, None, None] * S
    S = S + jnp.einsum("b,bv,bk->bvk", beta, v - jnp.einsum("bvk,bk->bv", S, k), k)
    return S, jnp.einsum("bvk,bk->bv", S, q)


def matrix(p, S, x):
    q, k, v, beta, alpha = parts(p, x)
    transition = alpha[:, None, None] * (jnp.eye(KEYS) - beta[:, None, None] * k[:, :, None] * k[:, None, :])
    S = S @ transition + beta[:, None, None] * v[:, :, None] * k[:, None, :]
    return S, (S @ q[..., None])[..., 0]


def one_sample(p, S, x):
    q, k, v, beta, alpha = parts(p, x)
    S = alpha * S
    S = S - beta * jnp.outer(S @ k, k) + beta * jnp.outer(v, k)
    return S, S @ q


def heads(p, S, x):
    """Two heads of two rows each, cut out of wide products."""
    q, k, v, beta, alpha = parts(p, x)
    v = v.reshape(B, 2, VALUES // 2)
    S = alpha[:, None, None, None] * S
    S = S + beta[:, None, None, None] * jnp.einsum("bhv,bk->bhvk", v - jnp.einsum("bhvk,bk->bhv", S, k), k)
    return S, jnp.einsum("bhvk,bk->bhv", S, q).reshape(B, VALUES)


def key_major(p, S, x):
    q, k, v, beta, alpha = parts(p, x)
    S = alpha[:, None, None] * S
    S = S + k[..., None] * (beta[:, None] * (v - (S * k[..., None]).sum(-2)))[..., None, :]
    return S, jnp.einsum("bk,bkv->bv", q, S)


def gate_per_row(p, S, x):
    """Rows are moved by matrices of their own: nothing is shared."""
    q, k, v, _, alpha = parts(p, x)
    S = alpha[:, None, None] * S
    error = jax.nn.sigmoid(v) * (v - jnp.einsum("bvk,bk->bv", S, k))
    return S + error[..., None] * k[:, None, :], jnp.einsum("bvk,bk->bv", S, q)


def norm_within_rows(p, S, x):
    """The matrix that moves a row depends on the row."""
    return einsum(p, unit(S), x)


def two_rows_apart(p, S, x):
    """One row of four is kept longer than the others."""
    return einsum(p, S * jnp.ones((VALUES, 1)).at[2].set(0.5), x)


SHARED = {
    "einsum": (einsum, (B, VALUES, KEYS)),
    "matrix": (matrix, (B, VALUES, KEYS)),
    "mapped over samples": (jax.vmap(one_sample, (None, 0, 0)), (B, VALUES, KEYS)),
    "keys first": (key_major, (B, KEYS, VALUES)),
    "heads": (heads, (B, 2, VALUES // 2, KEYS)),
}
APART = {
    "gate per row": (gate_per_row, (B, VALUES, KEYS)),
    "norm within rows": (norm_within_rows, (B, VALUES, KEYS)),
    "two rows apart": (two_rows_apart, (B, VALUES, KEYS)),
}
WRITTEN = ("v", "alpha", "beta")  # what is carried whole; a key is not, by default


def drawn(*shape, seed=0):
    return jnp.asarray(0.7 * np.random.RandomState(seed).standard_normal(shape))


def built(name, rule="d_rtrl"):
    step, memory = (SHARED | APART)[name]
    shapes = {"q": (I, KEYS), "k": (I, KEYS), "v": (I, VALUES), "alpha": (I,), "beta": (I,)}
    params = {n: drawn(*shape, seed=i) for i, (n, shape) in enumerate(shapes.items())}
    hidden = drawn(*memory, seed=9)
    learner = etrax.compile(step, rule, drawn(B, I), params=params, hidden=hidden)
    return learner, step, params, hidden


def squares(output, target):
    return ((output - target) ** 2).sum()


def bptt(step, params, hidden, x, target):
    def loss(p):
        return squares(jax.lax.scan(lambda S, x: step(p, S, x), hidden, x)[1], target)

    return jax.grad(loss)(params)


def gradient(learner, x, target, window, reset=None):
    run = learner.value_and_grad(squares, window=window, reduction="sum")
    return run(learner.params, learner.init(), x, target, reset=reset)[0][1]


def assert_equal(found, want):
    np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("window", [1, 3, pytest.param(7, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SHARED | APART)
def test_values_and_gates_are_those_of_bptt(name, window):
    learner, step, params, hidden = built(name)
    x, target = drawn(T, B, I, seed=1), drawn(T, B, VALUES, seed=2)
    want, found = bptt(step, params, hidden, x, target), gradient(learner, x, target, window)
    exact = WRITTEN if name != "gate per row" else ("v", "alpha")
    for n in exact:
        assert learner.report.verdicts[(n,)].kind == "exact", n
        assert_equal(found[n], want[n])
    assert learner.report.verdicts[("k",)].kind == "truncated"


def bytes_of(name):
    learner, *_ = built(name)
    nbytes = sum(a.nbytes for a in jax.tree.leaves(learner.init().trace))
    assert nbytes == learner.report.memory["d_rtrl"] == learner.memory(window=3).trace
    return nbytes


@pytest.mark.parametrize("name", SHARED)
def test_all_rows_share_the_trace_of_the_values(name):
    """E of the values is (features, keys) for each sample; a gate has a row for every row of the memory."""
    number = 8
    assert bytes_of(name) == number * B * I * KEYS * (1 + 2 * VALUES)


@pytest.mark.parametrize("name", APART)
def test_rows_that_move_apart_have_traces_of_their_own(name):
    gates = 2 if name != "gate per row" else 1
    assert bytes_of(name) == 8 * B * I * KEYS * (VALUES + gates * VALUES)


@pytest.mark.parametrize("name", ["einsum", "keys first"])
def test_the_trace_is_the_dense_jacobian(name):
    """ε of the values after some windows, entry by entry, is dS/dW."""
    learner, step, params, hidden = built(name)
    x = drawn(5, B, I, seed=1)
    state = learner.init()
    for n in range(5):
        state, _ = learner.step(params, state, x[n])

    def memory(v):
        S, _ = jax.lax.scan(lambda S, x: step({**params, "v": v}, S, x), hidden, x)
        return S if name == "einsum" else jnp.swapaxes(S, 1, 2)

    dense = jax.jacrev(memory)(params["v"])  # (b, row, key, feature, column)
    rows = np.arange(VALUES)
    own = np.moveaxis(np.asarray(dense)[:, rows, :, :, rows], 0, 1)  # (b, row, key, feature): of the row's own column
    entries = [a for a in jax.tree.leaves(state.trace) if a.shape == (KEYS, B, I, 1)]
    (trace,) = entries
    assert_equal(np.broadcast_to(np.moveaxis(np.asarray(trace)[..., 0], 0, 1)[:, None], (B, VALUES, KEYS, I)), own)
    others = np.array(dense)
    others[:, rows, :, :, rows] = 0
    assert not others.any()


@pytest.mark.parametrize("name", ["einsum", "keys first"])
def test_lanes_that_start_again(name):
    """A lane that starts again has a gradient as from two sequences; what is shared by rows is not by lanes."""
    learner, step, params, hidden = built(name)
    x, target = drawn(T, B, I, seed=1), drawn(T, B, VALUES, seed=2)
    reset = np.zeros((T, B), bool)
    reset[4, 1] = True

    def loss(p):
        S, total = hidden, 0.0
        for t in range(T):
            S = jnp.where(reset[t][:, None, None], hidden, S)
            S, y = step(p, S, x[t])
            total = total + squares(y, target[t])
        return total

    want = jax.grad(loss)(params)
    for window in (1, 3):
        found = gradient(learner, x, target, window, reset=jnp.asarray(reset))
        for n in WRITTEN:
            assert_equal(found[n], want[n])


@pytest.mark.parametrize("rule", [etrax.e_prop(), etrax.e_prop(0.5), etrax.pp_prop(), etrax.three_factor()], ids=str)
def test_other_rules_read_the_same_blocks(rule):
    """Whether the rows of a memory share a trace changes no number: beside a step in which they cannot."""
    one, step, params, hidden = built("einsum", rule)

    def kept_apart(p, S, x):  # a factor of one for each row, of which it is not known that it is
        return step(p, S * (1 + 0 * x[0, :1]) ** jnp.arange(VALUES)[:, None], x)

    two = etrax.compile(kept_apart, rule, drawn(B, I), params=params, hidden=hidden)
    x, target = drawn(T, B, I, seed=1), drawn(T, B, VALUES, seed=2)
    found, want = (gradient(learner, x, target, 3) for learner in (one, two))
    for n in params:
        assert_equal(found[n], want[n])


def test_states_of_16_bits():
    """Blocks are of 16 bits, their products and traces of 32."""
    _, step, params, hidden = built("einsum")
    params, hidden = jax.tree.map(lambda a: a.astype(jnp.bfloat16), (params, hidden))
    x, target = drawn(T, B, I, seed=1).astype(jnp.bfloat16), drawn(T, B, VALUES, seed=2).astype(jnp.bfloat16)
    learner = etrax.compile(step, "d_rtrl", x[0], params=params, hidden=hidden)
    assert {a.dtype for a in jax.tree.leaves(learner.init().trace)} == {jnp.dtype(jnp.float32)}
    found, want = gradient(learner, x, target, 3), bptt(step, params, hidden, x, target)
    for n in WRITTEN:
        a, b = (np.asarray(g[n], np.float32) for g in (found, want))
        assert np.linalg.norm(a - b) < 0.05 * np.linalg.norm(b), n


def test_a_layer_of_flax():
    """Heads are cut out of the outputs of `nnx.Linear`."""
    nnx = pytest.importorskip("flax.nnx")

    class DeltaNet(nnx.Module):
        def __init__(self, rngs):
            widths = {"q": 2 * KEYS, "k": 2 * KEYS, "v": 2 * VALUES, "beta": 2, "out": I}
            for name, width in widths.items():
                size = I if name != "out" else 2 * VALUES
                layer = nnx.Linear(size, width, use_bias=False, param_dtype=float, rngs=rngs)
                setattr(self, name, layer)

        def __call__(self, S, x):
            q, k, v = (getattr(self, n)(x).reshape(B, 2, -1) for n in "qkv")
            beta, k = jax.nn.sigmoid(self.beta(x)), unit(k)
            error = v - jnp.einsum("bhvk,bhk->bhv", S, k)
            S = S + jnp.einsum("bh,bhv,bhk->bhvk", beta, error, k)
            return S, self.out(jnp.einsum("bhvk,bhk->bhv", S, q).reshape(B, -1))

    module, hidden = DeltaNet(nnx.Rngs(0)), drawn(B, 2, VALUES, KEYS)
    learner = etrax.compile(module, "d_rtrl", drawn(B, I), hidden=hidden)
    assert {a.shape for a in jax.tree.leaves(learner.init().trace)} == {(KEYS, B, I, 2, 1), (KEYS, B, I, 2 * VALUES)}
    check_module(learner, drawn(T, B, I, seed=2), {"q", "v", "beta", "out"})


def test_a_layer_of_equinox():
    """One sample at a time, with `eqx.nn.Linear`, mapped over samples."""
    eqx = pytest.importorskip("equinox")

    class DeltaNet(eqx.Module):
        q: eqx.nn.Linear
        k: eqx.nn.Linear
        v: eqx.nn.Linear
        beta: eqx.nn.Linear

        def __init__(self, key):
            widths = {"q": KEYS, "k": KEYS, "v": VALUES, "beta": 1}
            keys = jax.random.split(key, len(widths))
            for (name, width), one in zip(widths.items(), keys, strict=True):
                setattr(self, name, eqx.nn.Linear(I, width, use_bias=False, key=one, dtype=float))

        def __call__(self, x, S):
            k, beta = unit(self.k(x)), jax.nn.sigmoid(self.beta(x))
            S = S + jnp.outer(beta * (self.v(x) - S @ k), k)
            return S, S @ self.q(x)

    def call(module, S, x):
        return jax.vmap(lambda S, x: module(x, S))(S, x)

    module, hidden = DeltaNet(jax.random.key(0)), drawn(B, VALUES, KEYS)
    learner = etrax.compile(module, "d_rtrl", drawn(B, I), hidden=hidden, call=call)
    check_module(learner, drawn(T, B, VALUES, seed=2), {"q", "v", "beta"})


def check_module(learner, target, exact):
    """Parameters of these layers are exact, that of the keys is not; the numbers say so."""
    kinds = {path[0]: str(v.kind) for path, v in learner.report.verdicts.items()}
    assert kinds == dict.fromkeys(exact, "exact") | {"k": "truncated"}
    table = etrax.testing.compare(
        learner, squares, learner.params, learner.hidden, drawn(T, B, I, seed=1), target, window=3
    )
    table.check()
