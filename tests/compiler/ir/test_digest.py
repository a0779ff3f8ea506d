"""A digest is of what a program computes: not of names, places or addresses, and not of the process that takes it."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from etrax.compiler.ir import digest_of, digest_of_function

X = jax.ShapeDtypeStruct((3,), jnp.float32)
W = jax.ShapeDtypeStruct((3, 3), jnp.float32)
TABLE = np.arange(3, dtype=np.float32)


def spike(width):
    @jax.custom_jvp
    def fire(v):
        return (v > 0).astype(v.dtype)

    fire.defjvp(lambda p, t: (fire(p[0]), t[0] / (1 + width * jnp.abs(p[0])) ** 2))
    return fire


def saved(gain):
    @jax.custom_vjp
    def f(x):
        return x

    f.defvjp(lambda x: (x, None), lambda _, g: (gain * g,))
    return f


def loop(body):
    return lambda x: jax.lax.scan(lambda c, _: (body(c), None), x, None, length=3)[0]


def renamed(activation):
    scale = 2.0
    return jnp.sin(activation @ jnp.ones((3, 3))) * scale + 0.5


SAME = {
    "names of variables": (lambda x: jnp.sin(x @ jnp.ones((3, 3))) * 2.0 + 0.5, renamed),
    "jitted on the way": (lambda x: jnp.sin(x) * 2.0, lambda x: jax.jit(lambda a: jnp.sin(a) * 2.0)(x)),
    "jitted twice": (lambda x: jnp.sin(jnp.sin(x)), lambda x: jax.jit(jnp.sin)(jax.jit(jnp.sin)(x))),
    "another copy of a constant": (lambda x: x + TABLE, lambda x: x + np.array(TABLE)),
    "a constant of jax": (lambda x: x + TABLE, lambda x: x + jnp.asarray(TABLE)),
    "a rule made anew": (spike(1.0), spike(1.0)),
}
DIFFERENT = {
    "an operation": (jnp.sin, jnp.cos),
    "a number": (lambda x: x * 2.0, lambda x: x * 2.5),
    "a number in its last bit": (lambda x: x * 0.1, lambda x: x * np.float32(np.nextafter(np.float32(0.1), 1))),
    "an array": (lambda x: x + TABLE, lambda x: x + TABLE[::-1].copy()),
    "the order of operands": (lambda x: x - 2.0, lambda x: 2.0 - x),
    "which value is read": (lambda x: jnp.sin(x) + jnp.cos(x) * x, lambda x: jnp.cos(x) + jnp.sin(x) * x),
    "the order of results": (lambda x: (x, x + 1.0), lambda x: (x + 1.0, x)),
    "the body of a loop": (loop(jnp.sin), loop(jnp.cos)),
    "a constant in a loop": (loop(lambda c: c * TABLE), loop(lambda c: c * (TABLE + 1))),
    "a branch": tuple(
        lambda x, f=f: jax.lax.cond(x[0] > 0, f, jnp.tanh, x) for f in (jnp.sin, jnp.cos)
    ),
    "a derivative of the user's": (spike(1.0), spike(2.0)),
    "a derivative in reverse": (saved(1.0), saved(2.0)),
    "a stop of the gradient": (lambda x: x * x, lambda x: x * jax.lax.stop_gradient(x)),
    "a seed": tuple(lambda x, s=s: x + jax.random.normal(jax.random.key(s), (3,), jnp.float32) for s in (0, 1)),
    "a type": (lambda x: x.astype(jnp.float16), lambda x: x.astype(jnp.bfloat16)),
}  # fmt: skip


@pytest.mark.parametrize("what", SAME)
def test_same_program(what):
    one, two = SAME[what]
    assert digest_of_function(one, X) == digest_of_function(two, X)


@pytest.mark.parametrize("what", DIFFERENT)
def test_another_program(what):
    one, two = DIFFERENT[what]
    assert digest_of_function(one, X) != digest_of_function(two, X)


def test_another_shape():
    assert digest_of_function(jnp.sin, X) != digest_of_function(jnp.sin, W)


def test_functions_without_a_derivative_have_a_digest():
    count = lambda x: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))[1]
    assert digest_of_function(count, X) == digest_of_function(count, X) != digest_of_function(jnp.sin, X)


VALUES = [1, 1.0, True, "1", b"1", None, [1], [[1]], ["1"], {"a": 1}, {"a": 2}, {"b": 1}, np.float32(1), np.zeros(2),
          np.zeros((2, 1)), np.zeros(2, np.int64), jnp.float32, np.float64(1), jax.random.key(0), jax.random.key(1),
          {1, 2}, {1, 3}, -0.0, 0.0, float("nan"), "\ud800", [1, 2], [12], ["1", "2"], ["12"]]  # fmt: skip


def test_values_are_told_apart():
    assert len({digest_of(v) for v in VALUES}) == len(VALUES)
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    assert digest_of({"x", "y", "z"}) == digest_of({"z", "y", "x"})


def digests():
    """Of programs that are the same jaxprs under every version of JAX that is served."""
    params = {"w": W, "b": X}
    adam = [optax.adam(rate) for rate in (0.1, 0.2)]
    return [
        digest_of_function(lambda x, w: jax.nn.relu(x @ w), X, W),
        digest_of_function(lambda x: x + TABLE, X),
        digest_of_function(spike(1.0), X),
        *(digest_of_function(o.update, params, jax.eval_shape(o.init, params)) for o in adam),
    ]


STORED = ["487aa4dd4c7b6d75", "6f4e5970fba4a076", "da36a46b14ea2dbf"]
SCRIPT = "from tests.compiler.ir.test_digest import digests; print(*digests())"


def test_same_in_another_process():
    """Texts hash to other numbers there, and objects lie at other addresses."""
    found = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu"}
        ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment)
        assert ended.returncode == 0, ended.stderr
        found.append(ended.stdout.split())
    assert found[0] == found[1] and len(set(found[0])) == 5
    assert found[0][:3] == STORED
