"""What a run shows: a line per epoch, and on a terminal a bar below it."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from .._errors import visible
from ._records import Epoch

if TYPE_CHECKING:
    from rich.progress import TaskID


def reporter(progress: bool, epochs: int) -> Silent:
    """Nothing, lines, or lines and a bar: the bar needs a terminal and rich (the extra `train`)."""
    if not progress:
        return Silent(epochs)
    bar = sys.stdout is not None and sys.stdout.isatty() and find_spec("rich") is not None
    return Bar(epochs) if bar else Lines(epochs)


class Silent:
    """Shows nothing. A context, told of every batch and every epoch; a `total` of 0 batches is one not known."""

    def __init__(self, epochs: int):
        self.epochs = epochs

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def batch(self, epoch: int, done: int, total: int, loss: float, rate: float) -> None:
        pass

    def epoch(self, record: Epoch, left: float) -> None:
        pass


class Lines(Silent):
    """A line per epoch, for files, pipes and notebooks."""

    def say(self, text: str) -> None:
        print(visible(text), flush=True)

    def epoch(self, record: Epoch, left: float) -> None:
        width = len(str(self.epochs))
        values = "  ".join(_shown(record, name) for name in record.metrics)
        speed = f"{record.samples_per_second:,.0f} samples/s"
        time = f"{duration(record.seconds)} an epoch" + (f"  {duration(left)} left" if left else "")
        self.say(f"epoch {record.epoch:>{width}}/{self.epochs}  {values}  {speed}  {resident_memory()}  {time}")


def _shown(record: Epoch, name: str) -> str:
    """A value with its name; the cosine of a meter with its interval."""
    text = f"{name} {record.metrics[name]:.4g}"
    if name != "cosine" or "all" not in record.cosines:
        return text
    _, low, high = record.cosines["all"]
    return f"{text} [{low:.3g}, {high:.3g}]"


class Bar(Lines):
    """Lines, and below them a bar for the epoch that is running."""

    def __init__(self, epochs: int):
        super().__init__(epochs)
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = [
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[done]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
        ]
        self.bar = Progress(*columns, transient=True)
        self.task: TaskID | None = None

    def __enter__(self) -> Bar:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def say(self, text: str) -> None:
        self.bar.console.print(visible(text), highlight=False, markup=False, soft_wrap=True)

    def batch(self, epoch: int, done: int, total: int, loss: float, rate: float) -> None:
        of_total = f"/{total}" if total else ""
        text = f"batch {done}{of_total}  loss {loss:.4g}  {rate:,.0f} samples/s  {resident_memory()}"
        name, before = f"epoch {epoch}/{self.epochs}", (epoch - 1) * total
        if self.task is None:
            self.task = self.bar.add_task(name, total=self.epochs * total or None, completed=before, done=text)
        self.bar.update(self.task, description=name, completed=before + done, done=text)


def duration(seconds: float) -> str:
    """Seconds as people read them.

    >>> duration(0.031), duration(3.14), duration(75), duration(7300)
    ('31 ms', '3.1 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def resident_memory() -> str:
    """The memory that the process holds now; where the system does not tell, the most that it has held."""
    try:
        import resource
    except ImportError:  # Windows
        return ""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            size = int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):  # no Linux
        unit = 1 if sys.platform == "darwin" else 1000
        size = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f"{size / 1e6:,.0f} MB"
