"""Write the graphs, inputs, traces and gradients of tests/nir/data/snntorch_*: `python export_snntorch.py data`.

In an environment of its own, with torch, snntorch, nir and nirtorch; the tests need only the files.
"""

import sys
from pathlib import Path

import nir
import numpy as np
import snntorch as snn
import torch
from snntorch import surrogate
from snntorch.export_nir import export_to_nir

STEPS, BATCH = 12, 2
SEEDS = {"leaky": 4, "synaptic": 5, "recurrent": 1, "conv": 7}  # with some spikes, and not too many
COMMON = {"init_hidden": True, "spike_grad": surrogate.fast_sigmoid(slope=25)}
TO_ZERO = {"reset_mechanism": "zero", "reset_delay": False}


def full(value, *shape):
    return value * torch.ones(shape)


def spread(low, high, n):
    return torch.linspace(low, high, n)


def networks():
    """By name: the network, and the shape of one input."""
    nn = torch.nn
    leaky = nn.Sequential(
        nn.Linear(3, 6), snn.Leaky(beta=spread(0.7, 0.95, 6), threshold=full(0.5, 6), **COMMON),
        nn.Linear(6, 2, bias=False), snn.Leaky(beta=full(0.8, 2), threshold=full(0.2, 2), output=True, **COMMON),
    )  # fmt: skip
    synaptic = nn.Sequential(
        nn.Linear(3, 6),
        snn.Synaptic(alpha=spread(0.5, 0.8, 6), beta=spread(0.7, 0.9, 6), threshold=full(1.0, 6), **TO_ZERO, **COMMON),
        nn.Linear(6, 2), snn.Leaky(beta=full(0.8, 2), threshold=full(0.2, 2), output=True, **TO_ZERO, **COMMON),
    )  # fmt: skip
    recurrent = nn.Sequential(
        nn.Linear(3, 5), snn.RLeaky(beta=0.9, linear_features=5, threshold=0.5, **COMMON),
        nn.Linear(5, 2), snn.Leaky(beta=full(0.8, 2), threshold=full(0.2, 2), output=True, **COMMON),
    )  # fmt: skip
    conv = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), snn.Leaky(beta=full(0.9, 2, 4, 4), threshold=full(0.4, 2, 4, 4), **COMMON),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 3),
        snn.Leaky(beta=full(0.8, 3), threshold=full(0.2, 3), output=True, **COMMON),
    )  # fmt: skip
    flat = {"leaky": leaky, "synaptic": synaptic, "recurrent": recurrent}
    return {name: (network, (3,)) for name, network in flat.items()} | {"conv": (conv, (1, 4, 4))}


def main(folder):
    for name, (network, shape) in networks().items():
        torch.manual_seed(SEEDS[name])
        for layer in network:
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
        if name == "recurrent":
            network[1].recurrent.reset_parameters()
        x = 3 * torch.rand(STEPS, BATCH, *shape)
        nir.write(folder / f"snntorch_{name}.nir", export_to_nir(network, x[0, :1], ignore_dims=[0]), compression=None)
        for layer in network:
            if hasattr(layer, "reset_mem"):
                layer.reset_mem()
        spikes, membranes = zip(*(network(a) for a in x), strict=True)
        spikes, membranes = torch.stack(spikes), torch.stack(membranes)
        target = torch.rand(spikes.shape)
        ((spikes - target) ** 2).mean().backward()
        gradients = {f"grad.{k}": p.grad for k, p in network.named_parameters() if p.grad is not None}
        traces = {"x": x, "out": spikes, "membranes": membranes, "target": target}
        found = {k: v.detach().numpy() for k, v in {**traces, **gradients}.items()}
        np.savez_compressed(folder / f"snntorch_{name}.npz", **found)
        print(name, found["out"].mean(), {k: v.shape for k, v in gradients.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
