"""node, node init and node log: a site's side of federations."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedchoir.cli.options import DataRoot, given, print_plain, require_flower
from fedchoir.utils.errors import UsageError

app = typer.Typer(
    invoke_without_command=True,
    epilog="Example: [bold]fedchoir node --server fed.example.org:8000 --data images/ --model resnet18 "
    "--key hospital-a --ca ca.crt --policy policy.toml[/]",
)


class NodeSecure(StrEnum):
    sums = "sums"
    strict = "strict"


class NodeMetrics(StrEnum):
    auto = "auto"
    yes = "yes"
    no = "no"


# What a site allows: options of `node`, which override the policy file, and of `node init`, which writes it.
Federation = Annotated[
    Path | None, typer.Option(help="This site's copy of the federation's file: requests that differ are refused.")
]
Public = Annotated[str | None, typer.Option(help="This site's copy of the public set.")]
Secure = Annotated[
    NodeSecure | None, typer.Option(help="Send payloads only in secure sums (sums), or only in strict ones (strict).")
]
Peers = Annotated[
    Path | None, typer.Option(help="Folder with the other sites' .pub files: their keys in secure sums are verified.")
]
MaxEpsilon = Annotated[
    float | None,
    typer.Option(min=0, help="Privacy budget over all runs and servers: replies beyond this ε are refused."),
]
MaxRuns = Annotated[
    str | None,
    typer.Option(metavar="N", help="Runs of one agreed file: a number, none, or auto (1 with secure sums)."),
]
MaxMessage = Annotated[float | None, typer.Option(help="Larger messages are refused (MiB).")]
TrustServer = Annotated[
    bool, typer.Option("--trust-server", help="Without an agreed file: do whatever the server asks.")
]
Work = Annotated[Path | None, typer.Option(help="Folder for the client's state (default: work-NAME).")]


@app.callback()
def node(
    context: typer.Context,
    server: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The server's address.")] = None,
    data: Annotated[Path | None, typer.Option(help="This site's data: a folder of class folders, or a file.")] = None,
    model: Annotated[str | None, typer.Option(help="This site's model: NAME, timm:NAME or FILE.py:FACTORY.")] = None,
    key: Annotated[Path | None, typer.Option(help="This site's private key.")] = None,
    ca: Annotated[Path | None, typer.Option(help="The authority's certificate, ca.crt.")] = None,
    name: Annotated[str | None, typer.Option(help="This site's name (default: the key's, or else the data's).")] = None,
    policy: Annotated[Path | None, typer.Option(help="What this site allows (fedchoir node init writes it).")] = None,
    federation: Federation = None,
    trust_server: TrustServer = False,
    public: Public = None,
    secure: Secure = None,
    peers: Peers = None,
    max_epsilon: MaxEpsilon = None,
    max_runs: MaxRuns = None,
    max_message_mb: MaxMessage = None,
    work: Work = None,
    data_root: DataRoot = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS and no key: only for tests on one machine.")
    ] = False,
) -> None:
    """Take part in a federation with this site's own data and architecture. Runs until it is stopped."""
    if context.invoked_subcommand is not None:
        return
    require_flower()
    from fedchoir import models
    from fedchoir.deploy.node import Node, NodeOptions
    from fedchoir.deploy.policy_file import read_policy
    from fedchoir.deploy.site_data import LocalSite

    if server is None or data is None or model is None:
        missing = next(n for n, v in (("server", server), ("data", data), ("model", model)) if v is None)
        raise UsageError(f"--{missing} is missing (fedchoir node --help)")
    name = name or (key.name if key else data.resolve().stem)
    if not data.exists():
        raise UsageError(f"--data {data}: there is no such folder or file")
    models.check_name(model)
    allowed = read_policy(
        policy,
        **given(
            federation=federation, trust_server=trust_server, public=public, secure=_secure(secure), peers=peers,
            max_epsilon=max_epsilon, max_runs=_runs(max_runs), max_message_mb=max_message_mb,
        ),
    )  # fmt: skip
    site = LocalSite(
        name, model, data.resolve(), (work or Path(f"work-{name}")).resolve(), public=allowed.public,
        data_root=data_root, device=device,
    )  # fmt: skip
    Node(site, NodeOptions(server, allowed, ca=ca, key=key, insecure=insecure), print_plain).run()


def _secure(choice: NodeSecure | None) -> bool | str | None:
    return None if choice is None else "strict" if choice is NodeSecure.strict else True


def _runs(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


@app.command(epilog="Example: [bold]fedchoir node init --federation federation.toml[/]")
def init(
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("policy.toml"),
    federation: Federation = None,
    trust_server: TrustServer = False,
    public: Public = None,
    secure: Secure = None,
    peers: Peers = None,
    max_epsilon: MaxEpsilon = None,
    max_runs: MaxRuns = None,
    max_message_mb: MaxMessage = None,
    max_parameters: Annotated[int | None, typer.Option(help="Largest model, in parameters.")] = None,
    min_sites: Annotated[int | None, typer.Option(help="Fewest sites in a federation and in a sum.")] = None,
    hours: Annotated[str | None, typer.Option(help="Hours of work in local time, as in 22:00-06:00.")] = None,
    metrics: Annotated[NodeMetrics | None, typer.Option(help="Whether losses and accuracies may leave.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing: use the options and the defaults.")] = False,
) -> None:
    """Write a policy: what this site allows its server to ask for. Asks for what the options do not give."""
    require_flower()
    from fedchoir.deploy.policy import Policy, sha256_of
    from fedchoir.deploy.policy_file import policy_text, read_policy
    from fedchoir.utils.io import atomic_write

    if out.exists():
        raise UsageError(f"{out} exists: choose another --out, or rename it")
    values: dict[str, Any] = given(
        federation=federation, trust_server=trust_server, public=public, secure=_secure(secure), peers=peers,
        max_epsilon=max_epsilon, max_runs=_runs(max_runs), max_message_mb=max_message_mb,
        max_parameters=max_parameters, min_sites=min_sites, hours=hours,
    )  # fmt: skip
    if metrics is not None:
        values["metrics"] = {"auto": "auto", "yes": True, "no": False}[metrics]
    if not yes and _interactive():
        values |= _ask(values)
    if "federation" in values:
        values["federation_sha256"] = sha256_of(values["federation"])
    Policy(**values).check()
    folder = out.resolve().parent
    if "public" in values and Path(values["public"]).exists():  # a file, not the name of a set
        values["public"] = Path(values["public"])
    written = {name: _relative(value, folder) if isinstance(value, Path) else value for name, value in values.items()}
    atomic_write(out, policy_text(**written))
    print_plain(f"{out}: {read_policy(out).describe('this site')}")
    print_plain(f"start the node with --policy {out}; every field is described in the file")


def _interactive() -> bool:
    return sys.stdin.isatty()


def _relative(path: Path, folder: Path) -> str:
    resolved = path.resolve()
    return str(resolved.relative_to(folder) if resolved.is_relative_to(folder) else resolved)


def _ask(values: dict[str, Any]) -> dict[str, Any]:
    """Answers of the operator to what the options did not give; an empty answer keeps the default."""
    answers: dict[str, Any] = {}

    def ask(name: str, question: str, read: Any = str) -> None:
        if name not in values and (text := typer.prompt(question, default="", show_default=False).strip()):
            answers[name] = read(text)

    if not values.get("trust_server"):
        ask("federation", "The federation's file that this site agrees to", Path)
    ask("public", "This site's copy of the public set: a path or a name (empty: the name in the file)")
    ask("max_epsilon", "Privacy budget ε over all runs (empty: none)", float)
    ask("max_runs", "Most runs of this file: a number, or none (empty: one with secure sums, else any)", _runs)
    ask("hours", "Hours of work, as in 22:00-06:00 (empty: always)")
    return answers


@app.command(epilog="Example: [bold]fedchoir node log --work work-hospital-a --last 20[/]")
def log(
    work: Annotated[Path, typer.Option(help="The node's work folder.")],
    last: Annotated[int | None, typer.Option(min=1, help="Only the last N lines.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Lines of JSON with all fields.")] = False,
) -> None:
    """Show what was asked of this site, what left it, what that cost and what was refused."""
    require_flower()
    from fedchoir.deploy.audit import read_audit, readable_lines

    path = work / "state" / "audit.jsonl"
    if not path.exists():
        raise UsageError(f"{path}: there is no such file; --work is the folder that the node was started with")
    lines = read_audit(path, last)
    for text in map(json.dumps, lines) if as_json else readable_lines(lines):
        print_plain(text)
