"""keys, serve, node and federation check: federations of real sites."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedchoir.cli.options import DataRoot, Resume, print_plain, print_results
from fedchoir.utils.errors import UsageError

app = typer.Typer()
federation_app = typer.Typer(no_args_is_help=True, help="Check a federation before it runs.")
app.add_typer(federation_app, name="federation")

File = Annotated[Path, typer.Argument(metavar="FEDERATION.toml", help="The file of the federation (docs/deploy.md).")]


class NodeSecure(StrEnum):
    sums = "sums"
    strict = "strict"


def _require_flower() -> None:
    try:
        import flwr  # noqa: F401
    except ModuleNotFoundError:
        raise UsageError("Flower is not installed: pip install 'fedchoir[flower]'") from None


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
    _require_flower()
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
    file: File,
    resume: Resume = False,
) -> None:
    """Run a federation of real sites: start the SuperLink, wait for the sites, run the rounds."""
    _require_flower()
    from fedchoir.deploy.config import read_federation
    from fedchoir.deploy.server import serve as serve_federation

    federation = read_federation(file)
    result = serve_federation(federation, print_plain, resume=resume, file=file)
    print_results([result])
    print_plain(f"files: {federation.out}/ (result.json, events.jsonl, checkpoint/)")


@app.command(
    epilog="Example: [bold]fedchoir node --server fed.example.org:8000 --data images/ --model resnet18 "
    "--key hospital-a --ca ca.crt[/]"
)
def node(
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="The server's address.")],
    data: Annotated[Path, typer.Option(help="This site's images: a folder of class folders, or an .npz.")],
    model: Annotated[str, typer.Option(help="This site's architecture (fedchoir list models).")],
    key: Annotated[Path | None, typer.Option(help="This site's private key.")] = None,
    ca: Annotated[Path | None, typer.Option(help="The authority's certificate, ca.crt.")] = None,
    name: Annotated[str | None, typer.Option(help="This site's name (default: the key's, or else the data's).")] = None,
    public: Annotated[str | None, typer.Option(help="This site's copy of the public set.")] = None,
    work: Annotated[Path | None, typer.Option(help="Folder for the client's state (default: work-NAME).")] = None,
    data_root: DataRoot = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    max_message_mb: Annotated[float, typer.Option(help="Larger messages are refused.")] = 512,
    secure: Annotated[
        NodeSecure | None,
        typer.Option(help="Send payloads only in secure sums (sums), or only in strict ones (strict)."),
    ] = None,
    peers: Annotated[
        Path | None,
        typer.Option(help="Folder with the other sites' .pub files: their keys in secure sums are verified."),
    ] = None,
    federation: Annotated[
        Path | None,
        typer.Option(help="This site's copy of the federation's file: requests that differ from it are refused."),
    ] = None,
    max_epsilon: Annotated[
        float | None,
        typer.Option(min=0, help="This site's privacy budget over all runs and servers: refuse replies beyond this ε."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS and no key: only for tests on one machine.")
    ] = False,
) -> None:
    """Take part in a federation with this site's own data and architecture. Runs until it is stopped."""
    _require_flower()
    from fedchoir import models
    from fedchoir.deploy.agreement import Agreement
    from fedchoir.deploy.node import Node, NodeOptions
    from fedchoir.deploy.site_data import LocalSite

    name = name or (key.name if key else data.resolve().stem)
    if not data.exists():
        raise UsageError(f"--data {data}: there is no such folder or .npz file")
    models.build(model, 2)
    site = LocalSite(
        name, model, data.resolve(), (work or Path(f"work-{name}")).resolve(), public=public, data_root=data_root,
        device=device,
    )  # fmt: skip
    options = NodeOptions(
        server, ca=ca, key=key, insecure=insecure, limit=int(max_message_mb * 2**20),
        secure="strict" if secure is NodeSecure.strict else secure is not None, peers=peers, epsilon=max_epsilon,
        agreement=None if federation is None else Agreement.read(federation),
    )  # fmt: skip
    Node(site, options, print_plain).run()


@federation_app.command(
    "check", epilog="Example: [bold]fedchoir federation check federation.toml[/], with the nodes running"
)
def check(file: File) -> None:
    """Check whether a federation can run: keys, connections, public sets, class names, models, disk."""
    _require_flower()
    from fedchoir.deploy.config import read_federation
    from fedchoir.deploy.server import check_federation

    check_federation(read_federation(file), log=print_plain)
    print_plain("all sites are connected and fit together: fedchoir serve can start")
