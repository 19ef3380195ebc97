"""A server that is already running: probed, proven as far as it lets itself be seen, never started or stopped."""

from __future__ import annotations

import difflib
import os
from dataclasses import replace
from typing import Literal
from urllib.parse import urlsplit

import httpx

from kvbench.access import request_headers, trust
from kvbench.engine.base import Effective, Endpoint, EngineState, Launch, Progress
from kvbench.engine.processes import descendants, listeners
from kvbench.engine.proof import Seen, ask_server, check_version, compare
from kvbench.engine.reset import reset_caches
from kvbench.engine.text_prompts import find_text_prompts
from kvbench.engine.vllm import EXTRA_BODY, PAST_SECONDARY
from kvbench.errors import EngineError, InputError
from kvbench.spec.places import about, placed
from kvbench.spec.profile import Profile

__all__ = ["AttachedEngine", "endpoint_of"]

DEFAULT_TOKEN_IDS = (32, 255)
"""Where the vocabulary is unknown; the profile file format says so."""

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


def endpoint_of(profile: Profile, *, takes_vllm_fields: bool) -> Endpoint:
    """Where requests go. Fields of vLLM's own are a 400 on other servers, so only vLLM gets them."""
    spec = profile.engine
    if not spec.base_url:
        raise InputError(
            f"profile {profile.name} has no engine.base_url", key=("engine",), do="give the server's address"
        )
    base = spec.base_url.rstrip("/").removesuffix("/v1").rstrip("/")
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(
            f"{spec.base_url} is no address of a server",
            key=("engine", "base_url"),
            do="write it as http://host:port",
        )
    return Endpoint(
        base_url=base,
        metrics_url=spec.metrics_url or f"{base}/metrics",
        model=profile.served_name,
        token_id_range=spec.token_id_range or DEFAULT_TOKEN_IDS,
        access=spec.access,
        api=spec.api,
        extra_body=dict(EXTRA_BODY) if takes_vllm_fields else {},
        past_secondary=dict(PAST_SECONDARY) if takes_vllm_fields else None,
    )


class AttachedEngine:
    """One use of a running server."""

    kind: Literal["attached"] = "attached"

    def __init__(self, profile: Profile, launch: Launch) -> None:
        self._profile = profile
        self._label = launch.label
        self._endpoint = endpoint_of(profile, takes_vllm_fields=False)
        self._headers = request_headers(profile.engine.access)
        self._trust = trust(profile.engine.access)
        self._unknown: tuple[str, ...] = ()

    def _client(self, timeout_s: float = 10.0) -> httpx.Client:
        return httpx.Client(
            base_url=self._endpoint.base_url,
            headers=self._headers,
            verify=self._trust,
            trust_env=False,
            timeout=timeout_s,
        )

    def start(self, progress: Progress) -> Endpoint:
        """Probe the server; EngineError when it does not answer, is of another version or lacks the model."""
        with placed(self._profile), about("engine", "base_url"):
            return self._probed(progress)

    def _probed(self, progress: Progress) -> Endpoint:
        progress(f"{self._label}: asking {self._endpoint.base_url}")
        with self._client() as client:
            self._check_health(client)
            seen = ask_server(client, self._endpoint.metrics_url)
        check_version(self._profile, seen.version)
        self._check_model(seen)
        self._endpoint = endpoint_of(self._profile, takes_vllm_fields=_is_vllm(seen))
        spec = self._profile.engine
        if spec.api == "chat" or spec.tokenizer is not None or not (_is_vllm(seen) or self._takes_ids()):
            self._send_text(progress)
        return self._endpoint

    def _send_text(self, progress: Progress) -> None:
        """Find words of one token each to write prompts with; InputError when that cannot be done."""
        progress(f"{self._label}: finding words to write prompts of an exact length with")
        with self._client(timeout_s=60.0) as client:
            spec = self._profile.engine
            found = find_text_prompts(client, self._endpoint.model, spec.tokenizer, spec.api)
        self._unknown = found.unknown
        self._endpoint = replace(
            self._endpoint,
            token_id_range=(0, len(found.words) - 1),
            words=found.words,
            opening=found.opening,
            extra_prompt_tokens=found.extra_tokens,
            extra_tokens_behind=found.tokens_behind,
        )

    def _takes_ids(self) -> bool:
        """One token for a short prompt of ids: whether the server accepts such a prompt."""
        low, high = self._endpoint.token_id_range
        body = {"model": self._endpoint.model, "prompt": [low, high] * 8, "max_tokens": 1}
        try:
            with self._client(timeout_s=60.0) as client:
                answer = client.post("/v1/completions", json=body)
        except httpx.HTTPError:
            return True  # it is slow or ended; what becomes of the round's own requests is recorded
        return answer.status_code not in (400, 422)

    def _check_health(self, client: httpx.Client) -> None:
        url = self._endpoint.base_url
        try:
            answer = client.get("/health")
        except httpx.TimeoutException:
            raise EngineError(f"the server at {url} takes the connection but does not answer in 10 s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            unknown_authority = "CERTIFICATE_VERIFY_FAILED" in str(error)
            raise EngineError(
                f"nothing answers at {url}: {error or type(error).__name__}",
                do="name the authority that signed its certificate in engine.ca_file"
                if unknown_authority
                else "start the server, or correct engine.base_url",
            ) from None
        status = answer.status_code
        if answer.is_redirect:
            there = answer.headers.get("location", "nowhere").removesuffix("/health")
            raise InputError(
                f"the server at {url} redirects to {there}",
                do="give that address as engine.base_url; a redirection would cost time in every request",
            )
        if status >= 500:
            raise EngineError(
                f"the server at {url} is not healthy: /health answers {status}", do="see the server's log"
            )
        if status in (401, 403):
            raise InputError(
                f"the server at {url} refuses the request ({status})",
                key=("engine", "api_key_env"),
                do="name the key's variable in api_key_env, or in headers",
            )

    def _check_model(self, seen: Seen) -> None:
        url = self._endpoint.base_url
        if seen.models is None:
            raise EngineError(
                f"the server at {url} does not list its models at /v1/models",
                do="give the address of an OpenAI-compatible server; a key may be needed (api_key_env)",
            )
        names = [str(model.get("id")) for model in seen.models]
        wanted = self._profile.served_name
        if wanted not in names:
            near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.4)
            raise EngineError(
                f"the server at {url} does not serve {wanted}; it serves {', '.join(names) or 'nothing'}",
                do=f"did you mean {near[0]}?" if near else "correct engine.model or engine.served_name",
            )

    def effective(self) -> Effective:
        """What the server lets see; the tiers of the profile only declare what it is believed to have."""
        with self._client() as client:
            found = compare(self._profile, ask_server(client, self._endpoint.metrics_url))
        return replace(found, unknown=(*found.unknown, *self._unknown))

    def state(self) -> EngineState:
        """Whether `/health` answers; its processes when it runs on this host."""
        try:
            with self._client(timeout_s=2.0) as client:
                status = client.get("/health").status_code
        except httpx.HTTPError as error:
            return EngineState(alive=False, detail=f"no answer: {error or type(error).__name__}", pids=self._pids())
        alive = status < 500
        return EngineState(alive=alive, detail="" if alive else f"/health answers {status}", pids=self._pids())

    def _pids(self) -> tuple[int, ...]:
        parts = urlsplit(self._endpoint.base_url)
        if parts.hostname not in LOCAL_HOSTS:
            return ()
        found = listeners(parts.port or (443 if parts.scheme == "https" else 80)) - {os.getpid()}
        below = {stat.pid for pid in found for stat in descendants(pid)}
        return tuple(sorted(found | below))

    def reset(self) -> tuple[str, ...]:
        """Ask for a reset; whatever lies on the server's disk tier stays."""
        with self._client() as client:
            remains = reset_caches(client)
        return remains + (("disk: files of a running server are not removed",) if self._profile.tiers.disk else ())

    def stop(self) -> None:
        """Nothing: it was running before and goes on."""

    def remarks(self) -> tuple[str, ...]:
        """None, for it is not stopped."""
        return ()


def _is_vllm(seen: Seen) -> bool:
    """By the owner it gives its models, or by its metrics."""
    owned = any(model.get("owned_by") == "vllm" for model in seen.models or [])
    return owned or any(name.startswith("vllm:") for name in seen.metrics or {})
