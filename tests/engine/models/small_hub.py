"""A Hugging Face hub of one repository on this machine: the few addresses that a download asks for."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse

COMMIT = "c0ffee" + "0" * 34


class SmallHub(ThreadingHTTPServer):
    """Serves the files of a folder as ``org/model``; some are refused, one may be cut in its middle."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.cut = ""
        """The file whose connection breaks after half of it."""
        self.stall = ""
        """The file of which half comes, and nothing more until ``release`` is set."""
        self.stalled, self.release = threading.Event(), threading.Event()
        self.sent: list[str] = []
        """Files that were asked for."""

    @property
    def address(self) -> str:
        """As ``HF_ENDPOINT`` takes it."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is what the tests are about."""


@contextmanager
def small_hub(folder: Path) -> Iterator[SmallHub]:
    """A hub that serves ``folder`` while the block runs."""
    hub = SmallHub(folder)
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.release.set()
        hub.shutdown()
        hub.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: SmallHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, body: bool) -> None:
        path = unquote(urlparse(self.path).path)
        if "gated/model" in path:
            return self._refuse(403, "GatedRepo")
        if not path.startswith(("/api/models/org/model", "/org/model/")):
            return self._refuse(404, "RepoNotFound")
        if path.startswith("/api/"):
            revision = path.rpartition("/")[2] if "/revision/" in path or "/tree/" in path else "main"
            if revision not in ("main", COMMIT):
                return self._refuse(404, "RevisionNotFound")
            files = sorted(self.server.folder.iterdir())
            if "/tree/" in path:
                listing = [{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": _etag(f)} for f in files]
                return self._json(listing)
            return self._json({"id": "org/model", "sha": COMMIT, "siblings": [{"rfilename": f.name} for f in files]})
        file = self.server.folder / path.rpartition("/")[2]
        if not file.exists():
            return self._refuse(404, "EntryNotFound")
        self._file(file, body)

    def _file(self, file: Path, body: bool) -> None:
        data = file.read_bytes()
        start = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{_etag(file)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if not body:
            return
        self.server.sent.append(file.name)
        if file.name in (self.server.cut, self.server.stall):
            self.wfile.write(data[start : start + (len(data) - start) // 2])
            if file.name == self.server.stall:
                self.server.stalled.set()
                self.server.release.wait(60)
            self.close_connection = True
            return
        self.wfile.write(data[start:])

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": f"{code}."})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()
