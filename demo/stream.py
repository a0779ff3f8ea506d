"""All words one after another as one stream, learned while it runs. Nothing is kept, nothing is shown twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import etrax

from . import model
from .data import Digits
from .measure import compiled, planned_bytes
from .runs import Settings, loss

# What is heard: how many streams side by side, and by which rule. `tbptt` carries no trace: what a trace is worth.
HEARD = ((1, "d_rtrl"), (16, "d_rtrl"), (1, "tbptt"))
# How often the share of right answers is told.
PARTS = 8
# Lengths for which memory is planned.
LENGTHS = (100, 1_000, 10_000, 100_000)


@dataclass(frozen=True)
class Heard:
    """A stream that was learned: words and steps, the share recognised before they were learned from, part by part."""

    batch: int
    rule: str
    words: int
    steps: int
    shares: tuple[float, ...]

    @property
    def label(self) -> str:
        if self.rule == "tbptt":
            return "no trace"
        return "one stream" if self.batch == 1 else f"{self.batch} streams"


def concatenated(digits: Digits, batch: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`batch` streams of all words in an order of their own: inputs (T, B, channels), answers and mask (T, B)."""
    ends = np.argmax(digits.train.mask, axis=0) + 1
    order = np.random.default_rng(seed).permutation(len(ends))
    streams = []
    for mine in np.array_split(order, batch):
        pieces = [(slice(0, ends[k]), k) for k in mine]
        streams.append([np.concatenate([a[s, k] for s, k in pieces]) for a in digits.train[:3]])
    steps = min(len(s[0]) for s in streams)
    inputs, answers, mask = (np.stack([s[i][:steps] for s in streams], axis=1) for i in range(3))
    return inputs, answers, mask


def learner_of(settings: Settings, digits: Digits, batch: int, rule: str) -> etrax.Learner:
    return etrax.compile(
        model.step, rule, jnp.zeros((batch, digits.channels), jnp.float32),
        params=model.weights(jax.random.key(0), digits.channels, settings.neurons, digits.classes),
        hidden=model.silence(batch, settings.neurons),
    )  # fmt: skip


def listen(settings: Settings, digits: Digits, batch: int, rule: str, tell: Callable[[str], None]) -> Heard:
    """Learn a stream by a rule; each part is first classified with the weights at its beginning, then learned from."""
    inputs, answers, mask = concatenated(digits, batch)
    learner, adam = learner_of(settings, digits, batch, rule), optax.adam(settings.rate / 5)
    train = learner.train(adam, loss, window=settings.window)
    answer = jax.jit(
        lambda params, hidden, x: jax.lax.scan(lambda h, x: learner.plain_step(params, h, (x,)), hidden, x)[1]
    )
    params, opt_state, state, shares = learner.params, adam.init(learner.params), learner.init(), []
    size = len(inputs) // PARTS
    for part in (slice(k * size, (k + 1) * size) for k in range(PARTS)):
        guess = np.argmax(answer(params, state.hidden, inputs[part]), -1) == answers[part]
        shares.append(float((guess * mask[part]).sum() / mask[part].sum()))
        params, opt_state, state, _ = train(
            params, opt_state, state, inputs[part], answers[part], mask[part]
        )  # fmt: skip
        tell(
            f"  after {part.stop:>7,} steps: {100 * shares[-1]:.0f} % of the words of this eighth recognised before it "
            "was learned from"
        )
    return Heard(batch, rule, int(mask[: PARTS * size].sum()), PARTS * size, tuple(shares))


def memory(
    settings: Settings, digits: Digits, lengths: Sequence[int] = LENGTHS,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, list[int]]:  # fmt: skip
    """Bytes of one gradient over a stream of batch 1, by its length; nothing is run."""
    learner = learner_of(settings, digits, 1, "d_rtrl")
    online = learner.value_and_grad(loss, window=settings.window)
    by_bptt = etrax.testing.bptt(learner, loss)

    def lowered(run: Callable[..., Any], steps: int) -> jax.stages.Lowered:
        shapes = [jax.ShapeDtypeStruct((steps, 1, *a.shape[2:]), a.dtype) for a in digits.train[:3]]
        return jax.jit(run).lower(learner.params, *shapes)

    found = compiled(
        [lowered(lambda p, *s: online(p, learner.init(p), *s)[0][1], n) for n in lengths]
        + [lowered(lambda p, *s: by_bptt(p, learner.hidden, *s)[1], n) for n in lengths],
        tell,
    )
    planned = [planned_bytes(one) for one in found]
    return {"d_rtrl": planned[: len(lengths)], "BPTT": planned[len(lengths) :]}
