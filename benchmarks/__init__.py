"""Where the library stands against what a user would pick instead: `python -m benchmarks`."""
