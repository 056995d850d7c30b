"""A small read-only server for the live page: this machine only, unless someone says otherwise."""

from __future__ import annotations

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

from fedchoir.reporting.live.run_index import Watch
from fedchoir.reporting.page import MARK, html_page, report_page
from fedchoir.utils.errors import UsageError

LOCAL = {"localhost", "127.0.0.1", "::1"}
SAFETY = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class LiveServer(ThreadingHTTPServer):
    """Serves the runs of one folder. ``port`` 0 takes a free one."""

    daemon_threads = True

    def __init__(self, root: Path, host: str = "127.0.0.1", port: int = 8090, *, allow_remote: bool = False) -> None:
        if not root.is_dir():
            raise UsageError(f"there is no folder {root} with runs to show")
        if host not in LOCAL and not allow_remote:
            raise UsageError(
                f"--host {host} would show the runs to other machines, without any password; "
                "add --allow-remote if that is wanted, or leave --host at 127.0.0.1"
            )
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.watch = Watch(root)
        self.remote = allow_remote
        self.names = LOCAL | {host.lower()} | ({socket.gethostname().lower()} if allow_remote else set())
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise UsageError(f"cannot serve on {host}:{port}: {error.strerror or error}; try another --port") from None

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        name = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"

    def welcomes(self, header: str | None) -> bool:
        """Whether a request's Host is a name of this server. A page elsewhere whose own domain name was pointed at
        this machine (DNS rebinding) comes with that name and is turned away; an address cannot be rebound."""
        name = host_name(header or "")
        if name in self.names:
            return True
        return self.remote and is_address(name)


def host_name(header: str) -> str:
    """The name in a Host header, without the port.

    >>> host_name("127.0.0.1:8090"), host_name("[::1]:8090"), host_name("Evil.example")
    ('127.0.0.1', '::1', 'evil.example')
    """
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD of four addresses; nothing else."""

    server: LiveServer
    protocol_version = "HTTP/1.1"
    server_version = "fedchoir"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        if not self.server.welcomes(self.headers.get("Host")):
            return self._say(HTTPStatus.FORBIDDEN, "this server does not answer to that host name")
        try:
            self._answer()
        except (OSError, ValueError, KeyError, TypeError) as error:  # files that are not what they should be
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, f"the files of a run cannot be read: {error}")

    do_HEAD = do_GET

    def _answer(self) -> None:
        address = urlsplit(self.path)
        wanted = parse_qs(address.query).get("id", [None])[0]
        watch = self.server.watch
        if address.path == "/":
            return self._send(live_page(watch.root.name), "text/html; charset=utf-8")
        if address.path == "/api/runs":
            return self._json({"runs": watch.runs()})
        if address.path == "/api/run" and wanted is not None:
            told = watch.run(wanted)
            return self._missing() if told is None else self._json(told)
        if address.path == "/report":
            runs = watch.readable(wanted)
            return self._send(report_page(runs), "text/html; charset=utf-8") if runs else self._missing()
        return self._missing()

    def _refuse(self) -> None:
        self.close_connection = True  # a body that nobody reads may follow
        self._say(HTTPStatus.METHOD_NOT_ALLOWED, "this page only shows; nothing can be changed through it")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse

    def _missing(self) -> None:
        self._say(HTTPStatus.NOT_FOUND, "there is no such page or run")

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._send(text + "\n", "text/plain; charset=utf-8", status)

    def _json(self, value: Any) -> None:
        self._send(json.dumps(value, allow_nan=False, separators=(",", ":")), "application/json")

    def _send(self, text: str, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        body = text.encode()
        tag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
        same = status is HTTPStatus.OK and self.headers.get("If-None-Match") == tag
        self.send_response(HTTPStatus.NOT_MODIFIED if same else status)
        for name, value in SAFETY.items():
            self.send_header(name, value)
        self.send_header("ETag", tag)
        if not same:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not same and self.command != "HEAD":
            self.wfile.write(body)

    def handle(self) -> None:
        with suppress(ConnectionError, TimeoutError):  # the browser went away
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        pass  # a line a second would bury the address


def live_page(folder: str) -> str:
    body = (
        '<header class="top"><div class="inner">'
        f'<div class="brand">{MARK}<span>fedchoir</span></div><nav><a href="report">full report</a></nav>'
        '<span class="state" id="link">live</span><span id="theme-place"></span></div></header>'
        f'<main class="live" style="padding-top:22px"><aside><h2>Runs in {html.escape(folder)}</h2>'
        '<div class="runs" id="runs"></div></aside><div id="run"><p class="empty">No run yet.</p></div></main>'
    )
    return html_page("live", body, ("dom.js", "charts.js", "sections.js", "live.js"), {}, connect="'self'")
