"""Flower's SuperLink behind a guard: ``python -P superlink_program.py OPTIONS`` with those of ``flower-superlink``.

A SuperLink serves three APIs on one port. Nodes use the fleet API, where they authenticate with their keys. Flower has
no authentication for the control API (list or unregister nodes, start or stop runs). Here every path outside the fleet
API needs a token that only the process that started this SuperLink knows. The file runs as a script: it imports
nothing of fedchoir, so a SuperLink starts without torch.
"""

import hmac
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

FLEET = "/v1/fleet/"
SECRET_OPTION = "--superexec-auth-secret-file"
SERVER_TOKEN = "x-fedchoir-server"  # HTTP header of requests by the process that started the SuperLink
Scope = MutableMapping[str, Any]
App = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Scope], Awaitable[None]]], Awaitable[None]]


def server_token(secret: bytes) -> str:
    """The value of the header `SERVER_TOKEN`."""
    return hmac.digest(secret, b"fedchoir server", "sha256").hex()


def guarded(app: App, token: str) -> App:
    """An ASGI application that answers 403 to requests outside the fleet API that do not carry the token."""

    async def guard(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and _allowed(scope, token)):
            await app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "websocket.close"})

    return guard


def _allowed(scope: Scope, token: str) -> bool:
    sent = [value for name, value in scope["headers"] if name == SERVER_TOKEN.encode()]
    return scope["path"].startswith(FLEET) or (len(sent) == 1 and hmac.compare_digest(sent[0], token.encode()))


def main() -> None:
    from flwr.superlink import main as superlink
    from flwr.superlink.cli.flower_superlink import flower_superlink

    secret = Path(sys.argv[sys.argv.index(SECRET_OPTION) + 1]).read_bytes()
    create_app = superlink.create_app
    superlink.create_app = lambda *options: guarded(create_app(*options), server_token(secret))  # type: ignore
    flower_superlink()


if __name__ == "__main__":
    main()
