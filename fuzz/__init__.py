"""Random one-step models from a grammar, each held against BPTT under every rule. Run by `python -m fuzz`."""
