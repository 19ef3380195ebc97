"""Arrow schemas of a run's tables. Times are seconds from the round's start on the monotonic clock."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["HOST", "KV_EVENTS", "LEDGER", "LIVES", "METRICS", "REQUESTS", "TOKENS"]

REQUESTS = pa.schema(
    [
        ("id", pa.int64()),
        ("arm", pa.string()),
        ("round", pa.int32()),
        ("phase", pa.string()),  # "prime" before time zero
        ("measured", pa.bool_()),
        ("class", pa.string()),
        ("session", pa.int64()),
        ("turn", pa.int32()),
        ("intended_s", pa.float64()),
        ("intended_basis", pa.string()),  # "schedule" | "previous turn"
        ("sent_s", pa.float64()),
        ("first_token_s", pa.float64()),  # null: no token came
        ("last_token_s", pa.float64()),
        ("prompt_tokens_planned", pa.int64()),
        ("prompt_tokens_engine", pa.int64()),  # null: the engine did not say
        ("cached_tokens", pa.int64()),  # null: the engine did not say
        ("output_tokens_asked", pa.int64()),
        ("output_tokens_received", pa.int64()),
        (
            "status",
            pa.string(),
        ),  # "ok" | "error" | "unsent" (due after the end) | "aborted" (the user left as planned)
        ("error", pa.string()),  # "<cause>: <detail>", cause one of load.outcome.CAUSES
        ("prompt_digest", pa.string()),
        ("output_digest", pa.string()),
        ("worker", pa.int32()),
        ("prefix", pa.int64()),
        ("repeat_of", pa.int64()),
        ("finish_reason", pa.string()),
        ("http_status", pa.int32()),
        ("ended_s", pa.float64()),  # when the request was over, whether it succeeded or not
        ("multi_token_events", pa.int32()),  # events that carried more than one token
        ("branch", pa.int32()),  # side branch of the session, from 0; null: one of its own turns
        ("holdout", pa.bool_()),  # sent past the secondary tier, to see what that tier is worth
        ("tenant", pa.int32()),  # whose it is, in a workload with canaries
        ("foreign_canary", pa.int32()),  # tenant whose canary came out, -1 none; null: it could not be looked for
        # When the connection stood that was made for it, with its TLS; null: it went out on one that was there.
        # `sent_s` is when the client turned to the request, so the time between is the network's and the server's.
        ("connected_s", pa.float64()),
        ("leaves", pa.bool_()),  # its user is to leave early, whether or not the answer is over before
    ]
)
TOKENS = pa.schema([("id", pa.int64()), ("index", pa.int32()), ("t_s", pa.float64())])
METRICS = pa.schema(
    [("t_s", pa.float64()), ("name", pa.string()), ("labels", pa.string()), ("value", pa.float64())]
)
"""`labels` is a JSON object with sorted keys; `name` is canonical."""
HOST = pa.schema([("t_s", pa.float64()), ("name", pa.string()), ("value", pa.float64())])
"""Names carry their unit: `cpu_busy_cores`, `cpu_foreign_cores`, `steal_cores`, `memory_available_bytes`, ..."""

LEDGER = pa.schema(
    [
        ("id", pa.int64()),
        ("prompt_tokens", pa.int64()),
        ("computed", pa.int64()),
        ("device", pa.int64()),
        ("host", pa.int64()),
        ("disk", pa.int64()),
        ("unattributed", pa.int64()),  # cached, and it is not known in which tier
        ("evidence", pa.string()),  # what the split rests on, one of ledger.account.EVIDENCE
    ]
)
"""Where each request's prompt tokens came from. The columns of a row add up to its prompt; null: the engine did not
say how much of the prompt was cached."""
LIVES = pa.schema(
    [
        ("tier", pa.string()),
        ("stored", pa.int64()),  # blocks, or chunks of several, once for each stay
        ("removed", pa.int64()),
        ("never_read", pa.int64()),  # null: reads leave no trace in this tier
        ("lifetime_p50_s", pa.float64()),  # of stays that ended
        ("reuse_gap_p50_s", pa.float64()),  # from being stored or read to being read
    ]
)
"""What became of the blocks in each tier during a round."""
KV_EVENTS = pa.schema(
    [
        ("batch", pa.int64()),  # the engine's sequence number
        ("t_s", pa.float64()),
        ("kind", pa.string()),  # "stored" | "removed" | "cleared" | "lost" (batches that never came)
        ("tier", pa.string()),  # "device" | "host" | "disk", else the engine's own word
        ("hashes", pa.list_(pa.binary())),
        ("parent", pa.binary()),  # of the first hash; null: it is the first block of a prompt, or not told
        ("tokens", pa.list_(pa.int32())),  # of all the blocks; empty: not told
        ("block_tokens", pa.int32()),
        ("group", pa.int32()),  # of the KV cache, where a model has several
    ]
)
"""What an engine said about its blocks, in the order in which it said it."""
