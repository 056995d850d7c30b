"""federation show and federation check: look at a federation before joining or starting it."""

from pathlib import Path
from typing import Annotated

import typer

from fedchoir.cli.options import DataRoot, FederationArgument, print_plain, require_flower
from fedchoir.utils.errors import UsageError

app = typer.Typer(no_args_is_help=True, help="Look at a federation before you join or start it.")


@app.command(
    epilog="Example: [bold]fedchoir federation show federation.toml --model resnet18 --data images/ --public photos[/]"
)
def show(
    file: FederationArgument,
    model: Annotated[
        str | None, typer.Option(help="Your site's architecture (default: the first in the file).")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Your site's data: attacks on your own model show what it may reveal.")
    ] = None,
    public: Annotated[str | None, typer.Option(help="Your copy of the public set.")] = None,
    name: Annotated[str | None, typer.Option(help="Your site's name in the file.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Local epochs of the rehearsal.")] = 5,
    data_root: DataRoot = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Say what a site that joins will send, who sees it and what it may reveal. Sends nothing."""
    require_flower()
    from tempfile import TemporaryDirectory

    from fedchoir.deploy.config import read_federation
    from fedchoir.deploy.inspection import describe_federation, open_method, site_method
    from fedchoir.deploy.leakage import describe_leakage
    from fedchoir.deploy.site_data import LocalSite

    federation = read_federation(file)
    chosen = model or next((site.model for site in federation.sites if site.model), None)
    if chosen is None:
        raise UsageError(f"--model is missing: {file} names no model, and what is sent depends on yours")
    if data is not None and not data.exists():
        raise UsageError(f"--data {data}: there is no such folder or file")
    if data is None:
        for line in describe_federation(federation, open_method(federation, chosen)):
            print_plain(line)
        print_plain("")
        print_plain("With --data, --model and --public this command also attacks your own model and shows the result.")
        return
    with TemporaryDirectory() as work:
        site = LocalSite(
            name or federation.sites[0].name, chosen, data.resolve(), Path(work), public=public, data_root=data_root,
            device=device,
        )  # fmt: skip
        for line in describe_federation(federation, site_method(federation, site)):
            print_plain(line)
        print_plain("")
        for line in describe_leakage(federation, site, epochs):
            print_plain(line)


@app.command(epilog="Example: [bold]fedchoir federation check federation.toml[/], with the nodes running")
def check(file: FederationArgument) -> None:
    """Check whether a federation can run: keys, connections, public sets, class names, models, disk."""
    require_flower()
    from fedchoir.deploy.config import read_federation
    from fedchoir.deploy.server import check_federation

    check_federation(read_federation(file), log=print_plain)
    print_plain("all sites are connected and fit together: fedchoir serve can start")
