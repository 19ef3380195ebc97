"""One metrics page for a vLLM and its LMCache server, with what each tier served told apart. Tokens.

vLLM counts all that LMCache gave it in one sum. LMCache counts what it found of a prompt, and in which tier, before
it knows what the device has. A prompt is served from the device as far as that reaches, then from what memory has,
then from files. So what was found in files was served from there, unless the device reached beyond the memory.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import httpx

from kvbench.engine.metrics_page import MetricsPage
from kvbench.observe.exposition import Exposition, parse
from kvbench.observe.identities import settled
from kvbench.observe.kvbench_names import TIER_TOKENS
from kvbench.observe.lmcache_names import FOUND_ON_DISK, SERVER_PREFIX
from kvbench.observe.token_sources import known_total
from kvbench.observe.vllm_names import BY_SOURCE, CACHED_BY_SOURCE

__all__ = ["LmcachePage", "TierSplit", "merged"]

ANSWER_S = 2.4
"""For each of the two pages; less together than whoever scrapes waits for the whole."""

_NEEDED = frozenset({BY_SOURCE, CACHED_BY_SOURCE, "vllm:num_requests_running", "vllm:num_requests_waiting"})


@dataclass
class TierSplit:
    """Tokens that vLLM got from LMCache so far, by tier. Both only grow."""

    host: float = 0.0
    disk: float = 0.0
    _given: float = 0.0
    _found: float = 0.0
    _open: float = 0.0
    """Found in files for prompts that vLLM has not counted yet."""

    def take(self, given: float, found_on_disk: float, *, at_rest: bool) -> None:
        """What both say now, vLLM asked first.

        `at_rest`: vLLM had no request, so what was found before that has been counted, or the device had it.
        """
        grown, found = max(0.0, given - self._given), max(0.0, found_on_disk - self._found)
        self._given, self._found = given, found_on_disk
        from_disk = min(self._open + found, grown)
        self.disk += from_disk
        self.host += grown - from_disk
        self._open += found - from_disk
        if at_rest:
            self._open = min(self._open, found)


def given_by_lmcache(exposition: Exposition) -> float | None:
    """Prompt tokens that vLLM says a connector has served, which does not tell its tiers."""
    if CACHED_BY_SOURCE in exposition:
        return known_total(exposition, CACHED_BY_SOURCE, source="external_unspecified")
    return known_total(exposition, BY_SOURCE, source="external_kv_transfer")


def merged(vllm: str, lmcache: str, split: TierSplit) -> str:
    """Both pages as one, and the split, which takes in what they say."""
    engine = parse(vllm, _NEEDED, buckets=False)
    given = given_by_lmcache(engine)
    found = known_total(parse(lmcache, frozenset({FOUND_ON_DISK}), buckets=False), FOUND_ON_DISK)
    if given is not None:
        split.take(given, found or 0.0, at_rest=settled(engine))
    # The server's own process and Python figures would stand beside vLLM's under the same names.
    own = [line for line in lmcache.splitlines() if line.startswith((SERVER_PREFIX, f"# TYPE {SERVER_PREFIX}"))]
    tiers = [f"# TYPE {TIER_TOKENS}_total counter"] if given is not None else []
    tiers += [
        f'{TIER_TOKENS}_total{{source="{source}"}} {tokens!r}'
        for source, tokens in (("host", split.host), ("disk", split.disk))
        if given is not None
    ]
    return "\n".join([vllm.rstrip("\n"), *own, *tiers]) + "\n"


class LmcachePage:
    """Serves it from its making on until `close`."""

    def __init__(self, vllm_url: str, lmcache_url: str) -> None:
        """Addresses of the two pages."""
        self._urls = (vllm_url, lmcache_url)
        self._split = TierSplit()
        self._lock = threading.Lock()
        self._http = httpx.Client(timeout=ANSWER_S, trust_env=False)
        self._page = MetricsPage(self.page)

    @property
    def url(self) -> str:
        """The page to scrape."""
        return self._page.url

    def page(self) -> tuple[int, str]:
        """Status and text; 503 when one of the two does not answer, its own status when it refuses."""
        with self._lock:
            texts = []
            for url in self._urls:
                try:
                    answer = self._http.get(url, follow_redirects=True)
                except httpx.HTTPError as error:
                    return 503, f"{url} does not answer: {type(error).__name__}\n"
                if answer.status_code != 200:
                    return answer.status_code, f"{url} answers {answer.status_code}\n"
                if not answer.text.endswith("\n"):
                    return 503, f"{url} ends in the middle of a line\n"
                texts.append(answer.text)
            return 200, merged(texts[0], texts[1], self._split)

    def close(self) -> None:
        """End it."""
        self._page.close()
        self._http.close()
