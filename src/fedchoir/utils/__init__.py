"""Helpers that know nothing of federated learning: random streams, files, devices, errors."""
