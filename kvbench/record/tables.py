"""Arrow schemas of a run's tables. Times are seconds from the round's start on the monotonic clock."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["HOST", "METRICS", "REQUESTS", "TOKENS"]

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
    ]
)
TOKENS = pa.schema([("id", pa.int64()), ("index", pa.int32()), ("t_s", pa.float64())])
METRICS = pa.schema(
    [("t_s", pa.float64()), ("name", pa.string()), ("labels", pa.string()), ("value", pa.float64())]
)
"""`labels` is a JSON object with sorted keys; `name` is canonical."""
HOST = pa.schema([("t_s", pa.float64()), ("name", pa.string()), ("value", pa.float64())])
"""Names carry their unit: `cpu_busy_cores`, `cpu_foreign_cores`, `steal_cores`, `memory_available_bytes`, ..."""
