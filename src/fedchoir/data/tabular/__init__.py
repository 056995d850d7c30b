"""Tables: readers, columns that agree between clients, each client's own encoder, and the heart disease data."""
