"""Measures the disk tier's path: chunks written and read back by its threads, one file each, as vLLM does it.

Bounded in bytes, files and time; only inside a directory of its own, made, marked and removed. Bytes, seconds.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from kvbench.doctor.host import Disk, DiskTrial, Spread
from kvbench.engine.scratch import scratch
from kvbench.errors import InputError

__all__ = ["TRIAL_BYTES", "TRIAL_S", "try_disk"]

TRIAL_BYTES = 128 * 2**20
TRIAL_S = 1.5
"""Of each direction."""

FEWEST_FILES = 4
MOST_FILES = 2048
FREE_SHARE = 0.05
"""Of the free space."""

BUFFER_BYTES = 256 * 2**20
"""Of all threads together; with larger chunks fewer threads are used."""

LARGEST_CHUNK_BYTES = 64 * 2**20
PAGE_BYTES = mmap.PAGESIZE


def try_disk(
    disk: Disk,
    chunk_bytes: int,
    write_threads: int,
    read_threads: int,
    *,
    trial_bytes: int = TRIAL_BYTES,
    trial_s: float = TRIAL_S,
) -> DiskTrial | str:
    """What the disk did, or in one sentence why it was not tried."""
    chunk = min(LARGEST_CHUNK_BYTES, -(-chunk_bytes // PAGE_BYTES) * PAGE_BYTES)
    files = min(MOST_FILES, int(min(trial_bytes, disk.free * FREE_SHARE)) // chunk)
    if files < FEWEST_FILES:
        return f"{disk.free} bytes are free, too little to write {FEWEST_FILES} chunks of {chunk} bytes there"
    threads = max(1, min(max(write_threads, read_threads), BUFFER_BYTES // chunk, files))
    try:
        with _own_directory(Path(disk.path)) as directory, ThreadPoolExecutor(threads) as pool:
            trial = _Trial(directory, chunk, _direct(directory))
            writers, readers = min(write_threads, threads), min(read_threads, threads)
            names = [_name(directory) for _ in range(files)]
            written, write_s = _carried_out(pool, writers, names, trial.write, trial_s)
            done = [name for name, _ in written]
            read, read_s = _carried_out(pool, readers, done, trial.read, trial_s)
    except InputError as error:
        return error.what
    except OSError as error:
        return f"writing there failed: {error.strerror or error}"
    return DiskTrial(
        chunk_bytes=chunk,
        write_threads=writers,
        read_threads=readers,
        files=len(written),
        direct=trial.direct,
        write_bytes_per_s=len(written) * chunk / write_s,
        write=_spread([took for _, took in written]),
        read_bytes_per_s=len(read) * chunk / read_s,
        read=_spread([took for _, took in read]),
    )


@contextmanager
def _own_directory(path: Path) -> Iterator[Path]:
    """Under the tier's path, with a lease beside its mark: whatever happens, a later command removes it."""
    with ExitStack() as stack:
        try:
            place = stack.enter_context(scratch("doctor", path))
        except OSError as error:
            raise InputError(f"tiers.disk.path: cannot make a directory under {path}: {error.strerror}") from None
        yield place.directory


def _name(directory: Path) -> Path:
    """vLLM's own layout: three digits, two digits and the group, the rest."""
    digest = secrets.token_hex(32)
    return directory / digest[:3] / f"{digest[3:5]}_g0" / f"{digest}.bin"


def _direct(directory: Path) -> bool:
    """Whether the page cache can be gone round here; found out by writing one page."""
    file = directory / "direct"
    with mmap.mmap(-1, PAGE_BYTES) as page:
        try:
            handle = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return False
        try:
            os.write(handle, page)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return False
        finally:
            os.close(handle)
            file.unlink()
    return True


class _Trial:
    """One buffer a thread, aligned to pages as direct reads and writes want them."""

    def __init__(self, directory: Path, chunk: int, direct: bool) -> None:
        self.direct = direct
        self._chunk = chunk
        self._flags = os.O_DIRECT if direct else 0
        self._local = threading.local()

    def _buffer(self) -> mmap.mmap:
        buffer: mmap.mmap | None = getattr(self._local, "buffer", None)
        if buffer is None:
            buffer = mmap.mmap(-1, self._chunk)
            # Random, so that a file system that compresses or finds equal blocks gains nothing.
            buffer.write(np.random.default_rng().bytes(self._chunk))
            self._local.buffer = buffer
        return buffer

    def write(self, file: Path) -> float:
        """Beside its name first, then renamed; without O_DIRECT flushed, or the page cache would be measured."""
        buffer = self._buffer()
        buffer[:16] = secrets.token_bytes(16)
        temporary = file.with_suffix(".tmp")
        started = time.perf_counter()
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | self._flags, 0o600)
        try:
            if os.write(handle, buffer) != self._chunk:
                raise OSError(errno.EIO, "a chunk was written in part")
            if not self.direct:
                os.fdatasync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
        temporary.replace(file)
        return time.perf_counter() - started

    def read(self, file: Path) -> float:
        """Whole, as a promotion does."""
        buffer = self._buffer()
        started = time.perf_counter()
        handle = os.open(file, os.O_RDONLY | self._flags)
        try:
            if os.readv(handle, [buffer]) != self._chunk:
                raise OSError(errno.EIO, "a chunk was read in part")
        finally:
            os.close(handle)
        return time.perf_counter() - started


def _carried_out(
    pool: ThreadPoolExecutor, threads: int, names: list[Path], act: Callable[[Path], float], limit_s: float
) -> tuple[list[tuple[Path, float]], float]:
    """Each thread takes the next file until none is left or time is up, but one at least: a disk is never told
    unmeasured because something else held the processors. (file, seconds) of each; seconds of all."""
    waiting, done = iter(names), list[tuple[Path, float]]()
    lock = threading.Lock()
    started = time.perf_counter()

    def work() -> None:
        while True:
            with lock:
                name = next(waiting, None)
            if name is None:
                return
            took = act(name)
            with lock:
                done.append((name, took))
            if time.perf_counter() - started >= limit_s:
                return

    for result in [pool.submit(work) for _ in range(threads)]:
        result.result()
    return done, time.perf_counter() - started


def _spread(took: list[float]) -> Spread:
    median, p99 = np.quantile(took, (0.5, 0.99))
    return Spread(float(median), float(p99))
