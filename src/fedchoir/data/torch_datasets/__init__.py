"""Samples of any kind, from a user's own torch Datasets."""
