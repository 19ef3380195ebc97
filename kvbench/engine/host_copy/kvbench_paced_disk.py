"""A vLLM plugin: its filesystem tier with a stated read bandwidth. Runs inside the server's scheduler process.

Written against vLLM 0.32.0. Sizes in bytes, times in seconds.
"""

# vLLM is installed in the engine's environment only, so its classes are unknown to the type checker here.
# mypy: disable-error-code="import-not-found, misc, has-type"

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from kvbench_pace import Pace
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager
from vllm.v1.kv_offload.tiering.fs.thread_pool import DualQueueThreadPool


class PacedReads(DualQueueThreadPool):
    """vLLM's I/O threads, with reads held to a bandwidth that all of them share."""

    def __init__(
        self, n_read_threads: int, n_write_threads: int, pace: Pace, bytes_of_job: Callable[[int], int]
    ) -> None:
        self._pace = pace
        self._bytes_of_job = bytes_of_job
        super().__init__(n_read_threads, n_write_threads, thread_name_prefix="kvbench_paced_fs")

    def enqueue_load(self, job_id: int, n_tasks: int, tasks: Iterable[Callable[[], None]]) -> None:
        bytes_per_task = self._bytes_of_job(job_id) // n_tasks
        super().enqueue_load(job_id, n_tasks, [self._paced(task, bytes_per_task) for task in tasks])

    def _paced(self, task: Callable[[], None], n_bytes: int) -> Callable[[], None]:
        def run() -> None:
            started_at = time.monotonic()
            task()
            self._pace.pay(n_bytes, started_at)

        return run

    def shutdown(self, wait: bool = True) -> None:
        self._pace.close()
        super().shutdown(wait)


class PacedFileSystemTier(FileSystemTierManager):
    """vLLM's ``fs`` tier on a disk of a stated read bandwidth: a tier made bad on purpose, for tests of a gate.

    Takes the keys of ``fs`` and ``read_bandwidth_bytes_per_s``. vLLM counts its hits as ``disk`` and labels its
    metrics as those of ``fs``, so nothing but its speed tells it from the real one.
    """

    def __init__(
        self,
        *args: object,
        read_bandwidth_bytes_per_s: float,
        n_read_threads: int = 16,
        n_write_threads: int = 16,
        **kwargs: object,
    ) -> None:
        pace = Pace(float(read_bandwidth_bytes_per_s))
        super().__init__(*args, n_read_threads=n_read_threads, n_write_threads=n_write_threads, **kwargs)
        self.tier_type = "fs"
        self._pool.shutdown()
        self._pool = PacedReads(n_read_threads, n_write_threads, pace, self._bytes_of_job)

    def _bytes_of_job(self, job_id: int) -> int:
        return int(self._job_block_counts[job_id] * self._block_size)
