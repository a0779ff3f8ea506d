"""The commands, one function each. Exit codes: 0 fine, 1 the check failed, 2 bad usage or input."""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import traceback
import warnings
from collections.abc import Sequence

from .._errors import EtraxError
from .._version import __version__

MODEL = (
    "MODULE:FACTORY or FILE.py:FACTORY, a function that returns a model, (module, inputs), or (step, params, hidden, "
    "inputs)"
)
PACKAGES = {
    "brainstate": "brainstate", "brainpy": "brainpy.state", "flax": "flax", "equinox": "equinox",
    "train": "orbax-checkpoint", "viz": "matplotlib", "export": "flatbuffers",
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the answer is the exit code."""
    options = _parser().parse_args(arguments)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            return options.run(options)
    except EtraxError as error:
        if options.debug:
            traceback.print_exc()
        print(f"etrax: {error}", file=sys.stderr)
    except Exception as error:  # the user's factory may raise anything
        if options.debug:
            traceback.print_exc()
        print(f"etrax: {type(error).__name__}: {error}\nRun it again with --debug to see where.", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "etrax", description="Turn any one-step JAX model into an online learner, and know what you get."
    )
    parser.add_argument("--version", action="version", version=f"etrax {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(name: str, run: object, text: str, model: bool = True) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        made.set_defaults(run=run)
        if model:
            made.add_argument("model", help=MODEL)
        return made

    def data(made: argparse.ArgumentParser) -> None:
        made.add_argument("--window", type=_positive, default=3, help="steps that are differentiated together (3)")
        made.add_argument("--steps", type=_positive, default=20, help="length of the random sequence (20)")
        made.add_argument("--seed", type=int, default=0, help="of the random inputs (0)")

    explain = command("explain", _explain, "Say for every parameter what its gradient is worth, and why.")
    explain.add_argument("--rule", default="d_rtrl", help="the learning rule (d_rtrl)")
    explain.add_argument("--html", metavar="FILE", help="write the report as a page, with the graph drawn")
    check = command("check", _check, "Compare gradients with BPTT on random inputs; exit code 1 if a verdict is wrong.")
    check.add_argument("--rule", default="d_rtrl", help="the learning rule (d_rtrl)")
    data(check)
    rules = command("rules", _rules, "Put rules side by side on your model: memory, time, cosine with BPTT, verdicts.")
    rules.add_argument("--rules", nargs="+", metavar="RULE", help="names of rules (tbptt pp_prop d_rtrl rtrl)")
    rules.add_argument("--html", metavar="FILE", help="write the table as a page")
    data(rules)
    command("doctor", _doctor, "Say which versions, extras and devices are here, and what is missing.", model=False)
    return parser


def _positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return value


def _explain(options: argparse.Namespace) -> int:
    from ._model import load_model

    learner = load_model(options.model).learner(options.rule)
    print(learner.report)
    if options.html:
        learner.report.to_html(options.html)
        print(f"\nwritten to {options.html}")
    return 0


def _check(options: argparse.Namespace) -> int:
    from ..testing import GradientError, compare
    from ._model import load_model, sequence_like, squares

    model = load_model(options.model)
    learner = model.learner(options.rule)
    inputs = sequence_like(model.inputs, options.steps, options.seed)
    table = compare(learner, squares, learner.params, learner.hidden, inputs, window=options.window)
    print(table)
    try:
        table.check()
    except GradientError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    print(f"\nevery gradient is what its verdict says ({options.steps} steps of random inputs, loss: mean of squares)")
    return 0


def _rules(options: argparse.Namespace) -> int:
    from ..testing import compare_rules
    from ._model import load_model, sequence_like, squares

    model = load_model(options.model)
    learner = model.learner("tbptt")
    inputs = sequence_like(model.inputs, options.steps, options.seed)
    table = compare_rules(
        learner, squares, learner.params, learner.hidden, inputs, rules=options.rules, window=options.window
    )
    print(table)
    if options.html:
        table.to_html(options.html)
        print(f"\nwritten to {options.html}")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    import jax

    print(f"etrax {__version__}, Python {sys.version.split()[0]}, jax {jax.__version__}")
    for device in jax.devices():
        print(f"device: {device.platform} {device.device_kind} ({device.id})")
    print(f"float64: {'on' if jax.config.read('jax_enable_x64') else 'off'}")
    for extra, package in PACKAGES.items():
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found = f'missing: pip install "etrax[{extra}]"'
        print(f"{package}: {found}")
    return 0
