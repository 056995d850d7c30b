"""keys and serve: the server's side of federations of real sites."""

from pathlib import Path
from typing import Annotated

import typer

from fedchoir.cli.options import FederationArgument, Resume, print_plain, print_results, require_flower
from fedchoir.utils.errors import UsageError

app = typer.Typer()


@app.command(
    epilog="Examples: [bold]fedchoir keys --host fed.example.org[/] (server) · "
    "[bold]fedchoir keys --site hospital-a[/] (each site; send only hospital-a.pub)"
)
def keys(
    folder: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("keys"),
    host: Annotated[
        list[str] | None, typer.Option(help="A name or address of the server: makes its certificate.")
    ] = None,
    site: Annotated[list[str] | None, typer.Option(help="A site's name: makes its key pair.")] = None,
) -> None:
    """Make the server's certificate (and its authority) or a site's key pair."""
    require_flower()
    from fedchoir.deploy.keys import fingerprint, make_server, make_site

    if not host and not site:
        raise UsageError("give --host HOST for the server's certificate, or --site NAME for a site's key pair")
    if host:
        for path in make_server(folder, host):
            print_plain(f"{path}")
        print_plain(f"{folder / 'ca.crt'} goes to every site; ca.key and server.key stay here")
        print_plain(f"sites compare its fingerprint with you by telephone: {fingerprint(folder / 'ca.crt')}")
    for name in site or []:
        private, public = make_site(folder, name)
        print_plain(f"{private} stays here; {public} goes to the server")
        print_plain(f"the server's operator compares its fingerprint with you: {fingerprint(public)}")


@app.command(epilog="Example: [bold]fedchoir serve federation.toml[/]")
def serve(
    file: FederationArgument,
    resume: Resume = False,
) -> None:
    """Run a federation of real sites: start the SuperLink, wait for the sites, run the rounds."""
    require_flower()
    from fedchoir.deploy.config import read_federation
    from fedchoir.deploy.server import serve as serve_federation

    federation = read_federation(file)
    result = serve_federation(federation, print_plain, resume=resume, file=file)
    print_results([result])
    print_plain(f"files: {federation.out}/ (result.json, events.jsonl, checkpoint/)")
