"""Series from the engines' own `/metrics`, where there is no Prometheus. Each call is a scrape of every server."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import numpy as np

from kvbench.canary.naming import canonical_samples
from kvbench.canary.prometheus import secret
from kvbench.canary.reading import Read
from kvbench.canary.series import Samples, key_of
from kvbench.observe.exposition import parse
from kvbench.observe.fetch import client, fetch
from kvbench.spec.access import Access
from kvbench.spec.canary import Canary, Scrape
from kvbench.spec.loading import where

__all__ = ["ScrapeReader", "metrics_address", "samples_of"]

MOST_AT_ONCE = 16
_SUFFIXES = ("_total", "_bucket", "_count", "_sum")


def metrics_address(url: str) -> str:
    """`url` itself where it has a path that ends in metrics, else its `/metrics`."""
    return url if urlsplit(url).path.endswith("metrics") else f"{url}/metrics"


def samples_of(text: str, names: tuple[str, ...], t_s: float) -> Samples:
    """Samples of these exposed names, under canonical ones. ValueError when `text` is no exposition."""
    families = frozenset(_family(name) for name in names)
    found: Samples = {}
    scraped_s = np.array([t_s])
    for samples in parse(text, families).families.values():
        for sample in samples:
            if sample.name in names and np.isfinite(sample.value):
                found[key_of(sample.name, sample.labels)] = (scraped_s, np.array([sample.value]))
    return canonical_samples(found)


def _family(name: str) -> str:
    return next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), name)


class ScrapeReader:
    """A scrape of every server whenever it is asked; a server that does not answer is noted and asked again."""

    looks_back = False

    def __init__(self, canary: Canary, scrape: Scrape, names: tuple[str, ...]) -> None:
        """InputError without a secret that the file names."""
        secret(scrape.token_env, where(canary, "scrape", "token_env"))
        self._targets = [("candidate", url) for url in scrape.candidate]
        self._targets += [("baseline", url) for url in scrape.baseline]
        self._names = names
        self._timeout_s = scrape.timeout
        self._http = client(scrape.timeout, Access(api_key_env=scrape.token_env))
        self._pool = ThreadPoolExecutor(min(len(self._targets), MOST_AT_ONCE), thread_name_prefix="kvbench-scrape")
        self._offset_s = time.time() - time.monotonic()

    def now(self) -> float:
        """Our own clock stamps the samples, as it was at the beginning: when it is set, they go on."""
        return self._offset_s + time.monotonic()

    def not_before(self, t_s: float) -> None:
        """A gate before this one has stamped samples until then; ours come after them, whatever the clock says."""
        self._offset_s += max(0.0, t_s - self.now())

    def read(self, since_s: float, until_s: float, stop: Callable[[], None]) -> Read:
        """One scrape of each; the times asked for do not matter."""
        stop()
        samples: dict[str, dict[str, Samples]] = {"candidate": {}, "baseline": {}}
        failed: dict[str, dict[str, list[float]]] = {"candidate": {}, "baseline": {}}
        for (side, url), found in zip(self._targets, self._pool.map(self._scrape, self._targets), strict=True):
            if isinstance(found, float):
                failed[side][url] = [found]
            else:
                samples[side][url] = found
        return Read(samples, failed)

    def _scrape(self, target: tuple[str, str]) -> Samples | float:
        """Samples, or when it failed."""
        fetched = fetch(self._http, metrics_address(target[1]), self._timeout_s)
        t_s = self.now()
        try:
            found = samples_of(fetched.text, self._names, t_s) if fetched.text else {}
        except ValueError:
            found = {}
        return found or t_s

    def close(self) -> None:
        """Let go of connections and threads."""
        self._pool.shutdown(wait=True)
        self._http.close()
