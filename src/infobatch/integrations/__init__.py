"""Frameworks that own the training loop: one leaf each, imported on use, on the public names."""
