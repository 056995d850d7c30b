"""Privacy beyond keeping data at home: sums that hide their summands, and noise with a proven bound."""
