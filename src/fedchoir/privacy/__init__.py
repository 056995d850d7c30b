"""Privacy: secure aggregation, and accounting for differential privacy."""
