"""The first run, `make demo`: a spiking network that learns spoken digits online, beside BPTT. See README.md."""
