"""Real runs on real data, on the public API of the library: data, models, one run, a comparison."""
