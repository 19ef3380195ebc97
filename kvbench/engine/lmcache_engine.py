"""vLLM with LMCache: a server beside it, both started, proven, scraped, reset and stopped as one; or inside it."""

from __future__ import annotations

from dataclasses import replace

from kvbench.engine.base import Effective, Endpoint, EngineState, Launch, Progress, Rendered
from kvbench.engine.launch import LaunchPlan
from kvbench.engine.lmcache import LmcacheServer, server_rendered
from kvbench.engine.lmcache_container import ipc_of, server_container, server_in_container
from kvbench.engine.lmcache_page import LmcachePage
from kvbench.engine.lmcache_proof import DegradedWatch, prove, prove_in_process
from kvbench.engine.lmcache_server import LmcacheProcess
from kvbench.engine.reset import empty_disk
from kvbench.engine.vllm_engine import VllmEngine
from kvbench.errors import EngineError
from kvbench.spec.profile import Profile

__all__ = ["VllmWithLmcache", "VllmWithLmcacheInside"]


class VllmWithLmcache(VllmEngine):
    """One start of both; the server comes first and goes last."""

    def __init__(self, profile: Profile, launch: Launch) -> None:
        super().__init__(profile, launch)
        self._beside = LmcacheProcess(self._launch, profile.engine.ready_timeout)
        self._disk_directory = self._launch.disk_directory
        self._launch = replace(self._launch, disk_directory=None)  # the server's, which writes into it
        self._page: LmcachePage | None = None
        self._degraded = DegradedWatch(self._launch.log)

    def _start_beside(self, progress: Progress) -> None:
        progress(f"{self._launch.label}: starting its LMCache server")
        container = self._container()
        self._beside.start(
            self._server_rendered, progress, None if container is None else server_container(container)
        )

    def _server_rendered(self, plan: LaunchPlan, server: LmcacheServer) -> Rendered:
        host, installed, disk = self._profile.tiers.host, self._installed, self._disk_directory
        if host is None or installed is None:
            raise EngineError(f"{self._launch.label}: the engine has not been looked for")
        rendered = server_rendered(self._profile, host, server, command=installed.command, disk_root=disk)
        if plan.lease.container is None:
            return rendered
        return server_in_container(
            self._profile,
            rendered,
            plan.lease.container,
            lease_id=plan.lease.id,
            home=plan.home,
            disk_root=disk,
        )

    def _ipc(self) -> str | None:
        return None if self._beside.container is None else ipc_of(self._beside.container)

    def _lmcache_at(self) -> LmcacheServer:
        return self._beside.server

    def _endpoint_at(self, base_url: str, served: list[str]) -> Endpoint:
        endpoint = super()._endpoint_at(base_url, served)
        self._page = LmcachePage(endpoint.metrics_url, f"{self._beside.url}/metrics")
        # LMCache takes no wish of a request to go past a tier.
        return replace(endpoint, metrics_url=self._page.url, past_secondary=None)

    def effective(self) -> Effective:
        """What both servers prove."""
        return prove(self._profile, self._ask(), self._beside, self._degraded)

    def state(self) -> EngineState:
        """Alive only while it caches: without its LMCache server, vLLM goes on answering."""
        state = super().state()
        beside = self._beside.state()
        pids = (*state.pids, *beside.pids)
        if not state.alive:
            return replace(state, pids=pids)
        if not beside.alive:
            return EngineState(False, f"{beside.detail}; vLLM goes on and caches nothing", pids)
        why = self._degraded.look()
        if why is not None:
            return EngineState(False, f"vLLM goes on without its LMCache server and caches nothing: {why}", pids)
        return replace(state, pids=pids)

    def reset(self) -> tuple[str, ...]:
        """Empty the device by vLLM's route, LMCache's memory by its own, and the disk tier's directory."""
        remains = super().reset()
        if self._beside.ask("/cache/clear", "POST") is None:
            remains += ("host: the LMCache server does not clear its memory",)
        if self._disk_directory is not None:
            remains += empty_disk(self._disk_directory)
        return remains

    def stop(self) -> None:
        """End the page, the engine, then the server and everything that both left."""
        if self._page is not None:
            self._page.close()
            self._page = None
        try:
            super().stop()
        finally:
            self._beside.stop()

    def remarks(self) -> tuple[str, ...]:
        """How both had to be stopped."""
        return (*super().remarks(), *self._beside.remarks())


class VllmWithLmcacheInside(VllmEngine):
    """One start of vLLM with LMCache in its own processes."""

    def __init__(self, profile: Profile, launch: Launch) -> None:
        super().__init__(profile, launch)
        self._degraded = DegradedWatch(self._launch.log)

    def _endpoint_at(self, base_url: str, served: list[str]) -> Endpoint:
        return replace(super()._endpoint_at(base_url, served), past_secondary=None)

    def effective(self) -> Effective:
        """What the server tells, and its log."""
        return prove_in_process(self._profile, self._ask(), self._degraded)
