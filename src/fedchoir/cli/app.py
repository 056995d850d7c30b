"""The root command, and how errors end it: exit code 2 for bad input, 3 below quorum, 4 if a checkpoint could not be
written, 5 if a process of the run died. Each prints one line."""

import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from click import Context
from typer.core import TyperGroup

from fedchoir.cli import data, demo, deploy, doctor, federation, node, report, run, tables, trained
from fedchoir.cli.options import command, console
from fedchoir.utils.errors import Interrupted, QuorumError, StorageError, UsageError, WorkerError
from fedchoir.utils.plugins import add_plugin
from fedchoir.version import __version__

STOPPED: dict[type[BaseException], int] = {QuorumError: 3, StorageError: 4, WorkerError: 5}
INTERRUPTED = "interrupted. The last checkpoint is intact: --resume continues."


class Commands(TyperGroup):
    """Typer ends without a word after Ctrl-C; a run that was stopped is one line."""

    def invoke(self, ctx: Context) -> Any:
        try:
            return super().invoke(ctx)
        except Interrupted as error:
            if not error.saved:
                _exit(error.code, INTERRUPTED)
            resume = ("--resume",) if ctx.invoked_subcommand == "run" else ()  # a demo begins again
            _exit(error.code, f"stopped: {error.saved}; to continue: {command(*resume)}")


app = typer.Typer(
    name="fedchoir",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Federated learning with different models: every client keeps its own data and its own architecture.",
    epilog="Start with: [bold]fedchoir demo[/] · then: [bold]fedchoir run fccl+ --scenario digits-lite[/]",
)
for commands in (demo.app, run.app, tables.app, report.app, trained.app, doctor.app, deploy.app):
    app.add_typer(commands)
app.add_typer(data.app, name="data")
app.add_typer(node.app, name="node")
app.add_typer(federation.app, name="federation")


def main() -> None:
    """The entry point of the ``fedchoir`` command."""
    try:
        app()
    except UsageError as error:
        _exit(2, str(error))
    except tuple(STOPPED) as error:
        _exit(STOPPED[type(error)], f"stopped: {error}. The last checkpoint is intact: --resume continues.")
    except KeyboardInterrupt:
        _exit(130, INTERRUPTED)


def _exit(code: int, message: str) -> NoReturn:
    sys.stderr.write(f"fedchoir: {message}\n")
    sys.exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"fedchoir {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    plugin: Annotated[
        list[Path] | None, typer.Option(metavar="FILE.py", help="A file with your own methods (also FEDCHOIR_PLUGINS).")
    ] = None,
) -> None:
    for path in plugin or ():
        add_plugin(path)


if __name__ == "__main__":
    main()
