"""Definitions that a program may need, by the name that its text calls."""

from __future__ import annotations

PRELUDE = {
    "draw": '''RNG = np.random.RandomState(0)


def draw(shape, dtype, scale):
    if dtype == "key":
        return jax.random.split(jax.random.key(0), shape) if shape else jax.random.key(0)
    if "int" in dtype:
        return jnp.asarray(RNG.randint(0, 2, shape), dtype)
    a = scale * RNG.standard_normal(shape)
    return jnp.asarray(a + 1j * scale * RNG.standard_normal(shape) if "complex" in dtype else a, dtype)


''',
    "conv": '''def conv(u, w, stride, pad):
    n = w.ndim - 1
    axes = ("NWC", "WIO", "NWC") if n == 2 else ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(u.reshape((-1,) + u.shape[-n:]), w, (stride,) * (n - 1), pad, dimension_numbers=axes)
    return y.reshape(u.shape[:-n] + y.shape[1:])


''',
    "depthwise": '''def depthwise(u, w):
    y = lax.conv_general_dilated(
        u.reshape((-1,) + u.shape[-2:]), w[:, None], (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=w.shape[1],
    )
    return y.reshape(u.shape[:-2] + w.shape[1:])


''',
    "bcoo": '''from jax.experimental import sparse


def bcoo(w, indices, shape, u):
    return u @ sparse.BCOO((w, jnp.array(indices)), shape=shape)


''',
    "spike_jvp": '''@jax.custom_jvp
def spike_jvp(a):
    return (a > 0).astype(a.dtype)


spike_jvp.defjvp(lambda a, da: (spike_jvp(a[0]), da[0] / (1 + 2 * jnp.abs(a[0])) ** 2))


''',
    "spike_vjp": '''@jax.custom_vjp
def spike_vjp(a):
    return (a > 0).astype(a.dtype)


spike_vjp.defvjp(lambda a: (spike_vjp(a), a), lambda a, g: (g / (1 + 3 * a**2),))


''',
    "clip_gradient": '''clip_gradient = jax.custom_vjp(lambda a: a)
clip_gradient.defvjp(lambda a: (a, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))


''',
    "scale_gradient": '''scale_gradient = jax.custom_vjp(lambda a: a)
scale_gradient.defvjp(lambda a: (a, None), lambda _, g: (0.5 * g,))


''',
    "host_rule": """host_rule = jax.custom_vjp(jnp.sin)


def host_cosine(a, g):
    return (jax.pure_callback(lambda b, h: np.asarray(np.cos(b) * h), jax.ShapeDtypeStruct(a.shape, a.dtype), a, g),)


host_rule.defvjp(lambda a: (jnp.sin(a), a), host_cosine)


""",
    "linear": """def linear(w, u):
    return jax.custom_derivatives.linear_call(lambda r, v: r * v, lambda r, ct: r * ct, w, u)


""",
    "unbatched": """def unbatched(a):
    out = jax.ShapeDtypeStruct(a.shape, a.dtype)
    return jax.pure_callback(lambda b: np.asarray(np.cos(b)), out, lax.stop_gradient(a))


""",
    "own_rule": '''def own_rule(f):
    g = jax.custom_vjp(f)
    g.defvjp(lambda *a: jax.vjp(f, *a), lambda pull, ct: pull(ct))
    return g


''',
    "own_jvp": '''def own_jvp(f):
    g = jax.custom_jvp(f)
    g.defjvp(lambda a, da: jax.jvp(f, a, da))
    return g


''',
    "constant_of": '''def constant_of(a):
    out = jax.ShapeDtypeStruct(a.shape, a.dtype)
    return jax.pure_callback(lambda b: np.asarray(np.cos(b)), out, lax.stop_gradient(a), vmap_method="sequential")


''',
}  # fmt: skip
