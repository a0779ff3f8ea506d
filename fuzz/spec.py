"""A model as data: leaves and a list of statements, and the plain `jnp` program that it stands for.

The text is the model: the fuzzer runs what it prints, so that a reproducer is what was checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from .forms import FORMS
from .prelude import PRELUDE


class Leaf(NamedTuple):
    """A parameter, state, input or constant: its shape for one sample, and `float`, `int`, `complex`, ... or `key`.

    `start` says which values it has, one of `STARTS`.
    """

    shape: tuple[int, ...]
    dtype: str = "float64"
    start: str = "drawn"


# Random numbers, most often. "numpy" are random numbers in an array of numpy, which can be changed in place.
STARTS = {
    "drawn": 'draw({shape}, "{dtype}", {scale})',
    "numpy": 'np.array(draw({shape}, "{dtype}", {scale}))',
    "zeros": "jnp.zeros({shape})",
    "ones": "jnp.ones({shape})",
    "lowest": "jnp.full({shape}, -jnp.inf)",
}


class Block(NamedTuple):
    """A function of `names` that may read every value around it."""

    names: tuple[str, ...]
    body: tuple[Statement, ...]
    result: tuple[str, ...]


class Statement(NamedTuple):
    """`out = form(args)`, with constants and inner functions. Names: `p.a` parameter, `s.a` state, `c.a` constant."""

    out: str
    form: str
    args: tuple[str, ...] = ()
    attrs: tuple[tuple[str, Any], ...] = ()
    blocks: tuple[Block, ...] = ()


class Model(NamedTuple):
    """One step. `batch` is how samples enter: "none", "lead" (a first axis throughout) or "vmap" of the plain step."""

    params: dict[str, Leaf]
    hidden: dict[str, Leaf]
    inputs: tuple[Leaf, ...]
    consts: dict[str, Leaf]
    body: tuple[Statement, ...]
    new: dict[str, str]
    output: tuple[str, ...]
    batch: str = "none"
    samples: int = 2
    steps: int = 5
    wrap: str = ""

    @property
    def batched(self) -> bool:
        return self.batch != "none"


def reference(name: str) -> str:
    """A name as the program writes it."""
    kind, _, rest = name.partition(".")
    return f'{kind}["{rest}"]' if rest and kind in ("p", "s", "c") else name


def statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """All statements, those of inner blocks included."""
    for one in body:
        yield one
        for block in one.blocks:
            yield from statements(block.body)


def names_read(body: tuple[Statement, ...]) -> set[str]:
    """Every name that a body reads, also for results of its blocks."""
    found: set[str] = set()
    for one in statements(body):
        found |= set(one.args)
        for block in one.blocks:
            found |= set(block.result)
    return found


def _lines(body: tuple[Statement, ...], indent: str) -> Iterator[str]:
    for one in body:
        functions = {}
        for i, block in enumerate(one.blocks):
            name = f"{one.out.split(',')[0].strip()}_f{i}"
            functions[f"f{i}"] = name
            yield f"{indent}def {name}({', '.join(block.names)}):"
            yield from _lines(block.body, indent + "    ")
            yield f"{indent}    return {', '.join(map(reference, block.result))}"
        args = [reference(a) for a in one.args]
        text = FORMS[one.form].format(
            *args, **dict(one.attrs), **functions, args=", ".join(args), rest=", ".join(args[1:])
        )
        yield f"{indent}{one.out} = {text}"


def step_source(model: Model) -> str:
    """The step function, as text."""
    inputs = "".join(f", x{i}" for i in range(len(model.inputs)))
    name = "one" if model.batch == "vmap" else "step"
    lines = [f"def {name}(p, s{inputs}):", *_lines(model.body, "    ")]
    new = ", ".join(f'"{h}": {reference(v)}' for h, v in model.new.items())
    outputs = ", ".join(map(reference, model.output)) + ("," if len(model.output) > 1 else "")
    lines.append(f"    return {{{new}}}, {f'({outputs})' if len(model.output) > 1 else outputs}")
    if model.batch == "vmap":
        lines.append(f"step = jax.vmap(one, in_axes=(None, 0{', 0' * len(model.inputs)}))")
    if model.wrap:
        lines.append(f"step = {model.wrap}(step)")
    return "\n".join(lines)


def source(model: Model) -> str:
    """Imports, data and step: a program that defines `step`, `params`, `hidden`, `xs` and `loss`."""
    lead = (model.samples,) if model.batched else ()
    step = step_source(model)

    def value(leaf: Leaf, lead: tuple[int, ...], scale: float) -> str:
        return STARTS[leaf.start].format(shape=lead + leaf.shape, dtype=leaf.dtype, scale=scale)

    def tree(leaves: dict[str, Leaf], lead: tuple[int, ...], scale: float = 0.6) -> str:
        return "{" + ", ".join(f'"{name}": {value(leaf, lead, scale)}' for name, leaf in leaves.items()) + "}"

    xs = "".join(f"{value(leaf, (model.steps, *lead), 1.0)}, " for leaf in model.inputs)
    head = ["import jax", "import jax.numpy as jnp", "import numpy as np", "from jax import lax", ""]
    head.append('jax.config.update("jax_enable_x64", True)')
    prelude = [text for name, text in PRELUDE.items() if name == "draw" or f"{name}(" in step]
    constants = [f"c = {tree(model.consts, ())}"] if model.consts else []
    data = [f"params = {tree(model.params, ())}", f"hidden = {tree(model.hidden, lead, 0.3)}", f"xs = ({xs})"]
    return "\n".join([*head, *prelude, *constants, step, *data, PRELUDE_LOSS, ""])


PRELUDE_LOSS = """def loss(o, t=None):
    return sum(((a + 0.3) ** 2).sum() for a in jax.tree.leaves(o))"""


class Built(NamedTuple):
    """A model ready to run: the names that its program defines."""

    model: Model
    step: Any
    one: Any
    params: Any
    hidden: Any
    xs: tuple[Any, ...]
    loss: Any
    consts: dict[str, Any]


def build(model: Model, numbers: int = 0) -> Built:
    """Run the program; JAX's own tracing sees the lines of the text as one file.

    `numbers` is the seed of its random numbers, that of the text by default.
    """
    space: dict[str, Any] = {"__name__": "model"}
    text = source(model).replace("RandomState(0)", f"RandomState({numbers})")
    exec(compile(text, "<model>", "exec"), space)
    data = (jax.tree.map(on_host, space[name]) for name in ("params", "hidden", "xs"))
    return Built(model, space["step"], space.get("one"), *data, space["loss"], space.get("c", {}))


def on_host(a: Any) -> Any:
    """As a numpy array, whose slices need no compiler; PRNG keys stay as they are."""
    return a if jax.dtypes.issubdtype(a.dtype, jax.dtypes.extended) else np.asarray(a)


def size(model: Model) -> int:
    """How long the model is to read: statements, then leaves, then numbers in them."""
    leaves = [*model.params.values(), *model.hidden.values(), *model.inputs, *model.consts.values()]
    numbers = sum(sum(leaf.shape) for leaf in leaves) + model.steps + model.samples * model.batched
    return 100 * len(list(statements(model.body))) + 20 * len(leaves) + numbers + 10 * bool(model.wrap)


def mutable(model: Model) -> bool:
    """Whether the step reads arrays of numpy, which can be changed in place."""
    return any(leaf.start == "numpy" for leaf in model.consts.values())


def runs(built: Built) -> bool:
    """Whether the step can be traced and gives back the states that it takes."""
    try:
        out, _ = jax.eval_shape(built.step, built.params, built.hidden, *(x[0] for x in built.xs))
    except Exception:  # a candidate of the shrinker may be no program at all
        return False
    same = jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), out, built.hidden)
    return jax.tree.all(same)
