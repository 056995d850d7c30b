"""The papers' figures, computed from a finished run."""
