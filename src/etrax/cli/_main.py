"""The commands, one function each. Exit codes: 0 fine, 1 the check failed, 2 bad usage or input."""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence

from .._errors import EtraxError, need, visible
from .._install import install_command
from .._version import __version__

MODEL = (
    "MODULE:FACTORY or FILE.py:FACTORY, a function that returns a model, (module, inputs), (module, hidden, inputs) "
    "for a cell whose hidden state is an argument, (step, params, hidden, inputs), or a learner"
)
# By package, the extra that brings it. The models of `brainpy.state` are a package of their own on Python 3.11 and a
# part of brainpy since 2.9, which needs a later Python; a package `brainpy.state` of version 0.2 holds nothing.
SPIKING = ("brainpy.state",) if sys.version_info < (3, 12) else ("brainpy", "brainspikes")
PACKAGES = {
    "brainstate": "brainstate", **dict.fromkeys(SPIKING, "brainpy"),
    "numba": "brainpy", "braintools": "brainpy", "flax": "flax", "equinox": "equinox", "optax": "train",
    "rich": "train", "orbax-checkpoint": "train", "matplotlib": "viz", "flatbuffers": "export", "nir": "nir",
    "scikit-learn": "tasks",
}  # fmt: skip
OLDEST = {"brainpy": (2, 9)}
EMPTY_SINCE = {"brainpy.state": (0, 2)}
FIRST = """\
for these commands, write a function that returns your model:

  # model.py
  import jax.numpy as jnp
  def make():
      def step(params, hidden, x):
          hidden = 0.9 * hidden + jnp.tanh(x @ params["w"])
          return hidden, hidden @ params["out"]
      params = {"w": jnp.ones((3, 8)), "out": jnp.ones((8, 2))}
      return step, params, jnp.zeros((16, 8)), jnp.ones((16, 3))  # one step of a batch of 16

  etrax explain model.py:make       how good each parameter's gradient is
  etrax check model.py:make         compare the gradients with BPTT's
  etrax rules model.py:make         which rule to use
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the answer is the exit code."""
    commands = parser()
    options = commands.parse_args(arguments)
    if "run" not in options:  # `etrax` alone: what there is, and how to begin
        commands.print_help(sys.stderr)
        return 2
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.simplefilter("ignore", ResourceWarning)
            code = options.run(options)
            sys.stdout.flush()
            return code
    except EtraxError as error:
        if options.debug:
            traceback.print_exc()
        print(f"etrax: {error}", file=sys.stderr)
    except BrokenPipeError:  # the reader of the output has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is not written at the exit
        return 141
    except KeyboardInterrupt:
        print("etrax: stopped", file=sys.stderr)
    except MemoryError as error:  # of the user's factory, or of a model that is larger than it looks
        if options.debug:
            traceback.print_exc()
        print(f"etrax: there is not enough memory here: {visible(error) or 'Python says no more'}", file=sys.stderr)
    except Exception as error:  # the user's factory may raise anything
        if options.debug:
            traceback.print_exc()
        print(
            f"etrax: {type(error).__name__}: {visible(error)}\nRun it again with --debug to see where.", file=sys.stderr
        )
    return 2


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    top = argparse.ArgumentParser(
        "etrax", description="Turn any one-step JAX model into an online learner, and know what you get.", epilog=FIRST,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    top.add_argument("--version", action="version", version=f"etrax {__version__}")
    commands = top.add_subparsers(metavar="command")

    def command(name: str, run: Callable[..., int], text: str, use: str, model: bool = True) -> argparse.ArgumentParser:
        form = argparse.RawDescriptionHelpFormatter
        one = commands.add_parser(name, help=text, description=text, epilog=f"example:\n  {use}", formatter_class=form)
        one.add_argument("--debug", action="store_true", help="show the traceback of an error")
        one.set_defaults(run=run)
        if model:
            one.add_argument("model", help=MODEL)
        return one

    _about_models(command)
    _about_runs(command)
    return top


def _about_models(command: Callable[..., argparse.ArgumentParser]) -> None:
    use = "etrax explain model.py:make --html report.html"
    explain = command("explain", _explain, "Say how good the gradient of every parameter is, and why.", use)
    _rule(explain)
    explain.add_argument("--full", action="store_true", help="every parameter with its full reason")
    explain.add_argument("--html", metavar="FILE", help="write the report as a page, with the graph drawn")
    text = "Compare gradients with BPTT on random inputs; exit code 1 if a verdict is wrong."
    check = command("check", _check, text, "etrax check model.py:make --window 5 --steps 50")
    _rule(check)
    _data(check)
    text = "Compare rules on your model: memory, time, cosine with BPTT, verdicts."
    rules = command("rules", _rules, text, "etrax rules model.py:make --rules tbptt d_rtrl rtrl --html rules.html")
    rules.add_argument("--rules", nargs="+", metavar="RULE", help="names of rules (tbptt pp_prop d_rtrl rtrl)")
    rules.add_argument("--slow", action="store_true", help="also rules that take more than 50 times as long as BPTT")
    rules.add_argument("--html", metavar="FILE", help="write the table as a page")
    _data(rules)
    text = "Measure time and memory of a gradient beside BPTT, over sequences of growing length."
    bench = command("bench", _bench, text, "etrax bench model.py:make --window 10 --lengths 100 1000 10000")
    _rule(bench)
    _data(bench, steps=False)
    bench.add_argument("--lengths", nargs="+", type=_positive, default=[50, 200, 800], help="of sequences (50 200 800)")
    text = "Write the whole update of a model as one file, which etrax.load runs without the model's code."
    export = command("export", _export, text, "etrax export model.py:make update.etrax --learning-rate 0.01")
    export.add_argument("file", help="where to write it")
    _rule(export)
    export.add_argument("--window", type=_positive, default=1, help="steps of one update (1)")
    export.add_argument("--learning-rate", type=_rate, default=1e-3, help="of Adam (0.001)")
    export.add_argument("--loss", choices=("squares", "cross-entropy"), default="squares", help="of a step (squares)")


def _about_runs(command: Callable[..., argparse.ArgumentParser]) -> None:
    text = "Train from a config: data, model, rule, optimizer, window. Run it again to continue where it stopped."
    train = command("train", _train, text, "etrax train --example > run.toml && etrax train run.toml", model=False)
    train.add_argument("config", nargs="?", help="a TOML file; it is data and is never executed")
    train.add_argument("--example", action="store_true", help="print a config to start from")
    text = "a model of your own instead of [model]; its example inputs are one step of the data, (batch, channels)"
    train.add_argument("--model", metavar="MODULE:FACTORY", help=text)
    train.add_argument(
        "--accept", nargs="+", default=[], metavar="WORD", help="continue although the model, loss, optimizer … changed"
    )
    command("demo", _demo, "Watch a network learn from a stream, in seconds.", "etrax demo", model=False)
    text = "List versions, extras and devices, and what is missing."
    command("doctor", _doctor, text, "etrax doctor", model=False)
    text = "Print a script that completes the commands in your shell."
    completion = command("completion", _completion, text, 'eval "$(etrax completion bash)"', model=False)
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))


def _rule(command: argparse.ArgumentParser) -> None:
    command.add_argument("--rule", help="the learning rule (d_rtrl; that of a learner if the factory returns one)")


def _data(command: argparse.ArgumentParser, steps: bool = True) -> None:
    command.add_argument("--window", type=_positive, default=3, help="steps that are differentiated together (3)")
    if steps:
        command.add_argument("--steps", type=_positive, default=20, help="length of the random sequence (20)")
    command.add_argument("--seed", type=_seed, default=0, help="of the random inputs (0)")


def _positive(text: str) -> int:
    most = 2**31 - 1  # of steps, by which JAX counts
    # More digits than those of any such number are not read: Python itself refuses thousands of them.
    value = int(text) if text.isdecimal() and len(text) <= 20 else 0
    if not 1 <= value <= most:
        shown = text if len(text) <= 40 else f"{text[:40]}…"
        raise argparse.ArgumentTypeError(f"{shown!r} is not a whole number from 1 to {most}")
    return value


def _seed(text: str) -> int:
    value = int(text) if text.isdecimal() else -1
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 up to 2**32")
    return value


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above zero")
    return value


def _explain(options: argparse.Namespace) -> int:
    from ._model import load_model

    learner = load_model(options.model).learner(options.rule)
    print(learner.report.full() if options.full else learner.report)
    if options.html:
        learner.report.to_html(options.html)
        print(f"\nwritten to {options.html}")
    return 0


def _check(options: argparse.Namespace) -> int:
    from ..testing import GradientError, compare
    from ._model import load_model, sequence_like, squares

    model = load_model(options.model)
    learner = model.learner(options.rule)
    inputs = sequence_like(learner, model.inputs, options.steps, options.seed)
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
    inputs = sequence_like(learner, model.inputs, options.steps, options.seed)
    table = compare_rules(
        learner, squares, learner.params, learner.hidden, inputs, rules=options.rules, window=options.window,
        slow=options.slow,
    )  # fmt: skip
    print(table)
    if options.html:
        table.to_html(options.html)
        print(f"\nwritten to {options.html}")
    return 0


def _bench(options: argparse.Namespace) -> int:
    from ._bench import rows
    from ._model import load_model

    for row in rows(load_model(options.model), options.rule, options.window, options.lengths, options.seed):
        print(row, flush=True)
    print(f"(window {options.window}; BPTT's memory grows with the length, that of a rule does not)")
    return 0


def _export(options: argparse.Namespace) -> int:
    import jax
    import jax.numpy as jnp

    from ._model import load_model

    optax, model = need("optax", "`etrax export`", "train"), load_model(options.model)
    learner = model.learner(options.rule)
    by_label = options.loss == "cross-entropy"
    loss = optax.softmax_cross_entropy_with_integer_labels if by_label else optax.squared_error
    output = jax.eval_shape(learner.plain_step, learner.params, learner.hidden, model.inputs)[1]
    target = jnp.zeros(output.shape[:-1], jnp.int32) if by_label else None
    manifest = learner.export(
        options.file, optax.adam(options.learning_rate), lambda o, t: loss(o, t).mean(), options.window, target=target
    )
    when = "every step" if options.window == 1 else f"every {options.window} steps"
    print(f"{options.file}: one update by {manifest['rule']} and Adam, {when}; `etrax.load` reads it")
    return 0


def _train(options: argparse.Namespace) -> int:
    from .._errors import ArgumentError
    from ._config import EXAMPLE, read_config, run

    if options.example:
        print(EXAMPLE, end="")
        return 0
    if options.config is None:
        raise ArgumentError("`etrax train` takes a config: `etrax train --example > run.toml` writes one.")
    run(read_config(options.config), options.model, lambda text: print(visible(text), flush=True), options.accept)
    return 0


def _demo(options: argparse.Namespace) -> int:
    from ._demo import run

    run(lambda text: print(text, flush=True))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    import jax

    from ..testing import compiler_fault

    print(f"etrax {__version__}, Python {sys.version.split()[0]}, jax {jax.__version__}")
    for device in jax.devices():
        kind = "" if device.device_kind == device.platform else f" {device.device_kind}"
        print(f"device: {device.platform}{kind} ({device.id})")
    print(f"float64: {'on' if jax.config.read('jax_enable_x64') else 'off'}")
    for package, extra in PACKAGES.items():
        print(f"{package}: {_version_of(package, extra)}")
    fault = compiler_fault()
    print(f"arithmetic: wrong in places. {fault}" if fault else "arithmetic: right (sums of the compiler were checked)")
    return 0


def _version_of(package: str, extra: str) -> str:
    """The version that is installed, and what to do if there is none, or one that is too old or holds nothing."""
    remedy = install_command(extra)
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return f"missing: {remedy}"
    numbers = tuple(map(int, re.findall(r"\d+", version)))
    oldest, empty = OLDEST.get(package, ()), EMPTY_SINCE.get(package)
    if numbers[: len(oldest)] < oldest:
        return f"{version}, and {'.'.join(map(str, oldest))} is needed: {remedy}"
    if empty is not None and numbers >= empty:
        return f"{version}, which holds nothing since {'.'.join(map(str, empty))}: {remedy}"
    return version


def _completion(options: argparse.Namespace) -> int:
    (commands,) = [a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)]
    words = {n: " ".join(o for a in p._actions for o in a.option_strings) for n, p in commands.choices.items()}
    if options.shell == "fish":
        print(f"complete -c etrax -n __fish_use_subcommand -f -a '{' '.join(words)}'")
        for name, flags in words.items():
            print(f"complete -c etrax -n '__fish_seen_subcommand_from {name}' -a '{flags}'")
        return 0
    cases = "\n".join(f"    {name}) words='{flags}' ;;" for name, flags in words.items())
    if options.shell == "zsh":
        print("autoload -U +X bashcompinit && bashcompinit")
    print(
        f"_etrax() {{\n  local words=''\n  case ${{COMP_WORDS[1]}} in\n{cases}\n  esac\n"
        f"  [ $COMP_CWORD -eq 1 ] && words='{' '.join(words)}'\n"
        '  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))\n}\ncomplete -o default -F _etrax etrax'
    )
    return 0
