"""The emulated engine as an arm of a comparison: launched, proven, reset and stopped as every other engine is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Literal

import httpx

from kvbench.engine.base import Effective, Endpoint, Progress, Rendered
from kvbench.engine.emulated.answers import FIRST_ID, LAST_ID
from kvbench.engine.emulated.sizes import sizes_of
from kvbench.engine.launch import LaunchPlan
from kvbench.engine.launched import LaunchedEngine
from kvbench.engine.proof import ask_server, compare
from kvbench.engine.reset import reset_caches
from kvbench.engine.vllm import EXTRA_BODY, PAST_SECONDARY
from kvbench.spec.profile import Profile

__all__ = ["DEFAULT_PORT", "EmulatedEngine", "render"]

DEFAULT_PORT = 8000
"""Stands in a rendered command for the free port that a launch takes."""

SERVER_MODULE = "kvbench.engine.emulated.server"


def render(profile: Profile, *, port: int, file: Path, label: str) -> Rendered:
    """The start of `profile`; `file` is where its settings are written."""
    settings = {"profile": profile.model_dump(mode="json", by_alias=True, exclude_none=True), "label": label}
    argv = (sys.executable, "-m", SERVER_MODULE, "--config", str(file), "--port", str(port))
    return Rendered(argv=argv, env={}, files={str(file): json.dumps(settings, indent=2) + "\n"})


class EmulatedEngine(LaunchedEngine):
    """One start of an emulated engine."""

    kind: Literal["emulated"] = "emulated"
    grace_s = 2.0  # the server has nothing to put in order

    def _prepare(self, progress: Progress) -> None:
        """It is part of kvbench and its profile has been checked."""

    def _rendered(self, plan: LaunchPlan, port: int) -> Rendered:
        file = plan.launch.directory / "emulated.json"
        return render(self._profile, port=port, file=file, label=plan.launch.label)

    def _endpoint_at(self, base_url: str, served: list[str]) -> Endpoint:
        return Endpoint(
            base_url=base_url,
            metrics_url=f"{base_url}/metrics",
            model=self._profile.served_name,
            token_id_range=self._profile.engine.token_id_range or (FIRST_ID, LAST_ID),
            extra_body=dict(EXTRA_BODY),
            past_secondary=dict(PAST_SECONDARY),
        )

    def effective(self) -> Effective:
        """What the server says of itself. It holds no KV, so there is no memory that could prove the host tier."""
        with self._client() as client:
            seen = ask_server(client, "/metrics")
        transfer = seen.section("kv_transfer_config") or {}
        extra = transfer.get("kv_connector_extra_config") or {}
        said = extra.get("cpu_bytes_to_use")
        seen.host_mapped_bytes = said if isinstance(said, int) else 0
        seen.texts["emulated"] = sizes_of(self._profile).__dict__
        return compare(self._profile, seen)

    def told_sources(self, round_: int) -> dict[int, dict[str, int]]:
        """Cached tokens by tier of every request of a round that was answered, by request id; nothing when the
        server is not there any more."""
        try:
            with self._client() as client:
                told = client.get("/sources").json()
        except httpx.HTTPError:
            return {}
        prefix = f"kvbench-{round_}-"
        return {
            int(name.removeprefix(prefix)): split
            for name, split in told.items()
            if name.startswith(prefix) and name.removeprefix(prefix).isdigit()
        }

    def reset(self) -> tuple[str, ...]:
        """Empty every tier, the disk included: it is in the server's memory."""
        with self._client() as client:
            return reset_caches(client)
