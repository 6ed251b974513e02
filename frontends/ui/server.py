"""The live page's server: HTTP on loopback, for callers that have the token.

A browser's pages of other origins can send requests to loopback, and resolve a name of theirs to it (DNS rebinding). So
each request needs the token, and a Host header that names this address. The page alone takes the token from its URL.
"""

import hmac
import json
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fdt.security.auth import new_token
from frontends.report.page import embedded, render
from frontends.ui.live import LiveRuns

LOOPBACK = "127.0.0.1"
MOST_CHOSEN = 8  # runs of which curves are shown together
IDLE_S = 20.0  # a connection without a request ends
TITLE = "Runs"


class UiServer(ThreadingHTTPServer):
    """The server. `url` holds the token.

    Args:
        port: The port on loopback; 0: a free one.

    Raises:
        OSError: The port cannot be used.
    """

    daemon_threads = True
    block_on_close = False  # an open connection does not delay the end

    def __init__(self, port: int) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.token, self.runs = new_token(), LiveRuns()
        self.hosts = {f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost")}
        self.page = render(TITLE, [], live=True).encode()
        self.url = f"http://{LOOPBACK}:{self.server_port}/?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that broke: the browser has closed its page."""


class _Handler(BaseHTTPRequestHandler):
    server: UiServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "hfdt", ""
    timeout = IDLE_S

    def do_GET(self) -> None:
        self._answer({"/": self._page, "/state": self._state})

    def do_POST(self) -> None:
        self.close_connection = True  # a body is not read
        self._answer({"/stop": self._stop})

    def _answer(self, handlers: dict[str, Any]) -> None:
        address = urlsplit(self.path)
        query = parse_qs(address.query)
        if self.headers.get("Host") not in self.server.hosts:
            self._refuse(HTTPStatus.FORBIDDEN, "the Host header must name this server's loopback address")
        elif self.headers.get("Origin", f"http://{self.headers['Host']}") != f"http://{self.headers['Host']}":
            self._refuse(HTTPStatus.FORBIDDEN, "a page of another origin may not ask")
        elif not self._has_token(query if address.path == "/" else {}):
            self._refuse(
                HTTPStatus.FORBIDDEN, "the token is missing or wrong; open the address that the command printed"
            )
        elif address.path not in handlers:
            self._refuse(HTTPStatus.NOT_FOUND, "no such page")
        else:
            handlers[address.path](query)

    def _has_token(self, query: dict[str, list[str]]) -> bool:
        given = query.get("token", [""])[0] or self.headers.get("Authorization", "").removeprefix("Bearer ")
        return hmac.compare_digest(given.encode(errors="replace"), self.server.token.encode())

    def _page(self, query: dict[str, list[str]]) -> None:
        self._send(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")

    def _state(self, query: dict[str, list[str]]) -> None:
        state = self.server.runs.state(query.get("run", [])[:MOST_CHOSEN])
        self._send(HTTPStatus.OK, embedded(state).encode(), "application/json")

    def _stop(self, query: dict[str, list[str]]) -> None:
        if self.server.runs.stop(query.get("run", [""])[0]):
            self._send(HTTPStatus.ACCEPTED, b"{}", "application/json")
        else:
            self._refuse(HTTPStatus.CONFLICT, "no such run on this machine, or it has ended")

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True
        self._send(status, json.dumps({"error": why}).encode(), "application/json")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing: an address holds the token."""
