"""The guard in front of a SuperLink's APIs, without the SuperLink. (The real one is in tests/deploy_e2e.)"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fedchoir.deploy.superlink_program import SERVER_TOKEN, guarded, server_token

TOKEN = server_token(b"secret")


def request(path: str, *tokens: str, kind: str = "http") -> list[dict[str, Any]]:
    """What the guarded application sends; it says ``reached`` itself."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "reached"})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": kind, "path": path, "headers": [(SERVER_TOKEN.encode(), token.encode()) for token in tokens]}
    asyncio.run(guarded(app, TOKEN)(scope, None, send))  # type: ignore[arg-type]
    return sent


@pytest.mark.parametrize("path", ["/v1/control/list-nodes", "/v1/runtime/acquire-task", "/docs", "/openapi.json", "/",
                                  "/v1/fleet", "/v1/Fleet/", "//v1/fleet/x", "/v1/control/../fleet/"])  # fmt: skip
def test_without_the_token_only_the_fleet_is_reached(path: str) -> None:
    refused = {"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]}
    for tokens in ((), ("",), ("0" * 64,), (TOKEN[:-1],), (TOKEN.upper(),), (TOKEN, TOKEN)):
        assert request(path, *tokens)[0] == refused
    assert request(path, TOKEN) == [{"type": "reached"}]


def test_the_fleet_needs_no_token_and_nothing_else_than_http_is_served() -> None:
    assert request("/v1/fleet/pull-messages") == [{"type": "reached"}]
    assert request("/v1/control/x", kind="websocket") == [{"type": "websocket.close"}]
    assert request("", kind="lifespan") == [{"type": "reached"}]


def test_the_token_depends_on_the_secret() -> None:
    assert server_token(b"secret") == TOKEN != server_token(b"another")
    assert len(TOKEN) == 64
