"""Benchmarks: what a training step costs, and how long the way to a pruned network is."""
