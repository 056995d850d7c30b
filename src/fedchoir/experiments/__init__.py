"""Experiments: their configuration, running them, sweeps, published tables."""
