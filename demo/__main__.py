"""`python -m demo`: train by four gradients, print a table, write a page."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from etrax.tasks import MissingDataError
from etrax.train import Result

from . import measure
from .charts import LABEL, alone, sizes
from .data import Digits, load
from .page import page
from .pictures import one_word
from .runs import METHODS, Method, Settings, first_batch, fit, method
from .stream import HEARD, PARTS, listen
from .stream import LENGTHS as STREAMS
from .stream import memory as stream_memory
from .table import Row, put, readme, text

# What `--readme` takes to the README: its part, and its picture, wide and narrow.
PART, PICTURES = "README.part.md", ("docs/pictures/memory.svg", "docs/pictures/memory_narrow.svg")

# What a finished demo leads to. Commands are given as they are typed in the folder of the demo.
NEXT = """\
Next, a model of your own. That network is `make` in demo/model.py: replace its step, or use a file of your own.
  .venv-demo/bin/etrax explain demo/model.py:make    how good each parameter's gradient is, and why
  .venv-demo/bin/etrax check demo/model.py:make      the same, measured against BPTT
Questions: docs/start.md (ten minutes), docs/which_rule.md, docs/front_ends.md; `make docs` builds the site."""


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    settings = Settings(neurons=options.neurons, epochs=options.epochs)
    out = Path(options.out)
    try:
        print("Reading the digits …", flush=True)
        digits = load(options.data, options.samples)
        kept = out / f"result-{_mark(settings, digits)}.txt"
        if kept.exists() and (out / "report.html").exists() and not options.again:
            print(f"Finished before (--again trains anew):\n\n{kept.read_text(encoding='utf-8')}")
            file = out / "report.html"
        else:
            file = run(settings, digits, out)
    except MissingDataError as missing:
        print(missing, file=sys.stderr)
        return 1
    except KeyboardInterrupt as stopped:
        told = str(stopped) or "interrupted."
        print(f"\n{told}\nRun the same command again: it continues from the last finished epoch.", file=sys.stderr)
        return 130
    if options.readme:
        page = Path(options.readme)
        part = (out / PART).read_text(encoding="utf-8")
        for picture in PICTURES:
            (page.parent / picture).write_bytes((out / Path(picture).name).read_bytes())
        page.write_text(put(part, page.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")
    print(f"\nReport: {file.resolve()}\n\n{NEXT}")
    return 0


def run(settings: Settings, digits: Digits, out: Path) -> Path:
    """Everything; returns the page. Checkpoints are for interrupted runs, and go when the page is written."""
    began = perf_counter()
    train, test = digits.train.inputs.shape[1], digits.test.inputs.shape[1]
    print(
        f"{digits.name.capitalize()}: {train:,} to learn, {test:,} held out at random, up to {digits.steps} steps.\n"
        f"{settings.neurons} adaptive spiking neurons, recurrent; only the answer at the last step counts.\n"
    )
    heard = []
    for batch, rule in HEARD:
        if batch > max(1, train // (2 * PARTS)):
            continue  # too few words for so many streams: some parts would hold none
        many = "One stream of all words" if batch == 1 else f"The words as {batch} streams side by side"
        how = "with d_rtrl" if rule == "d_rtrl" else f"with {rule}, which carries no trace"
        print(f"{many}, learned while it runs, {how}; compiling first …", flush=True)
        heard.append(listen(settings, digits, batch, rule, lambda text: print(text, flush=True)))
    print("\nComputing the memory of one gradient, for streams of up to 100,000 steps …", flush=True)
    memory = stream_memory(settings, digits, tell=_told)
    at = ", ".join(f"{n:,} steps {b / 1e6:.1f} MB" for n, b in zip(STREAMS, memory["BPTT"], strict=True))
    print(f"Memory of one gradient: d_rtrl {memory['d_rtrl'][-1] / 1e6:.1f} MB at any length; BPTT {at}.\n")
    kept = out / "checkpoints" / _mark(settings, digits)
    methods = {name: method(name, settings, digits) for name in METHODS}
    results = {}
    for name, one in methods.items():
        how = "the whole sequence at once" if one.is_bptt else f"online, {settings.window} steps at a time"
        found = "; continues from the epochs that were finished before" if (kept / name).exists() else ""
        print(f"{one.label}: {how}{found}", flush=True)
        results[name] = fit(one, settings, digits, kept)
        print()
    print("Measuring memory and gradients …\n", flush=True)
    rows = _rows(methods, results, settings, digits)
    shown = text(rows, digits.steps)
    print(shown)
    print(
        "\nCosine with BPTT's gradient: mean over the parameters (least). Memory: of one gradient, as compiled.\n"
        "These sequences are short: in longer ones BPTT needs more memory, and online learning does not."
    )
    first, params = methods["d_rtrl"], results["d_rtrl"].last_params
    file = out / "report.html"
    found = page(rows, first.learner.report, one_word(first, params, settings, digits), settings, digits, heard, memory)
    file.write_text(found, encoding="utf-8", newline="\n")
    lead = [
        f"{h.label}, {h.rule}: {100 * h.shares[-1]:.0f} % recognised in the last eighth of {h.steps:,} steps"
        for h in heard
    ]
    (out / f"result-{_mark(settings, digits)}.txt").write_text("\n".join([*lead, "", shown]), encoding="utf-8")
    (out / PART).write_text(readme(rows, heard, memory, digits, settings), encoding="utf-8", newline="\n")
    for frame, picture in enumerate(PICTURES):
        drawn = alone(sizes(memory, STREAMS, LABEL), frame)
        (out / Path(picture).name).write_text(drawn, encoding="utf-8", newline="\n")
    shutil.rmtree(kept)
    print(f"{perf_counter() - began:.0f} s in all; peak resident memory {measure.peak_resident()}.")
    return file


def _rows(
    methods: dict[str, Method], results: dict[str, Result], settings: Settings, digits: Digits
) -> list[Row]:  # fmt: skip
    """A row for each method; BPTT, which the others are compared with, comes last."""
    lengths = measure.LENGTHS
    programs = [measure.gradient(one, settings, digits, times) for one in methods.values() for times in lengths]
    found = measure.compiled(programs, _told)
    compiled = {name: found[k * len(lengths) : (k + 1) * len(lengths)] for k, name in enumerate(methods)}
    batch = first_batch(settings, digits.train)

    def cosine(name: str, params: Any) -> measure.Cosine:
        return measure.cosine(compiled[name][0](params, *batch), compiled["bptt"][0](params, *batch))

    return [
        Row(
            one.label,
            tuple(e.metrics["val_accuracy"] for e in results[name].history),
            min(e.seconds for e in results[name].history),
            tuple(map(measure.planned_bytes, compiled[name])),
            cosine(name, one.learner.params),
            cosine(name, results[name].last_params),
        )
        for name, one in sorted(methods.items(), key=lambda item: item[1].is_bptt)
    ]


def _told(done: int, of: int) -> None:
    """How many programs are compiled, on one line that grows."""
    print(f"  {done} of {of} programs compiled", end="\n" if done == of else "\r", flush=True)


def _mark(settings: Settings, digits: Digits) -> str:
    """Other settings are another run: a checkpoint does not know the learning rate, nor the data."""
    shapes = digits.train.inputs.shape, digits.test.inputs.shape
    return hashlib.sha256(repr((settings, digits.name, shapes)).encode()).hexdigest()[:12]


def _options(arguments: list[str] | None) -> argparse.Namespace:
    usual = Settings()
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--epochs", type=_count, default=usual.epochs)
    parser.add_argument("--neurons", type=_count, default=usual.neurons)
    parser.add_argument("--samples", type=_count, help="learn only this many digits")
    parser.add_argument("--again", action="store_true", help="train again even if there is a result")
    parser.add_argument("--data", choices=("auto", "speech", "images"), default="auto")
    parser.add_argument("--readme", metavar="FILE", help="write the figures into this page")
    parser.add_argument(
        "--out", default=str(Path(__file__).with_name("out")), help="directory of report and checkpoints"
    )
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
