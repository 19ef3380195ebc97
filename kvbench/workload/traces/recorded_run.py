"""A run that kvbench recorded, as a trace: what one round's schedule sent, at the times at which it was sent.

Blocks are those of the schedule's contents, which the run keeps; prompts themselves are never stored.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from kvbench.errors import InputError, KvbenchError, Where
from kvbench.workload.blocks import BlockPaths, block_paths
from kvbench.workload.storage import read_schedule
from kvbench.workload.traces.trace import Columns, Record, Trace

__all__ = ["BLOCK_TOKENS", "read_run"]

BLOCK_TOKENS = 16
"""Where the run does not say what its engine's block was."""
_ROUND = re.compile(r"round-\d+$")


def read_run(path: Path, block_tokens: int | None = None) -> Trace:
    """Of a run's folder the first round of the first arm; of a round's folder that one. InputError: neither."""
    whole = path.resolve()
    round_ = whole if _ROUND.match(whole.name) else _first_round(whole)
    run = round_.parents[2]
    stored = run / "schedules" / f"{round_.name}.parquet"
    try:
        schedule = read_schedule(stored)
    except (KvbenchError, OSError) as error:
        raise InputError(f"the schedule of this round cannot be read: {error}", where=Where(stored)) from None
    size = block_tokens or _block_tokens(run) or BLOCK_TOKENS
    paths = block_paths(schedule, size)
    return _trace(path, paths, _sent(round_), size)


def _first_round(run: Path) -> Path:
    rounds = sorted(run.glob("arms/*/round-*"), key=lambda found: (found.parent.name, found.name))
    whole = [found for found in rounds if _ROUND.match(found.name) and (found / "requests.parquet").is_file()]
    if not whole:
        raise InputError(
            "is a folder, and holds no recorded round", where=Where(run), do="name a trace file, or a run's folder"
        )
    return whole[0]


def _sent(round_: Path) -> dict[int, tuple[float, int]]:
    """(When it was sent, tokens that came back) of every request that was sent."""
    import pyarrow.parquet as pq

    names = ["id", "sent_s", "intended_s", "output_tokens_received"]
    try:
        rows = pq.read_table(round_ / "requests.parquet", columns=names).to_pylist()
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"the requests of this round cannot be read: {error}", where=Where(round_)) from None
    found: dict[int, tuple[float, int]] = {}
    for row in rows:
        if row["sent_s"] is not None:
            time_s = row["sent_s"] if row["intended_s"] is None else row["intended_s"]
            found[row["id"]] = (time_s, row["output_tokens_received"] or 0)
    return found


def _block_tokens(run: Path) -> int | None:
    """As the engine of some round said."""
    try:
        manifest = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    for record in manifest.get("rounds", []) if isinstance(manifest, dict) else []:
        value = (record.get("capacities") or {}).get("block_tokens") if isinstance(record, dict) else None
        if isinstance(value, int | float) and value >= 1:
            return int(value)
    return None


def _trace(path: Path, paths: BlockPaths, sent: dict[int, tuple[float, int]], size: int) -> Trace:
    first = np.concatenate(([0], np.cumsum(paths.run_blocks, dtype=np.int64))).tolist()
    columns = Columns(path)
    for request in paths.requests:
        planned = request.request
        if planned.id not in sent:
            continue
        time_s, output = sent[planned.id]
        blocks = [block for run in request.prompt for block in range(first[run], first[run + 1])]
        columns.add(
            Record(
                time=time_s,
                input_tokens=request.prompt_tokens,
                output_tokens=output,
                blocks=blocks,
                session=planned.session,
                label=planned.class_,
            ),
            Where(path),
        )
    return columns.trace("kvbench", 1.0, size)
