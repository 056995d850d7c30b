"""``python -m fedchoir``."""

from fedchoir.cli import main

main()
