"""Telling others of a breach: a command that gets the payload on stdin, or a signed POST. Nothing before `armed`.

Payload (JSON): schema, id, canary, rehearsal, verdict, baseline, candidate, action (with configuration), reasons,
window. A rehearsal looks like a breach, so that the same is done, and says that it is one.
A POST carries `X-Kvbench-Delivery` (the id, the same for every try), `X-Kvbench-Timestamp`, and, with a secret,
`X-Kvbench-Signature: sha256=<hex>`, the HMAC of `<timestamp>.<body>`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import BinaryIO

import httpx

from kvbench.canary.prometheus import secret
from kvbench.canary.verdict import CanaryVerdict, HookResult
from kvbench.report.plain import plain
from kvbench.spec.canary import Canary, OnBreach
from kvbench.spec.loading import where

__all__ = ["check_hook", "fire", "payload", "sign"]

BACKOFF_S = 1.0
SHOWN = 300
"""Characters of what a hook printed."""


def payload(canary: Canary, verdict: CanaryVerdict, id_: str) -> dict[str, object]:
    """What is told."""
    content = verdict.model_dump(
        mode="json", by_alias=True, include={"verdict", "baseline", "candidate", "action", "reasons", "window"}
    )
    return {"schema": 1, "id": id_, "canary": canary.name, "rehearsal": False, **content}


def sign(key: str, timestamp: str, body: bytes) -> str:
    """The value of `X-Kvbench-Signature`."""
    return "sha256=" + hmac.new(key.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def check_hook(canary: Canary) -> None:
    """InputError when the secret that a hook needs is not there; better now than at the breach."""
    if canary.on_breach.armed:
        secret(canary.on_breach.secret_env, where(canary, "on_breach", "secret_env"))


def fire(
    canary: Canary, told: dict[str, object], id_: str, sleep: Callable[[float], None] = time.sleep
) -> HookResult:
    """Tell it, or say what would have been told. Never raises for what a hook can do."""
    breach, now = canary.on_breach, time.time()
    body = json.dumps(told).encode()
    if breach.hook is not None:
        if not breach.armed:
            return HookResult(id=id_, state="dry-run", at=now, text=f"not armed; would run {breach.hook!r}")
        state, text = _run(breach, body)
    else:
        if not breach.armed:
            return HookResult(
                id=id_, state="dry-run", at=now, text=f"not armed; would post to {_place(breach.post)}"
            )
        key = secret(breach.secret_env, where(canary, "on_breach", "secret_env"))
        state, text = _post(breach, body, id_, key, sleep)
    return HookResult(id=id_, state=state, at=now, text=text)


def _run(breach: OnBreach, body: bytes) -> tuple[str, str]:
    argv = breach.hook or []
    # Files, not pipes: what a hook has started may hold a pipe open long after the hook itself has ended.
    with _in_memory() as told, _in_memory() as out, _in_memory() as err:
        told.write(body)
        told.seek(0)
        try:
            # A session of its own: Ctrl-C on the gate must not stop a rollback halfway.
            process = subprocess.Popen(argv, stdin=told, stdout=out, stderr=err, start_new_session=True)
        except OSError as error:
            return "failed", f"{argv[0]} cannot be run: {error.strerror or error}"
        try:
            code = process.wait(breach.timeout)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started, too
            process.wait()
            return "failed", f"{argv[0]} did not end within {breach.timeout:g} s and was killed"
        said = _end_of(err) or _end_of(out)
    if code != 0:
        return "failed", f"{argv[0]} ended with {code}" + (f": {said}" if said else "")
    return "done", f"{argv[0]} ended with 0"


def _in_memory() -> BinaryIO:
    """A file that needs no disk: a gate's own may be read-only."""
    return os.fdopen(os.memfd_create("kvbench-hook"), "w+b", buffering=0)


def _end_of(file: BinaryIO) -> str:
    """What was said last; read without moving the place where others may still write."""
    size = os.fstat(file.fileno()).st_size
    tail = os.pread(file.fileno(), 4 * SHOWN, max(0, size - 4 * SHOWN))
    return plain(tail.decode("utf-8", "replace").strip()[-SHOWN:])


def _post(
    breach: OnBreach, body: bytes, id_: str, key: str | None, sleep: Callable[[float], None]
) -> tuple[str, str]:
    url, why = breach.post or "", "never tried"
    place = _place(url)
    with httpx.Client(timeout=breach.timeout, trust_env=False) as http:
        for attempt in range(breach.retries + 1):
            if attempt:
                sleep(BACKOFF_S * 2 ** (attempt - 1))
            timestamp = str(int(time.time()))
            headers = {
                "Content-Type": "application/json",
                "X-Kvbench-Delivery": id_,
                "X-Kvbench-Timestamp": timestamp,
            }
            if key is not None:
                headers["X-Kvbench-Signature"] = sign(key, timestamp, body)
            try:
                with http.stream("POST", url, content=body, headers=headers) as answer:
                    status = answer.status_code  # nobody waits for what comes after it
            except httpx.HTTPError as error:
                why = f"{type(error).__name__}: {error}"
                continue
            if httpx.codes.is_success(status):
                return "done", f"{place} answered {status}"
            why = f"status {status}"
            if status < 500 and status not in (408, 429):
                break
    return "failed", f"{place} was not told: {why}"


def _place(url: str | None) -> str:
    """The server alone: the path of a webhook is often its secret, and results go into files and reports."""
    parts = httpx.URL(url or "")
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{parts.host}{port}"
