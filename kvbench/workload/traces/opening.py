"""Opens a trace file as a stream of bytes; gzip and Zstandard are recognised by their content, not their name."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from kvbench.errors import InputError, Where

__all__ = ["opened"]

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed as they are read; what the system says about reading becomes an InputError."""
    import pyarrow as pa

    try:
        with path.open("rb") as file:
            head = file.read(len(_ZSTD))
            file.seek(0)
            if head.startswith(_GZIP):
                yield cast("IO[bytes]", gzip.GzipFile(fileobj=file))
            elif head == _ZSTD:
                with pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd") as unpacked:
                    yield io.BufferedReader(unpacked, 1 << 20)
            else:
                yield file
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise InputError("the compressed file is damaged or cut short", where=Where(path)) from None
    except OSError as error:
        if error.errno is None:  # not the system's word but the decompressor's
            raise InputError("the compressed file is damaged or cut short", where=Where(path)) from None
        raise InputError(f"this trace cannot be read: {error.strerror or error}", where=Where(path)) from None
