"""What Etrax assumes about JAX beyond its documentation: one small contract each."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from etrax import _compat as compat
from etrax.compiler.ir import inline

X = jax.ShapeDtypeStruct((3,), jnp.float32)


def eqns_of(f, *args):
    return compat.open_jaxpr(jax.make_jaxpr(f)(*args))[0].eqns


def named(eqns, name):
    found = [e for e in eqns if e.primitive.name == name]
    assert found, [e.primitive.name for e in eqns]
    return found[0]


def run(jaxpr, *args):
    return jax.jit(jax.extend.core.jaxpr_as_fun(jaxpr))(*args)


def test_open_and_close():
    table = np.arange(3, dtype=np.float32)
    closed = jax.make_jaxpr(lambda x: x + table)(X)
    jaxpr, consts = compat.open_jaxpr(closed)
    assert len(jaxpr.constvars) == len(consts) == 1
    np.testing.assert_array_equal(consts[0], table)
    again = compat.close_jaxpr(jaxpr, consts)
    np.testing.assert_array_equal(run(again, jnp.ones(3, jnp.float32))[0], 1 + table)
    assert compat.open_jaxpr(jaxpr)[0] is jaxpr


def test_programs_are_told_from_other_values():
    closed = jax.make_jaxpr(jnp.sin)(X)
    assert compat.is_jaxpr(closed) and compat.is_jaxpr(compat.open_jaxpr(closed)[0])
    assert not any(map(compat.is_jaxpr, (jnp.sin, X, "jaxpr", None, [closed])))


def test_open_jaxprs_run_on_values_of_their_constvars():
    table = np.arange(3, dtype=np.float32)
    jaxpr, consts = compat.open_jaxpr(jax.make_jaxpr(lambda x: x + table)(X))
    built = compat.build_jaxpr(jaxpr.invars, jaxpr.outvars, jaxpr.eqns, jaxpr, jaxpr.constvars)
    assert [*built.constvars, *built.invars] == [*jaxpr.constvars, *jaxpr.invars]
    out = jax.core.eval_jaxpr(built, consts, jnp.ones(3, jnp.float32))
    np.testing.assert_array_equal(out[0], 1 + table)


def test_build_closed_keeps_constvars():
    table = np.arange(3, dtype=np.float32)
    jaxpr, consts = compat.open_jaxpr(jax.make_jaxpr(lambda x: x + table)(X))
    built = compat.build_closed(jaxpr.invars, jaxpr.outvars, jaxpr.eqns, jaxpr, jaxpr.constvars, consts)
    np.testing.assert_array_equal(run(built, jnp.ones(3, jnp.float32))[0], 1 + table)


CALLS = {
    "jit": jax.jit(jnp.sin),
    "nested jit": jax.jit(jax.jit(jnp.sin)),
    "checkpoint": jax.checkpoint(jnp.sin),
    "checkpoint of jit": jax.checkpoint(jax.jit(lambda x: jnp.sin(x))),
    "named call": jax.named_call(jnp.sin, name="s"),
}


@pytest.mark.parametrize("name", CALLS)
def test_inlined_calls_hold_their_body(name):
    """Every call that a function may be wrapped in is known by name, and its body is found."""
    (eqn,) = eqns_of(CALLS[name], X)
    while eqn.primitive.name in compat.INLINED:
        body, consts = compat.inner_jaxpr(eqn)
        assert len(body.invars) + len(body.constvars) == len(eqn.invars) + len(consts)
        assert len(body.outvars) == len(eqn.outvars)
        (eqn,) = body.eqns
    assert eqn.primitive.name == "sin"


def test_checkpoint_in_a_gradient_is_inlined():
    eqns = eqns_of(jax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum()), X)
    bodies = [e for e in eqns if any(k in e.params for k in ("jaxpr", "call_jaxpr"))]
    assert all(e.primitive.name in compat.INLINED for e in bodies)


def test_no_body_is_an_error():
    with pytest.raises(KeyError, match="`sin` holds no jaxpr"):
        compat.inner_jaxpr(eqns_of(jnp.sin, X)[0])


def with_rule(kind):
    if kind == "custom_jvp_call":
        f = jax.custom_jvp(jnp.sin)
        f.defjvp(lambda p, t: (jnp.sin(p[0]), 7.0 * t[0]))
    else:
        f = jax.custom_vjp(jnp.sin)
        f.defvjp(lambda x: (jnp.sin(x), None), lambda _, ct: (7.0 * ct,))
    return f


@pytest.mark.parametrize("kind", ["custom_jvp_call", "custom_vjp_call"])
def test_custom_rules_survive_binding(kind):
    eqn = named(eqns_of(with_rule(kind), X), kind)
    assert kind in compat.CUSTOM
    assert [e.primitive.name for e in compat.inner_jaxpr(eqn)[0].eqns] == ["sin"]
    grad = jax.grad(lambda x: compat.run_equation(eqn, [x])[0].sum())(jnp.ones(3, jnp.float32))
    np.testing.assert_array_equal(grad, 7.0)


def test_scan_parts():
    def f(w, h, xs):
        return lax.scan(lambda c, x: ((c[0] * w + x, c[1]), c[0]), (h, h), xs, reverse=True, unroll=2)

    parts = compat.scan_parts(named(eqns_of(f, X, X, jax.ShapeDtypeStruct((4, 3), jnp.float32)), "scan"))
    # A carry that is handed on unchanged is made a constant.
    assert (parts.num_consts, parts.num_carry, parts.length, parts.reverse, parts.unroll) == (2, 1, 4, True, 2)
    assert len(parts.jaxpr.invars) == 2 + 1 + 1
    assert len(parts.jaxpr.outvars) == 1 + 1


def test_cond_branches_take_all_but_the_index():
    eqn = named(eqns_of(lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, jnp.exp], x), 1, X), "cond")
    branches = compat.cond_branches(eqn)
    assert [body.eqns[0].primitive.name for body, _ in branches] == ["sin", "cos", "exp"]
    assert all(len(body.invars) == len(eqn.invars) - 1 for body, _ in branches)
    flags = named(eqns_of(lambda p, x: lax.cond(p, jnp.sin, jnp.cos, x), True, X), "cond")
    assert [body.eqns[0].primitive.name for body, _ in compat.cond_branches(flags)] == ["cos", "sin"]


def test_while_parts():
    def f(n, w, x):
        return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * w), (0, x))

    parts = compat.while_parts(named(eqns_of(f, 3, X, X), "while"))
    assert (parts.cond_consts, parts.body_consts) == (1, 1)
    assert len(parts.cond[0].invars) == len(parts.body[0].invars) == 1 + 2
    assert len(parts.cond[0].outvars) == 1


def test_binding_keeps_source_lines():
    def f(x):
        return jnp.tanh(x)  # this line

    (eqn,) = eqns_of(f, X)
    (again,) = eqns_of(lambda x: compat.run_equation(eqn, [x]), X)
    assert compat.source_frames(again) == compat.source_frames(eqn)
    file, line, function = compat.source_frames(eqn)[0]
    assert (file, line) == (__file__, f.__code__.co_firstlineno + 1)
    assert function.endswith("f")


def test_new_equations_take_a_source_line():
    (eqn,) = eqns_of(lambda x: jnp.tanh(x), X)

    def f(x):
        with compat.source_of(eqn):
            return x * 2

    (new,) = eqns_of(f, X)
    assert compat.source_frames(new)[0] == compat.source_frames(eqn)[0]


def test_functions_of_jax_have_no_line_of_their_own():
    """JAX traces its own functions apart from the caller: their equations show the line of the call around them."""
    eqn = named(eqns_of(lambda x: jnp.take(x, 1), X), "jit")
    inner = compat.inner_jaxpr(eqn)[0].eqns[0]
    assert compat.source_frames(inner) == ()
    with compat.within(eqn):
        assert compat.source_frames(inner)[0][0] == __file__
    assert compat.source_frames(inner) == ()


def test_bind_returns_a_list():
    assert isinstance(compat.run_equation(eqns_of(jnp.sin, X)[0], [jnp.ones(3)]), list)
    assert len(compat.run_equation(named(eqns_of(lambda x: jnp.split(x, 3), X), "split"), [jnp.ones(3)])) == 3


def test_elementwise_operands_are_equal_or_spread():
    """An elementwise equation takes operands of its output's shape, of size one along an axis, or without axes."""
    for a, b in (((2, 3), (2, 3)), ((2, 3), ()), ((2, 3), (3,)), ((2, 3), (2, 1)), ((2, 1), (1, 3))):
        eqns = eqns_of(lambda a, b: a * b, jax.ShapeDtypeStruct(a, float), jax.ShapeDtypeStruct(b, float))
        mul = named(eqns, "mul")
        out = mul.outvars[0].aval.shape
        for v in mul.invars:
            shape = v.aval.shape
            assert shape == () or (len(shape) == len(out) and all(n in (1, m) for n, m in zip(shape, out, strict=True)))


def test_transposes_carry_the_line_of_what_they_transpose():
    def f(x):
        return x[::-1]

    eqns = eqns_of(lambda ct: jax.linear_transpose(f, X)(ct)[0], X)
    lines = [compat.source_frames(e)[0][1] for e in eqns if compat.source_frames(e)]
    assert f.__code__.co_firstlineno + 1 in lines


def test_types_with_derivatives():
    for dtype in (
        jnp.float64,
        jnp.float32,
        jnp.float16,
        jnp.bfloat16,
        jnp.float8_e4m3fn,
        jnp.complex64,
        jnp.complex128,
    ):
        assert compat.is_inexact(jax.ShapeDtypeStruct((2,), dtype)), dtype
    for dtype in (jnp.int32, jnp.uint8, jnp.bool_):
        assert not compat.is_inexact(jax.ShapeDtypeStruct((2,), dtype)), dtype
    key = jax.random.key(0)
    assert compat.is_extended(key)
    assert not compat.is_inexact(key)
    assert not compat.is_extended(2.0)


def test_shape_struct():
    key = jax.random.key(0)
    assert compat.shape_struct(key).dtype == key.dtype
    assert compat.shape_struct(2.0).shape == ()
    assert compat.shape_struct(np.zeros((2, 3), np.float32)) == jax.ShapeDtypeStruct((2, 3), np.float32)
    given = jax.ShapeDtypeStruct((2,), jnp.int32)
    assert compat.shape_struct(given) is given
    with pytest.raises(TypeError):
        compat.shape_struct("text")


def test_zeros_of():
    assert compat.zeros_of(X).shape == (3,)


def test_names_of_primitives():
    """Rules are found by name: the ones that hold structure are called what they were."""
    expected = {
        "stop_gradient": lambda x: lax.stop_gradient(x),
        "optimization_barrier": lambda x: lax.optimization_barrier(x),
        "name": lambda x: checkpoint_name(x, "h"),
        "select_n": lambda x: lax.select(x > 0, x, x),
        "scatter-add": lambda x: x.at[jnp.array([0, 1])].add(1.0),
        "scatter": lambda x: x.at[jnp.array([0, 1])].set(1.0),
        "dot_general": lambda x: x @ x,
        "reduce_window_sum": lambda x: lax.reduce_window(x, 0.0, lax.add, (2,), (1,), "VALID"),
    }
    for name, f in expected.items():
        named(eqns_of(f, X), name)


def test_a_traced_value_is_not_concrete():
    seen = []
    jax.jit(lambda x: seen.append(compat.is_concrete({"x": x})) or x)(jnp.ones(3))
    assert seen == [False] and compat.is_concrete({"x": jnp.ones(3), "n": 1.0, "a": np.ones(2)})


@pytest.mark.parametrize(
    "around", [jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum()), lambda f: lambda x: lax.map(f, x)]
)
def test_a_traced_value_lives_as_long_as_its_transformation(around):
    """Also inside further ones: each knows the one around it."""
    kept, inside = [], []

    def f(x):
        kept.append(x)
        inside.append(compat.is_live(kept))
        seen = lambda y: inside.append(compat.is_live(kept)) or y
        jax.jit(seen)(x)
        jax.vmap(seen)(jnp.stack([x, x]))
        jax.vjp(seen, x)
        lax.scan(lambda c, y: (c, seen(y)), 0.0, jnp.stack([x, x]))
        jax.eval_shape(seen, x)
        return x

    around(f)(jnp.ones(3))
    assert len(inside) >= 5 and all(inside)
    assert not compat.is_live(kept) and compat.is_live({"x": jnp.ones(3), "n": 1.0})


def test_a_polynomial_can_be_written_out():
    """From jax 0.12 on `jnp.polyval` is one primitive, before that a loop: its value and derivatives stay."""
    x, c = jnp.array([0.5, -1.5, 2.0]), jnp.array([2.0, -1.0, 0.3, 4.0])
    f = lambda c, x: jnp.polyval(c, x)
    jaxpr, consts = compat.open_jaxpr(jax.make_jaxpr(f)(c, x))
    written = lambda c, x: inline(jaxpr, consts, [c, x])[0]
    assert not any(e.primitive.name == "polynomial" for e in eqns_of(written, c, x))
    np.testing.assert_allclose(written(c, x), f(c, x), rtol=1e-14)
    for got, want in zip(jax.jacrev(written, (0, 1))(c, x), jax.jacrev(f, (0, 1))(c, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-13)


def test_programs_are_compared_without_their_constants():
    def of(c, f=jnp.add):
        closed = jax.make_jaxpr(lambda x: lax.scan(lambda h, y: (f(h, y * c), None), x, jnp.ones((2, 3)))[0])
        return compat.open_jaxpr(closed(jnp.ones(3)))[0]

    assert compat.same_program(of(np.arange(3.0)), of(np.arange(3.0) + 1))
    assert not compat.same_program(of(np.arange(3.0)), of(np.arange(3.0), jnp.subtract))
    assert not compat.same_program(of(2.0), of(3.0))


def test_dead_code_goes_and_inputs_stay():
    jaxpr, _ = compat.open_jaxpr(jax.make_jaxpr(lambda x, y: (jnp.sin(y), x + 1)[1])(1.0, 2.0))
    found = compat.without_dead_code(jaxpr)
    assert len(found.invars) == 2 and [e.primitive.name for e in found.eqns] == ["add"]


def test_every_array_of_numbers_is_of_one_class():
    """Arrays of a program, of numpy and of a mesh; keys and tracers are others."""
    mesh = jax.make_mesh((1,), ("x",))
    on_mesh = jax.device_put(jnp.ones(2), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))
    arrays = (jnp.ones(2), jax.jit(jnp.sin)(1.0), jax.device_put(np.ones(2)), on_mesh)
    assert all(type(a) is compat.ArrayImpl for a in arrays)
    assert type(jax.random.key(0)) is not compat.ArrayImpl
    traced = []
    jax.jit(lambda a: traced.append(type(a)) or a)(1.0)
    assert traced[0] is not compat.ArrayImpl


def test_results_of_one_program_share_their_abstract_values():
    """So that signatures of a loop's states are compared by address."""
    f = jax.jit(lambda a: a + 1)
    first = f(jnp.ones(3))
    assert f(first).aval is f(f(first)).aval


def test_the_function_of_a_derivative_rule_is_found():
    """It is the same for every call of a function, and none where further arguments of the call belong to it."""

    def rules(f):
        eqns = [e for e in all_equations(f, X) if e.primitive.name == "custom_jvp_call"]
        assert eqns
        return [compat.rule_function(e) for e in eqns]

    first, second = rules(lambda x: jax.nn.relu(2 * jax.nn.relu(x)))
    assert first is not None and first == second and callable(first[0])
    assert rules(jax.nn.relu6) != [first] and None not in rules(jax.nn.relu6)
    power = jax.custom_jvp(lambda n, x: 0 * x, nondiff_argnums=(0,))  # one value, another derivative for each n
    power.defjvp(lambda n, primals, tangents: (0 * primals[0], n * tangents[0]))
    assert rules(lambda x: power(1, x) + power(3, x)) == [None, None]
    pair = jax.custom_jvp(lambda pair: pair["a"] + pair["b"])
    pair.defjvp(lambda primals, tangents: (pair(*primals), tangents[0]["a"]))
    (named_pair,) = rules(lambda x: pair({"a": x, "b": x}))
    (listed_pair,) = rules(lambda x: pair({"b": x, "a": x, "c": None}))
    assert named_pair[0] is listed_pair[0] and named_pair != listed_pair


def test_what_is_materialised_is_computed_once():
    """XLA fuses a cosine into all that reads it, and computes it for each element of that."""

    def body(e, x, write):
        slow = jnp.cos(x)
        slow = compat.materialised([slow])[0] if write else slow
        return slow[:, None] * e

    e, x = jnp.ones((8, 5)), jnp.linspace(0.0, 1.0, 8)
    for write in (False, True):
        program = jax.jit(partial(body, write=write)).lower(e, x).compile()
        roots = [
            part.splitlines()[-1]
            for part in program.as_text().split("\n}")
            if " cosine(" in part and "ENTRY" not in part
        ]
        assert any("[8,5]" in root for root in roots) is not write, "the root of a fusion with the cosine"
        np.testing.assert_array_equal(program(e, x), jnp.cos(x)[:, None] * e)


def test_materialised_values_have_derivatives_and_batches():
    f = lambda x: jnp.sum(compat.materialised({"a": jnp.sin(x), "b": x * 2j})["a"] ** 2)
    x = jnp.linspace(0.0, 1.0, 3)
    np.testing.assert_allclose(jax.grad(f)(x), jnp.sin(2 * x))
    np.testing.assert_allclose(jax.vmap(f)(jnp.stack([x, x + 1])), [f(x), f(x + 1)])
    assert compat.materialised([]) == [] and compat.materialised([jnp.zeros(0)])[0].shape == (0,)


def all_equations(f, *args):
    def walk(jaxpr):
        for eqn in jaxpr.eqns:
            yield eqn
            for body in compat.bodies_of(eqn):
                yield from walk(body)

    return list(walk(compat.open_jaxpr(jax.make_jaxpr(f)(*args))[0]))
