"""The command line: parse, call, print. One module for each group of commands."""


def main() -> None:
    """The entry point of the ``fedchoir`` command."""
    from fedchoir.cli.app import main as run_command

    run_command()
