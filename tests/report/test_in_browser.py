"""The page in a real browser: it asks the network for nothing, logs nothing, and fits a phone."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kvbench.report.data import ReportData
from tests.report.conftest import page_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH"),
]
MEASURE = """<!doctype html><body>
<iframe id=f src=/report.html style="width:{width}px;height:800px;border:0"></iframe>
<script>f.onload = () => {{ const d = f.contentDocument.documentElement;
document.title = 'overflow ' + (d.scrollWidth - d.clientWidth); }}</script>"""
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    *("--enable-logging=stderr", "--v=0", "--dump-dom", "--virtual-time-budget=5000"),
]


@dataclass
class Site:
    """Serves pages on loopback and remembers what was asked for."""

    port: int = 0
    pages: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def site() -> Iterator[Site]:
    state = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            body = state.pages.get(self.path)
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield state
        server.shutdown()
        thread.join()


def visit(site: Site, path: str, profile: Path) -> tuple[str, list[str]]:
    """The page as the browser holds it, and the lines of its console."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", f"http://127.0.0.1:{site.port}{path}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize("which", ["go", "attacked", "several"])
def test_the_page_asks_for_nothing_and_logs_nothing(
    which: str, site: Site, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    data: ReportData = request.getfixturevalue(which)
    site.pages["/report.html"] = page_of(data).encode()
    page, console = visit(site, "/report.html", tmp_path)
    assert "Where prompt tokens came from" in page
    assert console == []
    assert site.asked == ["/report.html"]


def test_the_check_itself_sees_a_request_and_a_refused_style(site: Site, tmp_path: Path, go: ReportData) -> None:
    html = page_of(go).replace("img-src data:", "img-src 'self'")
    html = html.replace("</main>", "<img src=/pixel.png><p style='color:red'>x</p></main>")
    site.pages["/report.html"] = html.encode()
    _, console = visit(site, "/report.html", tmp_path)
    assert "/pixel.png" in site.asked
    assert any("Content Security Policy" in line for line in console)


@pytest.mark.parametrize("which", ["several", "attacked"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_never_wider_than_its_screen(
    width: int, which: str, site: Site, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    site.pages["/report.html"] = page_of(request.getfixturevalue(which)).encode()
    site.pages["/measure.html"] = MEASURE.format(width=width).encode()
    page, _ = visit(site, "/measure.html", tmp_path)
    assert "<title>overflow 0</title>" in page
