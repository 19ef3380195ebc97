"""A registry of one image, on a loopback port: what docker and podman ask for when they pull, and nothing else.

The image is empty: `/usr` and the like are places for the host's own, which a container mounts.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import secrets
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["Registry"]

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
NAME = "kvbench/test"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Registry:
    """Serves until it is closed."""

    def __init__(self) -> None:
        layer = _layer()
        packed = gzip.compress(layer, mtime=0)
        config = {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {
                "Env": ["PATH=/usr/bin:/bin", "OF_THE_IMAGE=yes"],
                "Entrypoint": ["/not-what-is-run"],
                # No two registries hold the same image: removing one would take the other and its containers along.
                "Labels": {"of": secrets.token_hex(16)},
            },
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
        shown = json.dumps(config).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "size": len(shown), "digest": _digest(shown)},
            "layers": [{"mediaType": LAYER, "size": len(packed), "digest": _digest(packed)}],
        }
        body = json.dumps(manifest).encode()
        self.digest = _digest(body)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
        self._server.held = {  # type: ignore[attr-defined]
            "/v2/": (b"{}", "application/json"),
            f"/v2/{NAME}/manifests/{self.digest}": (body, MANIFEST),
            f"/v2/{NAME}/blobs/{_digest(shown)}": (shown, "application/octet-stream"),
            f"/v2/{NAME}/blobs/{_digest(packed)}": (packed, "application/octet-stream"),
        }
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.image = f"{self.host}/{NAME}@{self.digest}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        held = self.server.held.get(self.path.partition("?")[0])  # type: ignore[attr-defined]
        missing = b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}', "application/json"
        body, kind = held or missing
        self.send_response(200 if held else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        if kind == MANIFEST:
            self.send_header("Docker-Content-Digest", _digest(body))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _layer() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name in ("usr", "etc", "proc", "sys", "dev", "tmp", "sbin"):  # docker puts its docker-init into /sbin
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        for name in ("bin", "lib", "lib64"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(entry)
    return made.getvalue()
