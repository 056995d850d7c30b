"""Image, Compose files and Kubernetes manifests: unprivileged, configuration read-only, commands that exist."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from fedchoir.cli.app import app

ROOT = Path(__file__).parents[2]
DOCKER, KUBERNETES = ROOT / "deploy" / "docker", ROOT / "deploy" / "kubernetes"
BIN = Path(sys.executable).parent
USER = 10001
VALUES = {"SERVER": "fed.example.org:8000", "SITE": "hospital-a", "MODEL": "resnet18", "DATA": "/srv/images"}


def service(kind: str) -> dict[str, Any]:
    """The service of a Compose file, with values for its variables."""
    text = (DOCKER / f"compose.{kind}.yaml").read_text()
    text = re.sub(r"\$\{(\w+):\?[^}]+\}", lambda found: VALUES[found[1]], text)
    assert "$" not in text
    return dict(yaml.safe_load(text)["services"][kind])


def manifest(kind: str, resource: str = "StatefulSet") -> dict[str, Any]:
    documents = yaml.safe_load_all((KUBERNETES / f"{kind}.yaml").read_text())
    return next(document for document in documents if document["kind"] == resource)


def pod(kind: str) -> dict[str, Any]:
    return dict(manifest(kind)["spec"]["template"]["spec"])


def parsed(arguments: list[str]) -> dict[str, Any]:
    """The options of a fedchoir command as text; one that does not exist is an error."""
    name, *rest = arguments
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    return dict(command.make_context(name, rest, resilient_parsing=False).params)


@pytest.mark.parametrize(
    "command",
    [
        ["hadolint", DOCKER / "Dockerfile"],
        ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", *sorted(DOCKER.glob("*.yaml"))],
        ["kubernetes-validate", "--strict", "--quiet", *sorted(KUBERNETES.glob("*.yaml"))],
    ],
    ids=["Dockerfile", "Compose", "Kubernetes"],
)
def test_validators_accept_them(command: list[str | Path]) -> None:
    done = subprocess.run([BIN / command[0], *command[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_has_locked_packages_an_unprivileged_user_and_no_secrets() -> None:
    lines = (DOCKER / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [tuple(line.split(None, 1)) for line in lines if line and not line.startswith("#")]
    last_stage = steps[max(k for k, (word, _) in enumerate(steps) if word == "FROM") :]
    assert [value for word, value in last_stage if word == "USER"] == [f"{USER}:{USER}"]
    installs = [value for word, value in steps if word == "RUN" and "pip install" in value]
    first, second = installs  # packages by hash, then fedchoir without a download
    assert "--require-hashes -r" in first
    assert {"--no-deps", "--no-index"} <= set(second.split())
    assert not [word for word, _ in steps if word in ("ADD", "ARG", "EXPOSE")]
    copied = [value.split()[:-1] for word, value in steps if word == "COPY" and "--from" not in value]
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert {name for names in copied for name in names} == set(allowed)
    for name in allowed:
        assert (ROOT / name).exists()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert next(line for line in ignored if not line.startswith("#")) == "*"  # what is not named stays out
    tracked = subprocess.run(["git", "ls-files", *allowed], cwd=ROOT, capture_output=True, text=True, check=True)
    secret = [name for name in tracked.stdout.split() for p in ("*.key", "*.pem", "*.crt") if fnmatch.fnmatch(name, p)]
    assert secret == []


@pytest.mark.parametrize("kind", ["server", "node"])
def test_compose(kind: str) -> None:
    content = service(kind)
    assert content["user"] == f"{USER}:{USER}"
    assert content["read_only"] is True
    assert content["cap_drop"] == ["ALL"]
    assert content["security_opt"] == ["no-new-privileges:true"]
    binds = [volume for volume in content["volumes"] if volume["type"] == "bind"]
    assert {volume["target"] for volume in binds} == {"/etc/fedchoir"} | ({"/data"} if kind == "node" else set())
    assert all(volume["read_only"] is True for volume in binds)
    assert [volume["target"] for volume in content["volumes"] if volume["type"] == "volume"] == ["/srv/fedchoir"]
    assert content.get("ports", []) == (["8000:8000"] if kind == "server" else [])
    assert "privileged" not in content
    assert "environment" not in content
    check_command(kind, content["command"])


def check_command(kind: str, arguments: list[str]) -> None:
    options = parsed(arguments)
    if kind == "server":
        assert options == {"file": "/etc/fedchoir/federation.toml", "resume": True}
        return
    assert options["policy"] == "/etc/fedchoir/policy.toml"
    assert options["work"] == "/srv/fedchoir/work"
    assert options["data"] == "/data"
    assert not options["insecure"]
    assert not options["trust_server"]


@pytest.mark.parametrize("kind", ["server", "node"])
def test_kubernetes(kind: str) -> None:
    spec = pod(kind)
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == USER
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/srv/fedchoir", "/tmp"}
    names = {volume["name"] for volume in spec["volumes"]}
    names |= {claim["metadata"]["name"] for claim in manifest(kind)["spec"]["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == names
    assert manifest(kind)["spec"]["replicas"] == 1
    assert "env" not in container
    assert bool(container.get("ports")) == (kind == "server")
    check_command(kind, container["args"])


def test_ports_of_kubernetes() -> None:
    """Only the server is reached, on its one port; a node connects to it and to a name server."""
    assert [port["port"] for port in manifest("server", "Service")["spec"]["ports"]] == [8000]
    policy = manifest("node", "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["ingress"] == []
    assert [sorted({port["port"] for port in rule["ports"]}) for rule in policy["egress"]] == [[8000], [53]]
    assert policy["podSelector"]["matchLabels"] == manifest("node")["spec"]["template"]["metadata"]["labels"]
