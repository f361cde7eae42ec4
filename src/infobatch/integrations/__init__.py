"""Frameworks that own the training loop: one leaf each, imported by name, on the public API."""
