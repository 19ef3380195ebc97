"""Lines are read whole and in order, in bounded memory, whatever stands in a file."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.errors import InputError
from kvbench.workload.traces import lines
from kvbench.workload.traces.bad_lines import BadLines
from kvbench.workload.traces.reading import read_trace

RECORD = {"timestamp": 0, "input_length": 128, "output_length": 1, "hash_ids": [1, 2]}
LOG = {"timestamp": 0, "prompt": "word " * 40}
BURST = ("Timestamp,Model,Request tokens,Response tokens", "1,ChatGPT,100,7", "2,ChatGPT,100,7")


@settings(max_examples=300, deadline=None)
@given(
    content=st.lists(st.sampled_from([b"a", b"bc\r", b"\n", b"\n\n", b"def" * 4, b"\0"]), max_size=40).map(
        b"".join
    ),
    chunk=st.integers(1, 9),
    longest=st.integers(1, 12),
)
def test_lines_are_those_of_the_file_less_what_is_too_long(content: bytes, chunk: int, longest: int) -> None:
    with mock.patch.multiple(lines, _CHUNK_BYTES=chunk, LONGEST_LINE_BYTES=longest):
        found = list(lines.lines_of(io.BytesIO(content)))
    told = io.BytesIO(content).readlines()
    assert len(found) == len(told)
    for mine, line in zip(found, told, strict=True):
        assert mine is lines.TOO_LONG or mine == line
        assert (mine is lines.TOO_LONG) <= (len(line) > longest)
        assert len(line) <= longest + chunk or mine is lines.TOO_LONG


@pytest.mark.parametrize("kind", ["mooncake", "requests", "burstgpt"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_line_without_an_end_is_a_bad_line(tmp_path: Path, kind: str, packed: bool) -> None:
    """Given lines of which one is longer than any trace's, then it is told by its number and the others count."""
    good = {"mooncake": [json.dumps(RECORD)] * 3, "requests": [json.dumps(LOG)] * 3, "burstgpt": [*BURST]}[kind]
    text = "\n".join([*good[:2], "[" * 5000, *good[2:]]).encode()
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(text) if packed else text)
    bad = BadLines(limit=1)
    with mock.patch.multiple(lines, _CHUNK_BYTES=256, LONGEST_LINE_BYTES=1024):
        assert len(read_trace(path, bad_lines=bad)) == (3 if kind != "burstgpt" else 2)
        assert (bad.count, bad.first[0][0]) == (1, 3)
        assert "a line of more than" in bad.first[0][1]
        with pytest.raises(InputError, match=":3: a line of more than"):
            read_trace(path)


def test_a_file_without_lines_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    """Given three gigabytes that never end a line, packed to little, then less than one is used to say so."""
    path = tmp_path / "endless.zst"
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        for _ in range(48):
            file.write(b"7" * (64 << 20))

    for options in ((), ("--format", "weka"), ("--format", "requests"), ("--format", "azure")):
        command = [sys.executable, "-m", "kvbench", "analyze", str(path), "--bad-lines", "0", *options]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        told = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 2, told
        assert "endless.zst" in told
        assert "Traceback" not in told
        assert usage.ru_maxrss < 2**20, "in KiB"
