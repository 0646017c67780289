"""A hub on this machine that takes commits as Hugging Face's does: small files within them, large ones by LFS."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_of_the_test"
LARGE = (".safetensors", ".gguf")


class SmallHub(ThreadingHTTPServer):
    """Repositories by name, each with its files' contents."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.messages: list[str] = []
        """Of commits."""
        self.large: dict[str, bytes] = {}
        """By SHA-256."""
        self.refuses = ""
        """Part of the path that it answers with 403."""

    @property
    def address(self) -> str:
        """As ``HF_ENDPOINT`` takes it."""
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def small_hub() -> Iterator[SmallHub]:
    """A hub that runs while the block runs."""
    hub = SmallHub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: SmallHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_PUT(self) -> None:
        data = self._body()
        self.server.large[hashlib.sha256(data).hexdigest()] = data
        self._answer({})

    def do_GET(self) -> None:
        repository = self.path.removeprefix("/api/models/").partition("/tree/")[0].partition("/revision/")[0]
        files = self.server.repositories.get(repository.partition("?")[0])
        if files is None:
            return self._answer({}, 404, **{"X-Error-Code": "RepoNotFound"})
        if "/tree/" in self.path:
            return self._answer([{"type": "file", "path": name, "size": 1, "oid": "0" * 40} for name in files])
        self._answer({"id": repository, "sha": "c" * 40, "siblings": [{"rfilename": name} for name in files]})

    def do_POST(self) -> None:
        body, hub = self._body(), self.server
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._refuse(401, "Invalid credentials in Authorization header")
        if hub.refuses and hub.refuses in self.path:
            return self._refuse(403, "You don't have the rights to create a model under this namespace")
        if self.path == "/api/repos/create":
            return self._create(json.loads(body))
        if self.path == "/api/validate-yaml":
            content = json.loads(body)["content"]
            wrong = [] if content.startswith("---\n") else [{"message": "no metadata"}]
            return self._answer({"warnings": [], "errors": wrong}, 400 if wrong else 200)
        if self.path.endswith("/info/lfs/objects/batch"):
            return self._answer(
                {"transfer": "basic", "objects": [self._place(each) for each in json.loads(body)["objects"]]}
            )
        repository, _, action = self.path.removeprefix("/api/models/").rpartition("/main")[0].rpartition("/")
        if action == "preupload":
            modes = {True: "lfs", False: "regular"}
            files = [
                {"path": each["path"], "uploadMode": modes[each["path"].endswith(LARGE)], "shouldIgnore": False}
                for each in json.loads(body)["files"]
            ]
            return self._answer({"files": files})
        self._commit(repository, [json.loads(row) for row in body.splitlines()])

    def _create(self, wish: dict[str, Any]) -> None:
        name = f"{wish.get('organization') or 'me'}/{wish['name']}"
        known = name in self.server.repositories
        if not known:
            self.server.repositories[name] = {}
            self.server.private |= {name} if wish.get("visibility") == "private" else set()
        self._answer({"url": f"{self.server.address}/{name}", "name": name}, 409 if known else 200)

    def _place(self, wish: dict[str, Any]) -> dict[str, Any]:
        place = f"{self.server.address}/large/{wish['oid']}"
        return {**wish, "actions": {"upload": {"href": place}}}

    def _commit(self, repository: str, rows: list[dict[str, Any]]) -> None:
        files = self.server.repositories[repository]
        for row in rows:
            value = row["value"]
            match row["key"]:
                case "header":
                    self.server.messages.append(value["summary"])
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.server.large[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        oid = f"{len(self.server.messages):040x}"
        address = f"{self.server.address}/{repository}/commit/{oid}"
        self._answer({"success": True, "commitOid": oid, "commitUrl": address, "hookOutput": ""})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, value: object, status: int = 200, **headers: str) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, status: int, message: str) -> None:
        self._answer({"error": message}, status, **{"X-Error-Message": message})
