"""The laboratory: train, compare and report, on public names of `infobatch` alone."""
