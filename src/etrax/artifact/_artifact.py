"""The learner as a file: one update, lowered by `jax.export`, which runs without the model's code.

An artifact is an archive of two members: the program (StableHLO, as `jax.export` serialises it) and a manifest in JSON
that says what it takes and gives. Both are data; nothing in them is executed by Python. Trees are not stored: the
program takes and gives leaves in order, and what comes back has the structure of what was given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import export as jax_export

from .._arguments import check_arrays, check_path, check_whole, foreign, short
from .._compat import is_extended, shape_struct
from .._errors import ArgumentError, ArtifactError, EtraxError, MissingPackageError, NotSupportedError
from .._install import install_advice
from .._version import __version__
from ..compiler.ir import LossFunction, PyTree, Role, explained, format_path, leaves_with_paths
from ..learn import Learner, LearnerState, Losses, Optimizer, check_optimizer, check_reset, update_of
from ._file import FORMAT, PARTS, RESET, count_arrays, parts_of, read_archive, sealed, write_archive

_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def save_artifact(
    learner: Learner, path: str | os.PathLike[str], optimizer: Optimizer, loss_fn: LossFunction, window: int,
    target: PyTree, platforms: Sequence[str] | None, reset: PyTree = None,
) -> dict[str, Any]:  # fmt: skip
    """Write one update of a learner to a file; returns its manifest."""
    _need_flatbuffers()
    file = check_path("path", path)
    check_optimizer(optimizer)
    window = check_whole("window", window, "steps")  # the length of an axis of its inputs
    _check_platforms(platforms)
    by_lane = learner.resets.lanes_for(None, reset, rank=1)
    learner = learner if by_lane is None else by_lane
    flags, initial = check_reset(reset, None, learner.facts.lanes), learner.resets.start_of(reset, None)
    structs: tuple[PyTree, ...] = _structs(learner, optimizer, loss_fn, window, target)
    structs, parts = (structs, PARTS) if flags is None else ((*structs, _stacked(flags, window)), (*PARTS, RESET))
    flat, tree = jax.tree.flatten(structs)
    losses = Losses(learner.facts.step, loss_fn, "mean", learner.program.decode, keep_outputs=True)
    update = update_of(learner.program, optimizer, losses, window)
    kinds = [_key_kind(a) for a in flat]

    def program(*leaves: jax.Array) -> list[jax.Array]:
        values = [a if k is None else jax.random.wrap_key_data(a, impl=k) for a, k in zip(leaves, kinds, strict=True)]
        *five, resets = (*jax.tree.unflatten(tree, values), *[None] * (flags is None))
        new = update(*five, None, resets, initial)
        # One update of one window: its losses are one number.
        results = new["params"], new["opt_state"], new["state"], new["loss"][0], new["outputs"]
        return [_plain(a) for a in jax.tree.leaves(results)]

    jitted, args = jax.jit(program), [_plain_struct(a) for a in flat]
    exported = jax_export.export(jitted, platforms=platforms)(*args)
    lowered = bytes(exported.serialize())
    manifest = {
        "format": FORMAT,
        "versions": {"etrax": __version__, "jax": jax.__version__},
        "platforms": list(exported.platforms),
        "rule": str(learner.rule),
        "window": window,
        "verdicts": {
            format_path(p, "params")[1:-1]: str(v.kind_at(window)) for p, v in learner.report.verdicts.items()
        },
        "arguments": _described(parts, structs),
        "output": _skeleton(_output_struct(learner)),
        "bytes": {part: _size(value) for part, value in zip(parts, structs, strict=True)}
        | {"trace": _size(structs[2].trace), "program": len(lowered)},
        "flops": _flops(jitted, args),
    }
    manifest = sealed(manifest, lowered)
    write_archive(file, manifest, lowered)
    return manifest


def _structs(
    learner: Learner, optimizer: Optimizer, loss_fn: LossFunction, window: int, target: PyTree
) -> tuple[PyTree, PyTree, LearnerState, PyTree, PyTree]:
    """Shapes and types of what one update takes."""
    params, hidden = (jax.tree.map(shape_struct, tree) for tree in (learner.params, learner.hidden))
    trace = jax.eval_shape(learner.program.transport.init)
    state = jax.eval_shape(lambda h, t: LearnerState(h, t, jnp.zeros((), jnp.int32)), hidden, trace)
    step = learner.facts.step
    inputs = jax.tree.unflatten(step.trees[Role.INPUT], [leaf.aval for leaf in step.select(Role.INPUT)])
    wanted = _output_struct(learner) if target is None else target
    check_arrays("target", target)
    targets = jax.tree.map(lambda a: _stacked(a, window), wanted)
    try:
        Losses(step, loss_fn, "mean", learner.program.decode).check(targets, None)
    except ArgumentError as error:
        if target is not None:
            raise
        raise ArgumentError(
            f"{error}\n`target` was not given, and a target like the output does not fit: pass an example of the "
            "target of one step, `target=`."
        ) from error
    opt_state = jax.eval_shape(optimizer.init, params)
    return params, opt_state, state, jax.tree.map(lambda a: _stacked(a, window), inputs), targets


def _output_struct(learner: Learner) -> PyTree:
    step = learner.facts.step
    return jax.tree.unflatten(step.trees[Role.OUTPUT], [leaf.aval for leaf in step.select(Role.OUTPUT)])


def _stacked(a: PyTree, steps: int) -> jax.ShapeDtypeStruct:
    struct = shape_struct(a)
    return jax.ShapeDtypeStruct((steps, *struct.shape), struct.dtype)


def _shown(wanted: list[dict[str, Any]]) -> str:
    """Types and shapes of a few arrays."""
    more = f", and {len(wanted) - 4} more" if len(wanted) > 4 else ""
    return ", ".join(f"{a['dtype']}{a['shape']}" for a in wanted[:4]) + more


class Artifact:
    """An update read from a file: `params, opt_state, state, loss, output = artifact(params, opt_state, state, x, y)`.

    `inputs` and `targets` hold the `window` steps of one update, time first. With a window of one they may also be one
    sample without the axis of time; the output then has none either.

    An artifact that was exported with `reset=` also takes `reset=`: a flag for each step, or for each step and lane.

    It returns values of the structure that you pass. Dictionaries must have the keys that the artifact was exported
    with; lists of arrays, such as `jax.tree.leaves(params)`, are taken in their order.

    >>> import etrax, jax, jax.numpy as jnp, optax, tempfile
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> file, optimizer = tempfile.mktemp(), optax.sgd(0.1)
    >>> _ = learner.export(file, optimizer, lambda o, y: ((o - y) ** 2).mean())
    >>> start = learner.params, optimizer.init(learner.params), learner.init()
    >>> params, opt_state, state = map(jax.tree.leaves, start)
    >>> params, opt_state, state, loss, output = etrax.load(file)(params, opt_state, state, jnp.ones(3), jnp.ones(4))
    >>> loss.item(), params[0].shape, output.shape
    (4.0, (3, 4), (4,))
    """

    def __init__(self, manifest: dict[str, Any], exported: jax_export.Exported):
        self.manifest = manifest
        self._exported = _as_it_is(exported)
        # Arguments are checked while JAX traces, once for each structure, shapes and types that it is given.
        self._update = jax.jit(self._checked_update)
        self._wanted = manifest["arguments"]

    def __repr__(self) -> str:
        m = self.manifest
        data = "; ".join(
            f"{part} {_shown(self._wanted[part])}" for part in (*PARTS[3:], RESET) if self._wanted.get(part)
        )
        about = f"{foreign(m['rule'])}, window {m['window']}, {foreign(', '.join(m['platforms']))}"
        return f"<Artifact: {about}; {foreign(data)}>"

    def __call__(
        self, params: PyTree, opt_state: PyTree, state: PyTree, inputs: PyTree, targets: PyTree = None,
        reset: PyTree = None,
    ) -> tuple[PyTree, PyTree, PyTree, jax.Array, PyTree]:  # fmt: skip
        """One update of parameters, optimizer, trace and state."""
        inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        try:
            return self._update(params, opt_state, state, inputs, targets, reset)
        except EtraxError:
            raise
        except Exception as error:  # a program from elsewhere, read by the compiler only now
            failure = error
        for part, tree in zip((*PARTS, RESET), (params, opt_state, state, inputs, targets, reset), strict=True):
            check_arrays(part, tree)
        text = f"the program of the artifact cannot be run here: {(str(failure).splitlines() or [''])[0]}"
        raise explained(ArtifactError, failure, text) from failure

    def _checked_update(
        self, params: PyTree, opt_state: PyTree, state: PyTree, inputs: PyTree, targets: PyTree, reset: PyTree
    ) -> tuple[PyTree, PyTree, PyTree, jax.Array, PyTree]:
        single, parts = self._is_sample(inputs), parts_of(self.manifest)
        if single:
            inputs, targets, reset = jax.tree.map(lambda a: jnp.asarray(a)[None], (inputs, targets, reset))
        trees = (params, opt_state, state, inputs, targets, self._flags(reset))[: len(parts)]
        leaves = [a for part, tree in zip(parts, trees, strict=True) for a in self._leaves(part, tree)]
        kinds = [_key_kind(shape_struct(a)) for a in leaves]
        results = self._exported(*(_plain(jnp.asarray(a)) for a in leaves))
        updated = jax.tree.structure((params, opt_state, state))
        n = updated.num_leaves  # then come the loss and the outputs
        first = [a if k is None else jax.random.wrap_key_data(a, impl=k) for a, k in zip(results, kinds, strict=False)]
        outputs = [a[0] if single else a for a in results[n + 1 :]]
        return (*jax.tree.unflatten(updated, first[:n]), results[n], _rebuilt(self.manifest["output"], iter(outputs)))

    def _flags(self, reset: PyTree) -> PyTree:
        """What was given, or flags of which none is set; nothing if the program takes none."""
        if RESET in self._wanted:
            return jnp.zeros(self._wanted[RESET][0]["shape"], bool) if reset is None else reset
        if reset is not None:
            raise ArgumentError("the artifact was exported without `reset=`: export it with an example, `reset=False`.")
        return None

    def _is_sample(self, inputs: PyTree) -> bool:
        wanted, leaves = self._wanted["inputs"], jax.tree.leaves(inputs)
        ranks = [len(w["shape"]) - 1 for w in wanted]
        return self.manifest["window"] == 1 and bool(leaves) and [jnp.ndim(a) for a in leaves] == ranks

    def _leaves(self, part: str, tree: PyTree) -> list[jax.Array]:
        """The leaves of an argument, if they are those that the program takes."""
        check_arrays(part, tree)
        leaves, wanted = leaves_with_paths(tree), self._wanted[part]
        if len(leaves) != len(wanted):
            raise ArgumentError(
                f"`{part}` has {len(leaves)} arrays, but the artifact was made with {len(wanted)}: "
                f"{', '.join(w['path'] for w in wanted) or 'none'}."
            )
        for (path, value), want in zip(leaves, wanted, strict=True):
            name = format_path(path, part)[1:-1]
            if name != want["path"] and any(not isinstance(key, int) for key in path):
                raise ArgumentError(
                    f"`{part}` has {foreign(name)!r} where the artifact was made with {foreign(want['path'])!r}. To "
                    f"have arrays taken in their order, pass a list: `jax.tree.leaves({part})`."
                )
            got = shape_struct(value)
            if list(got.shape) != want["shape"] or str(got.dtype) != want["dtype"]:
                raise ArgumentError(
                    f"`{part}` has {got.dtype}{list(got.shape)} at {format_path(path, part)}, but the artifact was "
                    f"made with {want['dtype']}{want['shape']} at {want['path']}."
                )
        return jax.tree.leaves(tree)


def _as_it_is(exported: jax_export.Exported) -> Callable[..., list[jax.Array]]:
    """The program as a function that says in words what cannot be made of it: a derivative, or another shape."""

    @jax.custom_batching.custom_vmap
    def call(*leaves: jax.Array) -> list[jax.Array]:
        return list(exported.call(*leaves))

    @call.def_vmap
    def refuse_batches(*_: object) -> tuple[list[jax.Array], list[bool]]:
        raise NotSupportedError(
            "the call of an artifact stands under `jax.vmap`, but its program has the shapes that it was made with: "
            "call it for one after the other (`jax.lax.map`), or export a learner that was compiled for a batch."
        )

    undifferentiated = jax.custom_jvp(call)

    @undifferentiated.defjvp
    def refuse_derivatives(*_: object) -> tuple[list[jax.Array], list[jax.Array]]:
        raise NotSupportedError(
            "the result of an artifact is differentiated, but its program holds an update and no derivative of it. Put "
            "`jax.lax.stop_gradient` around its arguments, or differentiate the learner that it was made of."
        )

    return undifferentiated


def _check_platforms(platforms: object) -> None:
    listed = isinstance(platforms, list | tuple) and platforms and all(p in _PLATFORMS for p in platforms)
    if platforms is not None and not listed:
        names = ", ".join(map(repr, _PLATFORMS))
        raise ArgumentError(f"`platforms` is {short(platforms)}; expected a list of some of {names}.")


def load(path: str | os.PathLike[str]) -> Artifact:
    """Read an artifact that `learner.export` wrote; neither the model nor its libraries are needed to run it.

    >>> import etrax, jax.numpy as jnp, optax, tempfile
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> file = tempfile.mktemp()
    >>> _ = learner.export(file, optax.sgd(0.1), lambda o, y: ((o - y) ** 2).mean())
    >>> etrax.load(file).manifest["rule"]
    'd_rtrl()'
    """
    _need_flatbuffers()
    file = check_path("path", path)
    if not file.is_file():
        raise ArtifactError(f"there is no file {str(path)!r}: pass what `learner.export` wrote.")
    manifest, program = read_archive(file)
    try:
        exported = jax_export.deserialize(bytearray(program))
    except Exception as error:  # jax raises many kinds
        raise ArtifactError(
            f"this jax ({jax.__version__}) cannot read the program of {str(path)!r}, which jax "
            f"{foreign(manifest['versions']['jax'])} wrote. Export it again with a version close to this one."
        ) from error
    _check_program(file, manifest, exported)
    return Artifact(manifest, exported)


def _check_program(path: Path, manifest: Mapping[str, Any], exported: jax_export.Exported) -> None:
    """The program takes and gives what the manifest says."""
    wanted = [leaf for part in parts_of(manifest) for leaf in manifest["arguments"][part]]
    updated = sum(len(manifest["arguments"][part]) for part in PARTS[:3])
    outs = updated + 1 + count_arrays(manifest["output"])
    flat = jax.tree.structure((tuple(range(len(wanted))), {})), jax.tree.structure(list(range(outs)))
    same = len(exported.in_avals) == len(wanted) and all(map(_fits, exported.in_avals, wanted))
    if (exported.in_tree, exported.out_tree) != flat or not same or list(exported.platforms) != manifest["platforms"]:
        raise ArtifactError(
            f"the program of {str(path)!r} is not the one that its manifest describes. Export it again."
        )


def _fits(aval: PyTree, leaf: Mapping[str, Any]) -> bool:
    """A random key is passed as its numbers, which have one axis more."""
    if leaf["dtype"].startswith("key<"):
        return list(aval.shape[:-1]) == leaf["shape"]
    return list(aval.shape) == leaf["shape"] and str(aval.dtype) == leaf["dtype"]


def _need_flatbuffers() -> None:
    """What `jax.export` writes its programs with."""
    if find_spec("flatbuffers") is None:
        raise MissingPackageError(f"artifacts need flatbuffers, which is not installed: {install_advice('export')}.")


def _key_kind(a: PyTree) -> PyTree:
    """How a random key is made of numbers; None for other arrays."""
    if not is_extended(a):
        return None
    kinds: list[PyTree] = []
    jax.eval_shape(lambda key: kinds.append(jax.random.key_impl(key)), a)
    return kinds[0]


def _plain(a: jax.Array) -> jax.Array:
    return jax.random.key_data(a) if is_extended(shape_struct(a)) else a


def _plain_struct(a: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.eval_shape(_plain, a) if is_extended(a) else a


def _described(parts: Sequence[str], structs: Sequence[PyTree]) -> dict[str, list[dict[str, object]]]:
    return {
        part: [
            {"path": format_path(path, part)[1:-1], "shape": list(a.shape), "dtype": str(a.dtype)}
            for path, a in leaves_with_paths(tree)
        ]
        for part, tree in zip(parts, structs, strict=True)
    }


def _size(tree: PyTree) -> int:
    return sum(a.size * a.dtype.itemsize for a in map(_plain_struct, jax.tree.leaves(tree)))


def _flops(program: jax.stages.Wrapped, args: Sequence[jax.ShapeDtypeStruct]) -> float | None:
    """Operations of one update as the compiler counts them; None where it does not."""
    counts = program.lower(*args).cost_analysis()
    return float(counts["flops"]) if counts and "flops" in counts else None


def _skeleton(tree: PyTree) -> Any:
    """The structure of an output in JSON: dictionaries, lists, tuples; anything else is a list of its leaves."""
    if isinstance(tree, jax.ShapeDtypeStruct):
        return "array"
    if tree is None:
        return None
    if type(tree) is dict and all(isinstance(k, str) for k in tree):
        return {"dict": {k: _skeleton(tree[k]) for k in sorted(tree)}}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [_skeleton(v) for v in tree]}
    return {"list": ["array" for _ in jax.tree.leaves(tree)]}


def _rebuilt(skeleton: Any, leaves: Iterator[jax.Array]) -> PyTree:
    if skeleton == "array":
        return next(leaves)
    if skeleton is None:
        return None
    if "dict" in skeleton:
        return {k: _rebuilt(v, leaves) for k, v in skeleton["dict"].items()}
    kind = "tuple" if "tuple" in skeleton else "list"
    parts = [_rebuilt(v, leaves) for v in skeleton[kind]]
    return tuple(parts) if kind == "tuple" else parts
