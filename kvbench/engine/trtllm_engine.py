"""TensorRT-LLM as a launched engine: command or image, readiness, one reader of its statistics, proof, stop."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Literal, NamedTuple

import httpx

from kvbench.engine import models
from kvbench.engine.base import Effective, Endpoint, Launch, Progress, Rendered
from kvbench.engine.container_remains import Container
from kvbench.engine.containers import Bind, ImageFacts, Setting, container_of, find_image, in_container
from kvbench.engine.launch import LaunchPlan
from kvbench.engine.launched import LaunchedEngine, asked_port
from kvbench.engine.tensorrt_llm import DEFAULT_PORT, check_profile, command_of, extra_options, render
from kvbench.engine.trtllm_ledger import TrtllmLedger
from kvbench.engine.trtllm_options import told_defaults
from kvbench.engine.trtllm_proof import prove
from kvbench.engine.trtllm_reader import TrtllmReader
from kvbench.engine.trtllm_schema import check_with_engine
from kvbench.errors import EngineError, InputError
from kvbench.load.outcome import encodable
from kvbench.spec.places import about, placed
from kvbench.spec.profile import Profile

__all__ = ["EXTRA_BODY", "Installed", "TensorRtLlmEngine", "check_startable", "render_without_start"]

EXTRA_BODY: dict[str, object] = {
    "ignore_eos": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
"""All that its strict request models take of what kvbench wants: exact lengths, and the tokens of each event.

Whether usage comes with every event by default differs between releases; it gives no token ids."""

DEFAULT_TOKEN_IDS = (32, 255)
PROBE_TOKENS = 16
"""Less than a block, so nothing of the probe is kept for reuse."""

TOLD_S = 10.0
"""The first events and the first iteration record follow the first request within a second."""


class Installed(NamedTuple):
    """What is known of an engine before it runs."""

    container: Container | None = None
    image: ImageFacts | None = None
    defaults: dict[str, str] | None = None
    """Of keys that the YAML does not say, as this very engine has them; None: it cannot be asked."""


class TensorRtLlmEngine(LaunchedEngine):
    """One start of `trtllm-serve`."""

    kind: Literal["tensorrt-llm"] = "tensorrt-llm"

    def __init__(self, profile: Profile, launch: Launch) -> None:
        super().__init__(profile, launch)
        self._installed = Installed()
        self._reader: TrtllmReader | None = None

    def _prepare(self, progress: Progress) -> None:
        self._installed = check_startable(self._profile, progress)

    def _container(self) -> Container | None:
        return self._installed.container

    def _rendered(self, plan: LaunchPlan, port: int) -> Rendered:
        rendered = render(
            self._profile,
            port=port,
            file=plan.launch.directory / "trtllm.yaml",
            told=self._installed.defaults,
        )
        if plan.lease.container is None:
            return rendered
        return _contained(self._profile, rendered, plan.lease.container, lease_id=plan.lease.id, home=plan.home)

    def _endpoint_at(self, base_url: str, served: list[str]) -> Endpoint:
        spec = self._profile.engine
        ledger = TrtllmLedger(extra_options(self._profile).kv_cache_config.tokens_per_block)
        self._reader = TrtllmReader(base_url, self._launch.directory, ledger)
        return Endpoint(
            base_url=base_url,
            metrics_url=self._reader.url,
            # It names its model itself: the hub id, or the last part of a directory's path.
            model=served[0] if len(served) == 1 else self._profile.served_name,
            token_id_range=spec.token_id_range or models.token_id_range(spec.model) or DEFAULT_TOKEN_IDS,
            extra_body=dict(EXTRA_BODY),
        )

    def _answers(self, progress: Progress) -> None:
        """One short request: is it taken as it is, and what does the server tell of its tiers?

        Statistics and events are given out with the first iteration only.
        """
        progress(f"{self._launch.label}: one request of {PROBE_TOKENS} tokens, to see what the server tells")
        with self._client() as client:
            self._probe(client)
        if self._reader is not None:
            self._reader.wait_for(lambda ledger: ledger.levels is not None and ledger.iterations > 0, TOLD_S)
            self._reader.forget_moment()

    def _probe(self, client: httpx.Client) -> None:
        low, high = self._endpoint.token_id_range if self._endpoint is not None else DEFAULT_TOKEN_IDS
        model = self._endpoint.model if self._endpoint is not None else self._profile.served_name
        body = {
            "model": model,
            "prompt": [low, high] * (PROBE_TOKENS // 2),
            "max_tokens": 1,
            "temperature": 0,
            "stream": True,
            **EXTRA_BODY,
        }
        try:
            answer = client.post("/v1/completions", json=body, timeout=60.0)
        except httpx.HTTPError as error:
            raise EngineError(
                f"{self._launch.label}: /health is fine, but a request of {PROBE_TOKENS} tokens gets no answer: "
                f"{error or type(error).__name__}",
                do=f"see its log, {self._launch.log}",
            ) from None
        if answer.status_code != 200:
            raise EngineError(
                f"{self._launch.label}: the server refuses a request of {PROBE_TOKENS} tokens with "
                f"{answer.status_code}: {encodable(answer.text[:300])!r}",
                do="if the ids are beyond its vocabulary, give engine.token_id_range; else see the server's log",
            )

    def effective(self) -> Effective:
        """What the server and its cache events prove."""
        if self._reader is None:
            raise EngineError(f"{self._launch.label}: the engine has not been started")
        with self._client() as client:
            return prove(self._profile, client, self._reader, self._installed.image, self._installed.defaults)

    def reset(self) -> tuple[str, ...]:
        """There is no such thing: a cold start or new prompts are the only ways."""
        return ("device and host: TensorRT-LLM has no way to empty its caches but a restart",)

    def stop(self) -> None:
        """End the reader, then the engine and everything it left."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        super().stop()


def check_startable(profile: Profile, progress: Progress) -> Installed:
    """What is known of a start before anything is started. InputError when command, options or YAML are wrong."""
    with placed(profile):
        return _startable(profile, progress)


def _startable(profile: Profile, progress: Progress) -> Installed:
    check_profile(profile)
    extra_options(profile)
    asked_port(profile)
    if profile.engine.environment is not None:
        raise InputError(
            f"profile {profile.name}: there is no environment with TensorRT-LLM that kvbench installs",
            key=("engine", "environment"),
            do="give engine.image, or engine.command: [trtllm-serve]",
        )
    with about("engine", "image"):
        container = container_of(profile)
    image = None if container is None else find_image(profile, container, progress)
    command = command_of(profile)
    if container is None and shutil.which(command[0]) is None:
        raise InputError(
            f"the engine's command {command[0]} cannot be found",
            key=("engine", "command"),
            do="give engine.image, or correct engine.command, or install TensorRT-LLM",
        )
    (text,) = render(profile, port=DEFAULT_PORT, file=Path("trtllm.yaml")).files.values()
    defaults = check_with_engine(profile, text, command, container, progress)
    if told := told_defaults(defaults or {}):
        progress(f"{profile.name}: left to TensorRT-LLM, by its own word: {told}")
    return Installed(container, image, defaults)


def render_without_start(profile: Profile) -> Rendered:
    """The command and its YAML as a launch would give them, with stand-ins for port and directories."""
    name = f"kvbench-{profile.name}"
    rendered = render(profile, port=asked_port(profile) or DEFAULT_PORT, file=Path(f"{name}.yaml").absolute())
    spec = profile.engine
    if spec.image is None:
        return rendered
    container = Container((spec.container and spec.container.runtime) or "docker", name)
    home = Path(tempfile.gettempdir()).absolute() / name
    return _contained(profile, rendered, container, lease_id=name, home=home)


def _contained(
    profile: Profile, rendered: Rendered, container: Container, *, lease_id: str, home: Path
) -> Rendered:
    model = models.model_directory(profile.engine.model)
    binds = (Bind(model, model, read_only=True),) if isinstance(model, Path) else ()
    return in_container(
        profile, rendered, Setting(container, lease_id, home, binds, needs_hub=isinstance(model, str))
    )
