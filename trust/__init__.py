"""Long streams and faults: what `make soak` and `make faults` run, and the page that shows what they found."""
