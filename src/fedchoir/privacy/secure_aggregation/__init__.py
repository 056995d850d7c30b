"""Secure aggregation: pairwise masks, secret shares, quantisation, and the client's side of the protocol."""
