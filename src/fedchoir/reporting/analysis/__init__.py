"""What the papers' figures show, computed from a finished run."""
