"""CPU time of `compile_etrace_graph`, beside that of braintrace, on stacks of the same cells.

    python -m benchmarks.compile_graph                  all stacks
    python -m benchmarks.compile_graph GRUCell:10       some: a cell that both libraries have, and how many

Each library compiles its own cells; the last column is Etrax on the cells of braintrace. Time of the process, not of
the clock, and the best of a few, for machines that do other work as well. Bar: twice the time of braintrace.
"""

from __future__ import annotations

import gc
import sys
import time
import warnings
from collections.abc import Callable
from types import ModuleType

STACKS = ("GRUCell:1", "GRUCell:10", "LSTMCell:10", "ValinaRNNCell:1", "ValinaRNNCell:10", "MiniLSTM:10", "LRUCell:10")
WIDTH, TURNS = 64, 7


def stack(cells: ModuleType, name: str, depth: int) -> object:
    """A module of `depth` cells, each of which reads the one before."""
    import brainstate

    class Stack(brainstate.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [getattr(cells, name)(WIDTH, WIDTH) for _ in range(depth)]

        def update(self, x: object) -> object:
            for layer in self.layers:
                x = layer(x)
            return x

    module = Stack()
    brainstate.nn.init_all_states(module)
    return module


def best(run: Callable[[], object]) -> float:
    """Milliseconds of CPU, after a first run that fills JAX's caches."""
    run()
    seconds = []
    for _ in range(TURNS):
        gc.collect()
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return 1e3 * min(seconds)


def main() -> None:
    import brainstate
    import braintrace

    import etrax
    import etrax.nn

    warnings.simplefilter("ignore")  # both libraries say what a rule would leave out
    print(f"{'stack':18}{'braintrace':>12}{'etrax':>9}{'ratio':>7}{'on its cells':>14}")
    for text in sys.argv[1:] or STACKS:
        name, depth = text.split(":")
        theirs, ours = (stack(cells, name, int(depth)) for cells in (braintrace.nn, etrax.nn))
        x = brainstate.random.randn(WIDTH)
        peer = best(lambda theirs=theirs, x=x: braintrace.compile_etrace_graph(theirs, x))
        own_cells = best(lambda ours=ours, x=x: etrax.compile_etrace_graph(ours, x))
        its_cells = best(lambda theirs=theirs, x=x: etrax.compile_etrace_graph(theirs, x))
        print(f"{text:18}{peer:9.1f} ms{own_cells:6.1f} ms{own_cells / peer:7.2f}{its_cells / peer:14.2f}", flush=True)


if __name__ == "__main__":
    main()
