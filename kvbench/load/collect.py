"""The master's side of recording: workers' batches checked, counted and written into the round's files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from kvbench.load.messages import BadMessageError
from kvbench.load.plan import LoadPlan
from kvbench.load.recorder import Recorder
from kvbench.record.tables import REQUESTS, TOKENS
from kvbench.workload.schedule import Schedule

__all__ = ["Collector"]


class Collector:
    """Takes the batches of all workers; knows whose rows are missing."""

    def __init__(self, recorder: Recorder, plan: LoadPlan, shares: Sequence[Schedule]) -> None:
        self._recorder = recorder
        self._plan = plan
        self._missing = [{request.id for request in share.in_order()} for share in shares]
        self._owner = {id_: worker for worker, ids in enumerate(self._missing) for id_ in ids}
        self._planned = [len(share) for share in shares]
        self._tokens = [0] * len(shares)

    def take(self, worker: int, table: Literal["requests", "tokens"], blob: bytes) -> None:
        """Write one batch. BadMessageError when it is not the worker's share of what was asked for."""
        schema = REQUESTS if table == "requests" else TOKENS
        try:
            batch = pa.ipc.read_record_batch(pa.py_buffer(blob), schema)
            batch.validate(full=True)
        except (pa.ArrowException, OSError, ValueError, EOFError) as error:
            raise BadMessageError(f"rows of {table} cannot be read: {str(error)[:200]}") from error
        if table == "requests":
            self._check_requests(worker, batch)
        else:
            self._check_tokens(worker, batch)
        self._recorder.append(table, batch)

    def _check_requests(self, worker: int, batch: pa.RecordBatch) -> None:
        expected = {"arm": self._plan.arm, "round": self._plan.round, "worker": worker}
        for name, value in expected.items():
            if pc.unique(batch.column(name)).to_pylist() != [value]:
                raise BadMessageError(f"rows with another {name} than {value}")
        ids = batch.column("id").to_pylist()
        if len(set(ids)) != len(ids) or not self._missing[worker].issuperset(ids):
            raise BadMessageError("rows of requests that are not its own, or twice")
        self._missing[worker].difference_update(ids)

    def _check_tokens(self, worker: int, batch: pa.RecordBatch) -> None:
        if any(self._owner.get(id_) != worker for id_ in pc.unique(batch.column("id")).to_pylist()):
            raise BadMessageError("tokens of requests that are not its own")
        self._tokens[worker] += batch.num_rows

    def shortfall(self, worker: int, rows: int, tokens: int) -> str | None:
        """What has not come of the `rows` and `tokens` that the worker recorded; None: everything is here."""
        planned, missing = self._planned[worker], len(self._missing[worker])
        if missing or rows != planned:
            return f"{planned - missing} of its {planned} rows came, it recorded {rows}"
        if self._tokens[worker] != tokens:
            return f"{self._tokens[worker]} of its {tokens} token times came"
        return None
