"""What is claimed of every model, and whether it holds."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import etrax
from etrax.compiler.analysis import OpNode, traced_relations
from etrax.compiler.ir import Role

from .cases import BY_SAMPLE, LOSS_GRADIENT, OTHER_SIGNAL, WHOLE, Case
from .evaluate import Evaluator
from .learners import changed, compiled, sample
from .measure import NARROW, close, relative, tolerance_of, without_shared_nan
from .oracle import bptt, inexact
from .outer import wrong_derivative
from .spec import Built, Model, build, step_source

# Models that BPTT runs and Etrax may refuse, by what the refusal says.
ALLOWED = (
    r"made of parameters with different rules",  # a partition through one weight
    r"of `partition` applies to no parameter",
    r"data batch dimensions not compatible",  # JAX cannot transpose a BCOO product under vmap; BPTT runs if unread
)


LONG = 10  # steps, in which all that a trace carries arrives
# Claims that two gradients are equal.
BY_VALUE = ("exact is exact", "a window over the sequence is BPTT", "truncated is BPTT inside the window")


class Failure(NamedTuple):
    """A claim that did not hold. Two failures with one `claim` are taken for the same."""

    case: Case | None
    claim: str
    detail: str


class Refusal(NamedTuple):
    case: Case
    message: str


class Outcome(NamedTuple):
    """Of one model: failures, refusals, parameters with a trace whose gradient was zero where BPTT's is not.

    `without_gradient` counts runs that BPTT cannot do, or whose gradient is not finite.
    """

    failures: list[Failure]
    refusals: list[Refusal]
    zeros: int = 0
    without_gradient: int = 0


Runner = Callable[..., Any]


def _widened(a: Any) -> Any:
    return a.astype(np.float64) if inexact(a) and a.dtype.itemsize == 2 else a


def with_xla(function: Callable[..., Any], *args: Any) -> Any:
    return jax.tree.map(lambda a: a, jax.jit(function)(*args))


class Checker:
    """Checks one model; `run(function, *args)` evaluates, in numpy or by XLA."""

    def __init__(self, model: Model, run: Runner | None = None) -> None:
        self.model, self.built = model, build(model)
        self.run: Runner = run or Evaluator()
        self._known: dict[Any, Any] = {}
        self._functions: dict[Any, Any] = {}
        self._wide: Checker | None = None

    def bptt(self, case: Case, cut: bool = False) -> Any:
        """Loss, gradients and last state by BPTT; with derivatives cut at windows if asked for."""
        window = case.window if cut and not case.whole else None
        key = (case.reduction, case.mask, window)
        if key not in self._known:
            b = self.built
            self._known[key] = self.run(bptt(b, window, case.reduction), b.params, b.hidden, b.xs, self.mask(case))
        return self._known[key]

    def mask(self, case: Case) -> Any:
        if not case.mask:
            return None
        shape = (self.model.steps, self.model.samples) if case.mask == "samples" else (self.model.steps,)
        weight = np.random.RandomState(1).uniform(0.5, 1.5, shape)
        weight.ravel()[1::3] = 0
        return jnp.asarray(weight)

    def fits(self, case: Case) -> bool:
        """A mask per sample asks for outputs whose first axis is the batch."""
        if case.mask != "samples":
            return True
        b = self.built
        _, out = jax.eval_shape(b.step, b.params, b.hidden, *(x[0] for x in b.xs))
        lead = self.model.samples
        return self.model.batched and bool(b.xs) and all(a.shape[:1] == (lead,) for a in jax.tree.leaves(out))

    @property
    def names(self) -> list[str]:
        """Parameters that have a gradient, in the order of gradients."""
        return [name for name in sorted(self.model.params) if "int" not in self.model.params[name].dtype]

    def check(self, case: Case) -> Failure | Refusal | int | None:
        """The first claim that fails, a refusal, or the number of zeros; None where BPTT has no gradient."""
        try:
            if not self.fits(case):
                case = case._replace(mask="")
            want = self.bptt(case)
        except Exception:  # JAX itself cannot run or differentiate the model
            return None
        if not all(np.isfinite(a).all() for a in jax.tree.leaves(want[:2])):
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                learner = compiled(self.built, case.rule)
            except etrax.EtraxError as error:
                return refused(case, error)
            except Exception as error:
                return Failure(case, f"compile raises {type(error).__name__}", _short(error))
            try:
                verdicts = verdicts_of(learner)
                with changed(self.built.consts) if case.extra == "constants" else nullcontext():
                    got = self.gradient(learner, case, self.built)
                found = self.compare(case, verdicts, got, want)
                if case.extra == "constants" and found is not None:
                    found = found._replace(claim=f"constants are those of compiling: {found.claim}")
                if found is None and case.rule in OTHER_SIGNAL and case.window > 1:
                    found = self.windows(learner, case, verdicts, got)
                if found is None and case.extra == "pieces":
                    found = self.pieces(learner, case, got)
                if found is None and case.extra == "steps":
                    found = self.steps(learner, case)
                if found is None and case.extra == "samples" and case.rule in BY_SAMPLE:
                    found = self.samples(case, got)
                if found is None and case.extra == "outer":
                    found = self.outer(learner, case)
                if found is None and case.extra == "resets":
                    found = self.resets(learner, case)
            except etrax.EtraxError as error:
                late = refused(case, error)
                return late if isinstance(late, Refusal) else Failure(case, "refused after compiling", _short(error))
            except Exception as error:
                return Failure(case, f"run raises {type(error).__name__}", _short(error))
        if found is not None:
            return found
        return self._zeros

    def gradient(self, learner: Any, case: Case, built: Built, xs: Any = None, state: Any = None) -> Any:
        """Loss, gradients of inexact leaves, learner state."""
        xs = built.xs if xs is None else xs
        key = (id(learner), case.window)
        if key not in self._functions:
            window = min(case.window, self.model.steps)
            f = learner.value_and_grad(built.loss, window=window, reduction=case.reduction)
            self._functions[key] = learner, lambda p, s, x, m, t: f(p, s, x, t, m)
        state = self.run(learner.init, built.params, built.hidden) if state is None else state
        clock = None if xs else np.zeros(self.model.steps)  # says how many steps there are
        run = self._functions[key][1]
        (loss, grads), state = self.run(run, built.params, state, xs, self.mask(case), clock)
        moving = [g for g, p in zip(jax.tree.leaves(grads), jax.tree.leaves(built.params), strict=True) if inexact(p)]
        return loss, moving, state

    def compare(self, case: Case, verdicts: Any, got: Any, want: Any) -> Failure | None:
        self._zeros = 0
        tolerance = tolerance_of(self.model)
        if not close(got[0], want[0], tolerance):
            return Failure(case, "the loss is the model's own", f"loss {got[0]}, by itself {want[0]}")
        for a, b in zip(jax.tree.leaves(got[2].hidden), jax.tree.leaves(want[2]), strict=True):
            # A state that starts at −∞ may turn others into NaN that no loss reads: NaN there too is right.
            if inexact(a) and not close(*without_shared_nan(a, b), tolerance):
                return Failure(case, "the last state is the model's own", f"{a} and {b}")
        names = self.names
        scale = max([float(np.abs(np.asarray(w, complex)).max(initial=0)) for w in want[1]], default=0.0)
        for i, name in enumerate(names):
            verdict, window = verdicts[(name,)], min(case.window, self.model.steps)
            kind, arrives = str(verdict.kind_at(window)), window >= (verdict.least_window or WHOLE)
            if kind in ("approximate", "truncated") and not arrives and np.any(np.asarray(got[1][i], complex)):
                return Failure(case, "no credit before the least window", f"params.{name}: {verdict.reason}")
            claim = self.leaf_claim(case, kind, got[1][i], want[1][i], i, scale, abs(float(want[0])))
            if claim:
                inside = claim.startswith("truncated")
                judge = self.bptt(case, cut=True)[1][i] if inside else want[1][i]
                if claim in BY_VALUE and self.is_rounding(case, inside, i, got[1][i], judge):
                    continue
                error = relative(got[1][i], judge)
                return Failure(case, claim, f"params.{name}: verdict {kind}, relative error {error:.3g}")
        return None

    def is_rounding(self, case: Case, cut: bool, i: int, g: Any, w: Any) -> bool:
        """Whether a gradient is no farther from BPTT's than BPTT's own moves when narrow leaves are widened.

        Where much cancels, little but the rounding of narrow leaves is left of a gradient.
        """
        if tolerance_of(self.model) < NARROW:
            return False
        if self._wide is None:
            self._wide = Checker(self.model, self.run)
            params, hidden = (jax.tree.map(_widened, tree) for tree in (self.built.params, self.built.hidden))
            self._wide.built = self.built._replace(params=params, hidden=hidden)
        try:
            wide = self._wide.bptt(case, cut)[1][i]
        except TypeError:  # a state whose type is written into the step
            return False
        return bool(np.linalg.norm(np.asarray(g - w, complex)) <= np.linalg.norm(np.asarray(w - wide, complex)))

    def leaf_claim(self, case: Case, kind: str, g: Any, w: Any, i: int, scale: float, loss: float) -> str:
        """The name of a claim that fails for one parameter, or nothing.

        `scale` is the largest gradient of the model. Where all are zero (an output that is a sum of probabilities),
        what is left of them is the rounding of a loss of this size.
        """
        tolerance = tolerance_of(self.model)
        another = kind == "approximate" or (kind == "truncated" and case.rule not in LOSS_GRADIENT)
        # A gradient that is not BPTT's may be larger, and pass the largest number of a float16 parameter, or of a cast
        # to float16 on its way, where two infinities can meet.
        narrow, cast = np.asarray(g).dtype == np.float16, "float16)" in step_source(self.model)
        has_nan = np.isnan(np.asarray(g, complex)).any()
        broken = not np.isfinite(np.asarray(g)).all()
        if (has_nan and not (another and cast)) or (broken and not (another and (narrow or cast))):
            return "no NaN where BPTT has none"
        by_loss = case.rule in LOSS_GRADIENT
        floor = 1e-3 * tolerance * max(scale, 0.1 * loss)
        if kind == "exact" and not close(g, w, tolerance, floor):
            return "exact is exact"
        if kind == "unused" and (not close(w, 0 * w, tolerance, floor) or not close(g, 0 * g, tolerance, floor)):
            return "unused means zero"
        if case.whole and by_loss and not close(g, w, tolerance, floor):
            return "a window over the sequence is BPTT"
        zero = not np.any(np.asarray(g, complex)) and not close(w, 0 * w, 1e-6, 1e-6 * scale)
        if by_loss and (case.rule == "tbptt" or (kind == "truncated" and case.rule != "synthetic") or zero):
            inside = self.bptt(case, cut=True)[1][i]
            if zero and not close(inside, 0 * inside, 1e-6, 1e-6 * scale):
                return "no zero where BPTT is not"
            if (case.rule == "tbptt" or kind == "truncated") and not close(g, inside, tolerance, floor):
                return "truncated is BPTT inside the window"
        if zero and kind == "approximate":
            # The analysis counts a complex number as one element: a part of it that no output shows may be all it has.
            # And one signal for all units has no slope where these are normalised, so that their sum never changes.
            # A product with a matrix that has no gradient counts as full, also where a mask makes it triangular.
            source = step_source(self.model)
            masked = any("int" in spec.dtype for spec in self.model.params.values()) and "tri" in source
            hidden = ".imag" in source or masked or (case.rule == "three_factor" and ".mean(" in source)
            if not hidden and self.never_credited(case, i):
                return "what is approximate has a gradient"
            self._zeros += 1
        return ""

    def never_credited(self, case: Case, i: int) -> bool:
        """Whether a gradient stays zero, and BPTT's does not, in longer sequences of other numbers.

        A sequence of a few steps may end before credit arrives, and a rectifier may be off by chance, or a spiking
        unit silent for good.
        """
        wanted = False
        for numbers in range(1, 16):
            other = Checker(self.model._replace(steps=LONG), self.run)
            other.built = build(other.model, numbers)
            _, want, _ = other.bptt(case)
            got = other.gradient(compiled(other.built, case.rule), case, other.built)[1]
            if np.any(np.asarray(got[i], complex)):
                return False
            wanted |= bool(np.isfinite(want[i]).all() and np.abs(want[i]).max(initial=0) > 1e-9)
        return wanted

    def windows(self, learner: Any, case: Case, verdicts: Any, got: Any) -> Failure | None:
        """A signal that acts step by step gives the same gradient for every window, where a trace is carried."""
        one = self.gradient(learner, case._replace(window=1), self.built)
        loose = 10 * tolerance_of(self.model)
        for name, a, b in zip(self.names, got[1], one[1], strict=True):
            kind = str(verdicts[(name,)].kind)
            if _all_traced(learner.facts, name) and not close(a, b, loose, loose):
                detail = f"params.{name}: verdict {kind}, relative error {relative(a, b):.3g}"
                return Failure(case, "a signal of each step is the same for every window", detail)
        return None

    def pieces(self, learner: Any, case: Case, got: Any) -> Failure | None:
        """Fed in parts that end where a window ends (windows of one or two steps)."""
        b, cut = self.built, 2
        if case.whole or not b.xs:
            return None
        state, loss, total = None, 0.0, [0.0] * len(got[1])
        for start in range(0, self.model.steps, cut):  # parts of one length are traced once
            part, grads, state = self.gradient(learner, case, b, tuple(x[start : start + cut] for x in b.xs), state)
            loss, total = loss + part, [a + c for a, c in zip(total, grads, strict=True)]
        loose = 10 * tolerance_of(self.model)
        same = close(loss, got[0], loose) and all(close(a, c, loose, loose) for a, c in zip(total, got[1], strict=True))
        return None if same else Failure(case, "fed in pieces is fed at once", "sums differ")

    def steps(self, learner: Any, case: Case) -> Failure | None:
        """Two steps by `learner.step` leave the state that windows of one step leave, as the rest of the data shows."""
        b = self.built
        if not b.xs or case.window != 1:
            return None
        first, rest = tuple(x[:2] for x in b.xs), tuple(x[2:] for x in b.xs)
        state = self.run(learner.init, b.params, b.hidden)
        for t in range(2):
            state, _ = self.run(learner.step, b.params, state, *(x[t] for x in b.xs))
        got = self.gradient(learner, case, b, rest, state)
        want = self.gradient(learner, case, b, rest, self.gradient(learner, case, b, first)[2])
        loose = 10 * tolerance_of(self.model)
        same = all(close(g, w, loose, loose) for g, w in zip([got[0], *got[1]], [want[0], *want[1]], strict=True))
        return None if same else Failure(case, "a step leaves what a window of one leaves", "what follows differs")

    def resets(self, learner: Any, case: Case) -> Failure | None:
        """A reset before the second step, within the first window where it has two: the pieces by themselves."""
        b = self.built
        if case.whole or not b.xs or learner.facts.nonlinear:  # pieces do not add up under a rule that is not linear
            return None
        f = learner.value_and_grad(b.loss, window=case.window, reduction="sum")
        flags = jnp.arange(self.model.steps) == 1
        start = self.run(learner.init, b.params, b.hidden)

        def stream(params: Any, state: Any, xs: Any, hidden: Any) -> Any:
            return f(params, state, xs, None, None, flags, initial=hidden)

        (loss, grads), end = self.run(stream, b.params, start, b.xs, b.hidden)
        parts = [tuple(x[at] for x in b.xs) for at in (slice(1), slice(1, 2), slice(2, None))]
        one = self.gradient(learner, case, b, parts[0], start)
        two = self.gradient(learner, case, b, parts[1], start)
        three = self.gradient(learner, case, b, parts[2], two[2])
        loose, leaves = (
            10 * tolerance_of(self.model),
            zip(jax.tree.leaves(grads), jax.tree.leaves(b.params), strict=True),
        )
        got = [g for g, p in leaves if inexact(p)]
        want = [sum(parts) for parts in zip(one[1], two[1], three[1], strict=True)]
        same = close(loss, one[0] + two[0] + three[0], loose)
        same = same and all(close(g, w, loose, loose) for g, w in zip(got, want, strict=True))
        pairs = zip(jax.tree.leaves(end.hidden), jax.tree.leaves(three[2].hidden), strict=True)
        same = same and all(close(*without_shared_nan(x, y), loose) for x, y in pairs if inexact(x))
        return None if same else Failure(case, "a stream with a reset is its pieces", "sums differ")

    def outer(self, learner: Any, case: Case) -> Failure | None:
        """Derivatives of the learner's loss, and of a training run."""
        found = wrong_derivative(self.run, learner, case, self.built, self.mask(case))
        return Failure(case, *found) if found else None

    def samples(self, case: Case, got: Any) -> Failure | None:
        """Samples one by one; only where BPTT agrees that they do not meet."""
        ones = [sample(self.built, i) for i in range(self.model.samples)]
        want, loose = self.bptt(case)[1], 10 * tolerance_of(self.model)
        by_itself = bptt(ones[0], None, "sum")
        alone = [self.run(by_itself, b.params, b.hidden, b.xs)[1] for b in ones]
        if not all(close(sum(parts), w, loose, loose) for *parts, w in zip(*alone, want, strict=True)):
            return None
        learner, whole = compiled(ones[0], case.rule), compiled(self.built, case.rule)
        each = [self.gradient(learner, case, b)[1] for b in ones]
        sums = [close(sum(parts), g, loose, loose) for *parts, g in zip(*each, got[1], strict=True)]
        # What cannot be carried for a batch (a weight that samples share) may well be for one sample, and says so.
        pairs = zip(_verdicts(learner, self.built), _verdicts(whole, self.built), strict=True)
        alike = [_without_sizes(a) == _without_sizes(b) or a.kind == b.kind == "exact" for a, b in pairs]
        same = all(ok for ok, judged in zip(sums, alike, strict=True) if judged)
        return None if same else Failure(case, "a batch is the sum of its samples", "sums differ")


def _without_sizes(verdict: Any) -> tuple[str, str]:
    """A verdict as one sample and a batch have it: a trace over pairs is larger for a batch."""
    return verdict.kind, re.sub(r"in a trace of [\d.]+ \w+", "", verdict.reason)


def _all_traced(facts: Any, name: str) -> bool:
    """Whether every weight op of a parameter that reaches a state has a trace: others are exact in a window only."""
    (param,) = (i for i, leaf in enumerate(facts.step.select(Role.PARAM)) if leaf.path == (name,))
    traced = {r.site for r in traced_relations(facts)}
    return all(j in traced for j in facts.sites_of(param) if facts.remembers(OpNode(j)))


def verdicts_of(learner: Any) -> dict[Any, Any]:
    """What the report says of each parameter, without the sizes of other rules' traces."""
    leaves = learner.facts.step.select(Role.PARAM)
    return {leaf.path: learner.rule.verdict(learner.facts, i) for i, leaf in enumerate(leaves)}


def _verdicts(learner: Any, built: Built) -> list[Any]:
    """Verdicts in the order of gradients."""
    found = verdicts_of(learner)
    return [found[(name,)] for name, p in sorted(built.params.items()) if inexact(p)]


def refused(case: Case, error: Exception) -> Failure | Refusal:
    """A refusal by one of our errors counts as one if its reason is known."""
    for reason in ALLOWED:
        if re.search(reason, str(error)):
            return Refusal(case, reason)
    return Failure(case, f"refused: {_general(str(error))[:90]}", _short(error))


def _general(message: str) -> str:
    """A message without the names and numbers of one model."""
    return re.sub(r"\s+", " ", re.sub(r"\d+|params\.\w+|<model>:\S*", "…", message))


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


def check_model(model: Model, cases: list[Case], evaluator: Runner | None = None) -> Outcome:
    """Check cases in numpy; what fails is repeated with XLA, and counts if it fails there, too."""
    checker = Checker(model, evaluator)
    failures, refusals, zeros, without = [], [], 0, 0
    for case in cases:
        found = checker.check(case)
        if isinstance(found, Failure):
            again = Checker(model, with_xla).check(case)
            if isinstance(again, Failure):
                failures.append(again)
                break  # one failure says that the model is to be looked at
        elif isinstance(found, Refusal):
            refusals.append(found)
        else:
            zeros, without = zeros + (found or 0), without + (found is None)
    return Outcome(failures, refusals, zeros, without)
