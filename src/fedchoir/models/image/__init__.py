"""Architectures for images."""
