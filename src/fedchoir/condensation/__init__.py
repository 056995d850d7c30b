"""Condensation: a few synthetic samples that stand for a client's private ones, by distribution matching."""
