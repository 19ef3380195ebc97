"""One row a request: how many of its prompt tokens came from each source, and what that is known by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import pyarrow as pa

from kvbench.ledger.alone import split_by_counters
from kvbench.ledger.events import events_of
from kvbench.ledger.history import BlockHistory, Prompt
from kvbench.ledger.prompts import Prompts
from kvbench.ledger.residency import Asked, Residency
from kvbench.record.tables import LEDGER
from kvbench.workload.schedule import Schedule

__all__ = ["EVIDENCE", "RoundEvidence", "Splits", "account"]

EVIDENCE = {
    "engine": "the engine told the split of each request",
    "nothing cached": "all of the prompt was computed",
    "only tier": "there is no tier but the device",
    "kv events": "where the blocks lay when they were looked up, replayed from the engine's KV events",
    "counters": "what the engine's counters grew by while no other request could have moved them",
    "none": "the engine tells how much was cached, or not even that, and nothing tells in which tier",
}
"""Best first."""

Splits = Mapping[int, Mapping[str, int]]


@dataclass(frozen=True, eq=False)
class RoundEvidence:
    """What there is about one round of one arm."""

    requests: pd.DataFrame
    metrics: pd.DataFrame
    tiers: tuple[str, ...]
    """That the engine has, hot to cold."""
    kv_events: pd.DataFrame | None = None
    told: Splits | None = None
    """Cached tokens by tier that the engine itself told, by request id."""
    schedule: Schedule | None = None
    token_id_range: tuple[int, int] | None = None
    blocks_per_chunk: int = 1
    events_tell_tiers: bool = True
    """Whether the events tell of the tiers behind the device, too; LMCache tells nobody."""

    @cached_property
    def history(self) -> BlockHistory | None:
        """The events, replayed."""
        return None if self.kv_events is None else BlockHistory(events_of(self.kv_events))


def account(evidence: RoundEvidence) -> pa.Table:
    """Schema LEDGER, one row a request that was sent, in the order of the table of requests."""
    requests = evidence.requests
    sent = requests[requests["sent_s"].notna()]
    by_events = _by_events(evidence, sent)
    by_counters: Splits | None = None
    rows: list[dict[str, object]] = []
    columns = ["id", "prompt_tokens_engine", "prompt_tokens_planned", "cached_tokens"]
    for row in sent[columns].to_dict("records"):
        id_, cached = int(row["id"]), _whole(row["cached_tokens"])
        prompt = _whole(row["prompt_tokens_engine"]) or _whole(row["prompt_tokens_planned"])
        if prompt is None or cached is None:
            rows.append({"id": id_, "prompt_tokens": prompt, "evidence": "none"})
            continue
        split: dict[str, int] = {}
        if cached == 0:
            name = "nothing cached"
        elif evidence.told is not None and id_ in evidence.told:
            name, split = "engine", dict(evidence.told[id_])
        elif evidence.tiers == ("device",):
            name, split = "only tier", {"device": cached}
        elif id_ in by_events:
            name, split = "kv events", dict(by_events[id_])
        else:
            if by_counters is None:
                by_counters = split_by_counters(requests, evidence.metrics)
            split = dict(by_counters.get(id_, {}))
            name = "counters" if split else "none"
        rows.append(_row(id_, prompt, cached, split, name))
    return pa.Table.from_pylist(rows, schema=LEDGER)


def _row(id_: int, prompt: int, cached: int, split: Mapping[str, int], evidence: str) -> dict[str, object]:
    known = {tier: split.get(tier, 0) for tier in ("device", "host", "disk")}
    rest = cached - sum(known.values())
    return {
        "id": id_,
        "prompt_tokens": prompt,
        "computed": prompt - cached,
        **known,
        "unattributed": rest,
        "evidence": evidence,
    }


def _by_events(evidence: RoundEvidence, sent: pd.DataFrame) -> Splits:
    """Of every request that found something cached, in the order of sending."""
    history = evidence.history
    told = evidence.events_tell_tiers and evidence.schedule is not None and evidence.token_id_range is not None
    if not told or history is None:
        return {}
    residency = Residency(history, evidence.blocks_per_chunk, "disk" in evidence.tiers, "host" in evidence.tiers)
    found: dict[int, dict[str, int]] = {}
    hits = sent[(sent["cached_tokens"] > 0) & sent["first_token_s"].notna()]
    prompt = _prompt_of(evidence, residency.history.block_tokens)
    columns = ["id", "sent_s", "first_token_s", "cached_tokens"]
    for row in hits.sort_values("sent_s", kind="stable")[columns].to_dict("records"):
        id_, cached = int(row["id"]), int(row["cached_tokens"])
        split = residency.split(Asked(row["sent_s"], row["first_token_s"], prompt(id_, cached), cached))
        if split is not None:
            found[id_] = {"device": split.device, "host": split.host, "disk": split.disk}
    return found


def _prompt_of(evidence: RoundEvidence, block_tokens: int) -> Callable[[int, int], Prompt]:
    """A prompt as far as it was cached, in whole blocks."""
    if evidence.schedule is None or evidence.token_id_range is None:
        raise ValueError("prompts cannot be made again without their schedule")
    requests = evidence.requests
    answered = requests[requests["output_tokens_received"].notna()]
    received = dict(zip(answered["id"].astype(int), answered["output_tokens_received"].astype(int), strict=True))
    prompts = Prompts(evidence.schedule, evidence.token_id_range, received)
    return lambda id_, cached: prompts.tokens(id_, -(-cached // max(block_tokens, 1)) * block_tokens)


def _whole(value: float | None) -> int | None:
    return None if value is None or pd.isna(value) else int(value)
