"""A read-only HTTP server for the live page; without ``--allow-remote`` only this machine can connect."""

import hashlib
import html
import ipaddress
import json
import socket
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedchoir.reporting.live.run_index import RunIndex
from fedchoir.reporting.page import SCRIPTS, html_page, report_page
from fedchoir.utils.errors import UsageError

LOCAL = {"localhost", "127.0.0.1", "::1"}
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class LiveServer(ThreadingHTTPServer):
    """Serves the runs of one folder. ``port`` 0 takes a free port."""

    daemon_threads = True

    def __init__(self, root: Path, host: str = "127.0.0.1", port: int = 8090, *, allow_remote: bool = False) -> None:
        if not root.is_dir():
            raise UsageError(f"there is no folder {root} with runs to show")
        if host not in LOCAL and not allow_remote:
            raise UsageError(
                f"--host {host} would show the runs to other machines without a password; "
                "add --allow-remote if you want that, or leave --host at 127.0.0.1"
            )
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.index = RunIndex(root)
        self.remote = allow_remote
        self.names = LOCAL | {host.lower()} | ({socket.gethostname().lower()} if allow_remote else set())
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise UsageError(f"cannot serve on {host}:{port}: {error.strerror or error}; try another --port") from None

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}/" if ":" in str(host) else f"http://{host!s}:{port}/"

    def accepts(self, header: str | None) -> bool:
        """Whether the Host header names this server.

        This stops DNS rebinding: a foreign page whose domain name was pointed at this machine sends that name. An IP
        address cannot be rebound.
        """
        name = host_name(header or "")
        if name in self.names or not self.remote:
            return name in self.names
        with suppress(ValueError):
            return bool(ipaddress.ip_address(name))
        return False


def host_name(header: str) -> str:
    """The name in a Host header, without the port.

    >>> host_name("127.0.0.1:8090"), host_name("[::1]:8090"), host_name("Evil.example")
    ('127.0.0.1', '::1', 'evil.example')
    """
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD of ``/``, ``/report``, ``/api/runs`` and ``/api/run``."""

    server: LiveServer
    protocol_version = "HTTP/1.1"
    server_version = "fedchoir"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        if not self.server.accepts(self.headers.get("Host")):
            return self._text(HTTPStatus.FORBIDDEN, "this server does not serve that host name")
        try:
            self._route()
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            self._text(HTTPStatus.INTERNAL_SERVER_ERROR, f"the files of a run cannot be read: {error}")

    do_HEAD = do_GET

    def _route(self) -> None:
        address, index = urlsplit(self.path), self.server.index
        name = parse_qs(address.query).get("id", [None])[0]
        if address.path == "/":
            return self._send(live_page(index.root.name), "text/html")
        if address.path == "/api/runs":
            return self._json({"runs": index.runs()})
        if address.path == "/api/run" and name is not None and (data := index.run(name)) is not None:
            return self._json(data)
        if address.path == "/report" and (runs := index.readable(name)):
            return self._send(report_page(runs), "text/html")
        return self._text(HTTPStatus.NOT_FOUND, "there is no such page or run")

    def _refuse(self) -> None:
        self.close_connection = True  # the request may have a body that is not read
        self._text(HTTPStatus.METHOD_NOT_ALLOWED, "this page is read-only")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse

    def _text(self, status: HTTPStatus, text: str) -> None:
        self._send(text + "\n", "text/plain", status)

    def _json(self, value: Any) -> None:
        self._send(json.dumps(value, allow_nan=False, separators=(",", ":")), "application/json")

    def _send(self, text: str, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        body = text.encode()
        tag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
        same = status is HTTPStatus.OK and self.headers.get("If-None-Match") == tag
        self.send_response(HTTPStatus.NOT_MODIFIED if same else status)
        headers = {**HEADERS, "ETag": tag}
        if not same:
            headers |= {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if not same and self.command != "HEAD":
            self.wfile.write(body)

    def handle(self) -> None:
        with suppress(ConnectionError, TimeoutError):  # the browser closed the connection
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        """The page polls every second: no log line per request."""


def live_page(folder: str) -> str:
    """The HTML of the live page."""
    nav = '<nav><a href="report">full report</a></nav><span class="state" id="link">live</span>'
    main = (
        f'<main class="live" style="padding-top:22px"><aside><h2>Runs in {html.escape(folder)}</h2>'
        '<div class="runs" id="runs"></div></aside><div id="run"><p class="empty">No run yet.</p></div></main>'
    )
    return html_page("live", nav, main, (*SCRIPTS, "live.js"), {}, connect="'self'")
