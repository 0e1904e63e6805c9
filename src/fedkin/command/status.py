"""`fedkin status`: how a served run is doing, on the screen, as a page, for Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedkin.errors import FedkinError

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

HOSTS = ("127.0.0.1", "localhost")


def status(
    run: Annotated[Path, typer.Argument(help="the folder of a run of `fedkin serve`")],
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="serve it on this port of 127.0.0.1 instead"),
    ] = None,
) -> None:
    """Show how a run over sites is doing: its round, every site, who answered in time.

    With --port a page for browsers at /, numbers for Prometheus at /metrics, and /health, which
    answers 503 when the server gives no sign of life; on this machine only.

    Examples:
      fedkin status runs/scaffold-sites-001
      fedkin status runs/scaffold-sites-001 --port 8080
    """
    from fedkin.command.screen import console, plain_table, say
    from fedkin.runs.sites.status import TITLES, Status, headline, site_rows

    found = Status.read(run)
    if port is None:
        say(headline(found))
        console.print(plain_table(TITLES, site_rows(found), numbers_from=3))
        return
    server = page_server(run, port)
    say(f"http://127.0.0.1:{server.server_port}/ (Ctrl-C: stop)")
    server.serve_forever()


def page_server(run: Path, port: int) -> ThreadingHTTPServer:
    """A server on loopback that shows a run folder."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from fedkin.runs.sites.status import Status, curves, page, prometheus

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # a page elsewhere could make a browser here ask under a name of its own
            if self.headers.get("Host", "").partition(":")[0] not in HOSTS:
                self.send_error(403)
                return
            try:
                self._answer(*self._found())
            except FedkinError as error:
                self._answer(503, "text/plain", f"{error}\n")

        def _found(self) -> tuple[int, str, str]:
            if self.path == "/health":
                healthy = Status.read(run).healthy()
                return 200 if healthy else 503, "text/plain", "ok\n" if healthy else "silent\n"
            if self.path == "/metrics":
                last = {name: points[-1][1] for name, points in curves(run).items() if points}
                return 200, "text/plain; version=0.0.4", prometheus(Status.read(run), last)
            if self.path == "/":
                return 200, "text/html; charset=utf-8", page(run)
            return 404, "text/plain", "there is /, /metrics and /health\n"

        def _answer(self, code: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            rule = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
            self.send_header("Content-Security-Policy", rule)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the screen is for the address."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
