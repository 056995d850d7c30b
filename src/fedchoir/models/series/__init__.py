"""Models for series, B×channels×time."""
