"""Every workload, as small as it can be, and rows as a run would give them."""

from functools import partial

from benchmarks.harness import Row

from benchmarks import conv_spiking, gated, lru, sparse, spiking, stacks, structured

SMALL = {
    "gru": partial(gated.gru, 2, 8),
    "lstm": partial(gated.lstm, 2, 8),
    "lru": partial(lru.lru, 2, 8, 4),
    "recall": partial(lru.recall, 2, 8, 4),
    "lif": partial(spiking.lif, 2, 8, 2, 5),
    "alif": partial(spiking.alif, 2, 8, 2, 5),
    "conv": partial(conv_spiking.conv_lif, 2, 8, 3),
    "lif stack": partial(stacks.lif_stack, 2, 8, 2),
    "lif readout": partial(stacks.lif_readout, 2, 8),
    "lru stack": partial(stacks.lru_stack, 2, 4, 2, 3),
    "mamba": partial(structured.mamba, 2, 4, 2, 3, 2, 2),
    "deltanet": partial(structured.gated_deltanet, 2, 4, 3, 5),
    "leaky readouts": partial(structured.leaky_readouts, 2, 6, 8),
    "embedded mingru": partial(structured.embedded_mingru, 2, 5, 3, 4),
    "deep lru": partial(structured.gated_lru_layers, 2, 4),
    "coba": partial(sparse.coba, 2, 48, 16),
    "sparse": partial(sparse.sparse_lif, 2, 128, 1024),
}


def row(case="gru", rival="BPTT", seconds=(1.0,), steps=10, working=100, sweep="", error="", **sizes) -> Row:
    return Row(case, rival, sizes, sweep, steps, list(seconds), 0.1, working, None, 40, 1.0, 0.1, 0.1, error)
