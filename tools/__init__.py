"""Programs of this repository: they check its vocabulary and build its results pages."""
