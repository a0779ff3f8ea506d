"""Write the graphs, inputs, traces and gradients of tests/nir/data/norse_*: `python export_norse.py data`.

In an environment of its own, with torch, norse, nir and nirtorch; the tests need only the files.
"""

import sys
from pathlib import Path

import nir
import norse.torch as norse
import numpy as np
import torch

STEPS, BATCH = 12, 2
SEEDS = {"box": 0, "cuba": 1, "integrate": 2, "conv": 3}


def full(value, *shape):
    return value * torch.ones(shape)


def networks():
    """By name: the network, and the shape of one input."""
    nn = torch.nn

    def box(low, high, *shape):
        rates = torch.linspace(low, high, int(np.prod(shape))).reshape(shape)
        return norse.LIFBoxCell(
            norse.LIFBoxParameters(tau_mem_inv=rates, v_th=full(0.2, *shape), v_leak=full(0.05, *shape))
        )

    readout = norse.LIBoxCell(norse.LIBoxParameters(tau_mem_inv=full(200.0, 2), v_leak=full(0.0, 2)))
    boxes = norse.SequentialState(nn.Linear(3, 6), box(100.0, 300.0, 6), nn.Linear(6, 2, bias=False), readout)
    rates = {"tau_mem_inv": full(150.0, 6), "tau_syn_inv": torch.linspace(200.0, 400.0, 6)}
    cuba = norse.SequentialState(
        nn.Linear(3, 6),
        norse.LIFCell(norse.LIFParameters(**rates, v_th=full(0.3, 6), v_leak=full(0.0, 6), v_reset=full(0.0, 6))),
        nn.Linear(6, 2), readout,
    )  # fmt: skip
    integrate = norse.SequentialState(
        nn.Linear(3, 6), norse.IAFCell(norse.IAFParameters(v_th=full(1.0, 6))), nn.Linear(6, 2), readout
    )
    conv = norse.SequentialState(nn.Conv2d(1, 2, 3, padding=1), box(100.0, 300.0, 2, 4, 4))
    return {"box": (boxes, (3,)), "cuba": (cuba, (3,)), "integrate": (integrate, (3,)), "conv": (conv, (1, 4, 4))}


def main(folder):
    for name, (network, shape) in networks().items():
        torch.manual_seed(SEEDS[name])
        for layer in network:
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
        x = 3 * torch.rand(STEPS, BATCH, *shape)
        graph = norse.to_nir(network, x[0, 0])
        graph.infer_types()
        nir.write(folder / f"norse_{name}.nir", graph, compression=None)
        state, out = None, []
        for a in x:
            y, state = network(a, state)
            out.append(y)
        out = torch.stack(out)
        target = torch.rand(out.shape)
        ((out - target) ** 2).mean().backward()
        gradients = {f"grad.{k}": p.grad for k, p in network.named_parameters() if p.grad is not None}
        found = {k: v.detach().numpy() for k, v in {"x": x, "out": out, "target": target, **gradients}.items()}
        np.savez_compressed(folder / f"norse_{name}.npz", **found)
        print(name, found["out"].mean(), {k: v.shape for k, v in gradients.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
