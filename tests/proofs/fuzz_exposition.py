"""Random bytes never crash the reading of metrics: `python -m tests.proofs.fuzz_exposition [CASES] [--seed N]`.

A million cases by default (`--at-most` ends it after so many seconds), of five kinds in turn: random bytes; random
lines of the format's own tokens; a page of a server with bytes changed, cut out or doubled; two pages cut into each
other; iteration records in JSON changed in the same way. Each goes the whole way that a scrape goes: bytes,
samples, canonical samples, buckets, identities, what fell since the case before. Prints what was run and exits with
1 at the first exception, with the bytes that caused it.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable

from kvbench.observe.buckets import BucketReader
from kvbench.observe.canonical import MAPPINGS, CanonicalSample, canonical, parse_engine, source_counters
from kvbench.observe.continuity import falls
from kvbench.observe.exposition import Exposition, looks_like_exposition, parse
from kvbench.observe.identities import IdentityWatch
from kvbench.observe.iteration_stats import IterationStats, looks_like_iteration_stats
from kvbench.spec.engine_metrics import ENGINE_METRICS

CASES = 1_000_000
LONGEST = 160
"""Bytes of a random case; long enough for a few lines."""
NAMES = sorted({mapping.family for mapping in MAPPINGS})
TOKENS = (
    *(
        "# TYPE ",
        "# HELP ",
        "#",
        "\n",
        "\n",
        "\n",
        " ",
        "\t",
        "{",
        "}",
        '"',
        "\\",
        ",",
        "=",
        "_total",
        "_sum",
        "_count",
    ),
    *(
        "_bucket",
        "_created",
        "counter\n",
        "gauge\n",
        "histogram\n",
        "untyped\n",
        "1",
        "-1",
        "0.5",
        "1e308",
        "NaN",
        "+Inf",
    ),
    *(
        '{engine="0"} ',
        '{source="host"} ',
        '{tier="1:fs",engine="1"} ',
        'le="',
        "\r",
        "\x00",
        "\u2028",
        "\x85",
        "é",
        "٣",
    ),
    *NAMES,
)
WORDS = (
    *('"iter":', '"kvCacheStats":', '"reusedBlocks":', '"kvCacheIterationStats":', '"16":', '"iterOnboardBytes":'),
    *(
        '"iterCachedTokensByLevel":',
        '"kvCacheLevelTiers":',
        '"gpu"',
        '"host"',
        "{",
        "}",
        "[",
        "]",
        ",",
        "1",
        "-2",
        "1e999",
    ),
    *("null", "true", '"numCtxTokens":', '"inflightBatchingStats":', '"attentionDpRank":', "NaN", '"', "\\"),
)
RECORDS = (
    b'[{"iter":3,"attentionDpRank":0,"numActiveRequests":1,"kvCacheStats":{"reusedBlocks":4,"usedNumBlocks":3,'
    b'"maxNumBlocks":10},"inflightBatchingStats":{"numCtxTokens":7},"iterCachedTokensByLevel":[1,2],'
    b'"kvCacheLevelTiers":["gpu","host"],"kvCacheIterationStats":{"16":{"iterOnboardBytes":5}}}]'
)


def page(rng: random.Random) -> bytes:
    """A few families as a server writes them."""
    lines = []
    for mapping in rng.sample(MAPPINGS, 4):
        kind, name = mapping.metric.kind, mapping.family
        lines.append(f"# TYPE {name}{'_total' if kind == 'counter' else ''} {kind}")
        ending = {"counter": "_total", "gauge": "", "histogram": rng.choice(("_sum", "_count", "_bucket"))}[kind]
        edge = f',le="{rng.choice(("0.5", "+Inf", "much"))}"' if ending == "_bucket" else ""
        for rank in range(rng.randrange(3)):
            tier = rng.choice(("host", "disk"))
            lines.append(f'{name}{ending}{{engine="{rank}",source="{tier}"{edge}}} {rng.random() * 9}')
    return ("\n".join(lines) + "\n").encode()


def changed(body: bytes, rng: random.Random) -> bytes:
    """Some bytes replaced, cut out or doubled."""
    found = bytearray(body)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(found) + 1)
        end = min(len(found), at + rng.randrange(20))
        what = rng.randrange(3)
        found[at:end] = rng.randbytes(end - at) if what == 0 else b"" if what == 1 else found[at:end] * 2
    return bytes(found)


def crossed(rng: random.Random) -> bytes:
    one, other = page(rng), page(rng)
    return one[: rng.randrange(len(one) + 1)] + other[rng.randrange(len(other) + 1) :]


KINDS: tuple[tuple[str, Callable[[random.Random], bytes]], ...] = (
    ("random bytes", lambda rng: rng.randbytes(rng.randrange(LONGEST))),
    ("random tokens", lambda rng: "".join(rng.choices(TOKENS, k=rng.randrange(40))).encode()),
    ("changed pages", lambda rng: changed(page(rng), rng)),
    ("crossed pages", crossed),
    (
        "changed records",
        lambda rng: (
            changed(RECORDS, rng)
            if rng.random() < 0.5
            else ("[{" + "".join(rng.choices(WORDS, k=rng.randrange(30)))).encode()
        ),
    ),
)


class Reader:
    """What a scraper keeps from one answer to the next, and what it came to."""

    def __init__(self) -> None:
        self._before = Exposition({})
        self._records = IterationStats()
        self._identities, self._buckets = IdentityWatch(), BucketReader()
        self.seen: Counter[str] = Counter()

    def read(self, body: bytes) -> None:
        """The whole way of one answer; AssertionError where it gives what it must not."""
        text = body.decode("utf-8", "replace")
        looks_like_exposition(text)
        if looks_like_iteration_stats(text) or text.startswith(("[", "{")) or len(body) % 16 == 0:
            self._records_of(text)
        if text.startswith("[") and len(body) % 16:
            return  # a page of the one kind is rarely one of the other
        exposition = parse_engine(text, buckets=len(body) % 2 == 0)
        self._check(canonical(exposition))
        source_counters(exposition)
        if exposition.families:
            list(self._identities.gaps(exposition))
        if len(body) % 2 == 0:
            changed = self._buckets.changed(text)
            self._check(changed)
            assert all(not math.isnan(float(dict(sample.labels)["le"])) for sample in changed), changed
            self.seen["with buckets"] += bool(changed)
        self.seen["with a fall"] += bool(falls(self._before, exposition))
        self.seen["with samples"] += any(exposition.families.values())
        self.seen["with faults"] += bool(exposition.faults)
        if len(body) % 16 == 0:
            parse(text)
        self._before = exposition

    def _records_of(self, text: str) -> None:
        self._records.add(text)
        samples = self._records.samples()
        self._check(samples)
        self.seen["with records"] += bool(samples)
        if self.seen["with records"] % 50 == 0:
            self._records = IterationStats()

    def _check(self, samples: list[CanonicalSample]) -> None:
        for sample in samples:
            assert math.isfinite(sample.value), sample
            assert base(sample.name) in ENGINE_METRICS, sample


def base(name: str) -> str:
    """A canonical name without a histogram's part."""
    for part in ("_sum", "_count", "_bucket"):
        if name.removesuffix(part) in ENGINE_METRICS:
            return name.removesuffix(part)
    return name


def main() -> None:
    """Run the cases, and say how many of what."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=int, nargs="?", default=CASES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-most", type=float, default=math.inf, help="seconds after which to stop and say so")
    asked = parser.parse_args()
    rng, reader = random.Random(asked.seed), Reader()
    began, slowest, ends = time.process_time(), 0.0, time.monotonic() + asked.at_most
    done = 0
    for number in range(asked.cases):
        if time.monotonic() > ends:
            break
        kind, make = KINDS[number % len(KINDS)]
        body = make(rng)
        before = time.process_time()
        try:
            reader.read(body)
        except Exception as error:
            print(f"case {number} ({kind}, seed {asked.seed}): {type(error).__name__}: {error}\n{body!r}")
            raise SystemExit(1) from error
        slowest = max(slowest, time.process_time() - before)
        done += 1
    took = time.process_time() - began
    each = ", ".join(f"{count:,} {what}" for what, count in sorted(reader.seen.items()))
    print(
        f"{done:,} of {asked.cases:,} cases of {len(KINDS)} kinds, seed {asked.seed}: none crashed; {each}; "
        f"{took:.0f} s of processor time, the slowest case {1000 * slowest:.1f} ms"
    )
    sys.exit(0)


if __name__ == "__main__":
    main()
