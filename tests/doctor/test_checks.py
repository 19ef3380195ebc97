"""Every check is content with a good host, and each can be made to complain by the one thing that it looks at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvbench.doctor.check import Check, document, exit_code
from kvbench.doctor.examine import EVERYTHING, essential, examine
from kvbench.doctor.host import CgroupMemory, Endurance, Host, Leftover, Limits, Load, Nic, NumaNode
from kvbench.doctor.probe_costs import ProbeCosts
from kvbench.spec.profile import DeviceTier, Profile
from tests.doctor.good_host import DISK, GIB, GPU, HOST, MEMORY, NODES, TRIAL, embedded, profile, without_disk

ATTACHED = Profile.model_validate(
    {"name": "there", "engine": {"kind": "attached", "base_url": "http://127.0.0.1:1", "model": "m"}}
)
EMULATED = Profile.model_validate(
    {
        "name": "made-up",
        "engine": {"kind": "emulated", "model": "tiny", "inject": {"useless_hits": True}},
        "tiers": {"host": {"size": "64MiB"}, "disk": {"path": "/mnt/kv"}},
    }
)
IMAGE = {"command": None, "image": "vllm@sha256:" + "0" * 64}
LEFT = (Leftover("/dev/shm/vllm_offload_a.mmap", GIB),)
PROBED = ProbeCosts("costs.json", {"computed": 1e-4}, {})
"""Of 128 KiB a token, 1.22 GiB are computed in a second."""


def check(id_: str, host: Host = HOST, of: Profile | None = None) -> Check:
    """The check of that name, of the usual profile unless another is given."""
    found = {row.id: row for row in examine(of or profile(), host)}
    return found[id_]


def memory(**changed: Any) -> Host:
    return replace(HOST, memory=replace(MEMORY, **changed))


def disk(**changed: Any) -> Host:
    return replace(HOST, disk=replace(DISK, **changed))


def trial(**changed: Any) -> Host:
    return disk(trial=replace(TRIAL, **changed))


def gpu(**changed: Any) -> Host:
    return replace(HOST, gpus=(replace(GPU, **changed),))


def load(**changed: Any) -> Host:
    return replace(HOST, load=replace(HOST.load or Load(1, None, None, None, None, None, 0), **changed))


def found(**changed: Any) -> Host:
    assert HOST.engine is not None
    return replace(HOST, engine=replace(HOST.engine, **changed))


def model(**changed: Any) -> Host:
    assert HOST.model is not None
    return replace(HOST, model=replace(HOST.model, **changed))


def test_a_good_host_passes_every_check() -> None:
    rows = examine(profile(), HOST)
    assert {row.id: row.text for row in rows if row.status != "ok"} == {}
    assert exit_code(rows) == 0
    assert len({row.id for row in rows}) == len(rows) >= len(EVERYTHING) - 1  # all but the one for emulated engines


FAILURES: list[tuple[str, Host, str]] = [
    ("environment", found(found=False, detail="vllm cannot be found", do="install it"), "cannot be found"),
    ("engine_version", found(version="0.31.2"), "0.32.0 is pinned, and 0.31.2 is installed"),
    ("model_files", model(present=False), "holds no model"),
    ("model_files", model(missing=("a.safetensors is missing",)), "a.safetensors is missing"),
    ("port", replace(HOST, port=replace(HOST.port, free=False, holders=(17,))), "in use by process 17"),
    ("memory", memory(available=18 * GIB), "18 GiB of 256 GiB available"),
    ("cgroup_memory", replace(HOST, cgroup=CgroupMemory(1, "/g", 20 * GIB, 4 * GIB, 0)), "leaves 16 GiB"),
    ("overcommit", memory(overcommit=2, commit_limit=20 * GIB), "10 GiB may still be promised"),
    ("swap", load(swap_bytes_per_s=5e6), "swapping now"),
    ("dev_shm", replace(HOST, shm=replace(HOST.shm, free=15 * GIB)), "15 GiB free"),
    ("dev_shm", replace(HOST, shm=None), "there is no /dev/shm"),
    ("open_files", replace(HOST, limits=Limits(None, None, 512, 512)), "the hard limit is 512"),
    ("gpu", replace(HOST, gpus=(), gpu_absent="no GPU: none"), "no GPU"),
    ("gpu_memory", gpu(memory_free=60 * GIB), "60 GiB of 80 GiB free, 68 GiB asked for (tiers.device.memory_"),
    ("pcie", gpu(lanes=4), "5 × 4 lanes now, 5 × 16 possible"),
    ("host_to_device", gpu(to_device_bytes_per_s=12e9), "from pinned memory"),
    ("device_to_host", gpu(from_device_bytes_per_s=12e9), "into pinned memory"),
    ("numa", replace(HOST, numa=tuple(replace(n, available=4 * GIB) for n in NODES)), "8 GiB available"),
    ("disk_path", disk(is_directory=False), "which is a file"),
    ("disk_path", disk(writable=False), "may not write"),
    ("disk_path", disk(read_only=True), "read-only"),
    ("disk_space", disk(free=100 * GIB), "100 GiB free"),
    ("disk_inodes", disk(files_free=1000), "1,000 more files fit"),
    ("disk_read", replace(trial(read_bytes_per_s=50e6), probe=PROBED), "computing makes 1.22 GiB/s of KV"),
    ("disk_endurance", disk(endurance=Endurance("nvme0n1", 1.07, 0.02, critical=False, written=None)), "107%"),
    ("disk_endurance", disk(endurance=Endurance("nvme0n1", 0.1, 0.02, critical=True, written=None)), "10%"),
    ("clock", replace(HOST, clock=replace(HOST.clock, source="jiffies", resolution_s=4e-3)), "jiffies"),
    ("load", load(foreign_cores=13.0), "others use 13.00 of 16 cores"),
]  # fmt: skip
WARNINGS: list[tuple[str, Host, str]] = [
    ("model_files", model(present=False, made_on_use=True), "not here yet"),
    ("huge_pages", memory(huge_total=64 * GIB, huge_free=64 * GIB), "64 GiB lie reserved"),
    ("overcommit", memory(overcommit=2), "vm.overcommit_memory is 2"),
    ("swap", memory(swap_total=8 * GIB, swap_free=7 * GIB), "may be swapped out"),
    ("dev_shm_leftovers", replace(HOST, shm=replace(HOST.shm, leftovers=LEFT)), "of 1 GiB that no process"),
    ("memlock", replace(HOST, limits=Limits(8 * 2**20, None, 65_536, 65_536)), "8 MiB may be locked"),
    ("open_files", replace(HOST, limits=Limits(None, None, 512, 65_536)), "512 files may be open"),
    ("pcie", gpu(generation=4, lanes=16), "4 × 16 lanes now"),
    ("pcie", gpu(lanes=15), "5 × 15 lanes now"),
    ("host_to_device", gpu(to_device_bytes_per_s=30e9), "its link carries"),
    ("gpu_load", gpu(busy=0.4), "40% busy"),
    ("numa", replace(HOST, numa=(replace(NODES[0], available=4 * GIB), NODES[1])), "2.1 times as far"),
    ("numa", replace(disk(filesystem="nfs4"), nics=(Nic("eth0", 1, None),)), "crosses nodes"),
    ("memory_copy", replace(HOST, copy=replace(HOST.copy, bytes_per_s=0.5e9)), "copied by one thread"),
    ("disk_filesystem", disk(filesystem="tmpfs"), "would lie in memory"),
    ("disk_filesystem", disk(filesystem="overlay"), "container's own layer"),
    ("disk_filesystem", disk(filesystem="fuse.sshfs"), "crosses a network"),
    ("disk_filesystem", disk(rotational=True), "rotates"),
    ("disk_direct", trial(direct=False), "O_DIRECT is refused"),
    ("disk_write", trial(write_bytes_per_s=50e6), "stores fall behind"),
    ("disk_read", trial(read_bytes_per_s=50e6), "every promotion loses"),
    ("disk_endurance", disk(endurance=Endurance("nvme0n1", 0.85, None, critical=False, written=None)), "85%"),
    ("clock", replace(HOST, clock=replace(HOST.clock, source="hpet", read_s=3e-6)), "slow to read"),
    ("governor", replace(HOST, governors=("powersave",) * 4), "4 of 4 processors run under powersave"),
    ("load", load(foreign_cores=1.5), "others use 1.50"),
    ("load", load(io_pressure=0.3), "wait 30% for disk"),
    ("budget_host", gpu(to_device_bytes_per_s=1e8), "every promotion loses"),
    ("budget_disk", trial(read_bytes_per_s=50e6), "every promotion loses"),
]  # fmt: skip
SKIPS: list[tuple[str, Host, str]] = [
    ("memory", replace(HOST, memory=None), "does not tell"),
    ("cgroup_memory", replace(HOST, cgroup=None), "no control group"),
    ("huge_pages", replace(HOST, memory=None), "does not tell"),
    ("dev_shm_leftovers", replace(HOST, shm=replace(HOST.shm, leftovers=None)), "not looked through"),
    ("memlock", replace(HOST, limits=None), "cannot be read"),
    ("pcie", replace(HOST, gpus=(), gpu_absent="no GPU: none"), "no GPU"),
    ("pcie", gpu(generation=1, to_device_bytes_per_s=None), "an idle GPU lowers its generation"),
    ("pcie", gpu(generation_max=None), "do not tell their links"),
    ("host_to_device", gpu(to_device_bytes_per_s=None, not_measured="cuInit answered 100"), "cuInit answered 100"),
    ("gpu_load", gpu(busy=None), "do not tell their load"),
    ("numa", replace(HOST, numa=()), "does not tell"),
    ("memory_copy", replace(HOST, copy=None, copy_not_measured="not asked for"), "not asked for"),
    ("disk_inodes", disk(files_total=0), "no fixed number of files"),
    ("disk_read", disk(trial=None, not_tried="too full"), "too full"),
    ("disk_endurance", disk(endurance=None), "does not tell its wear"),
    ("clock", replace(HOST, clock=None), "does not tell"),
    ("governor", replace(HOST, governors=()), "no governor here"),
    ("load", load(foreign_cores=None), "does not tell"),
    ("budget_host", model(kv_bytes_per_token=None), "KV bytes of a token are not known"),
    ("budget_host", model(parameters=None), "what computing a token costs is not known"),
    ("budget_disk", disk(trial=None, not_tried="too full"), "the disk was not measured: too full"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "id_", "host", "words"),
    [
        *(("fail" if row[0] != "gpu" else "warn", *row) for row in FAILURES),
        *(("warn", *row) for row in WARNINGS),
        *(("skipped", *row) for row in SKIPS),
    ],
)
def test_one_thing_wrong_is_told_with_what_to_do(status: str, id_: str, host: Host, words: str) -> None:
    row = check(id_, host)
    assert (row.status, words in row.text) == (status, True), row
    assert row.do or status == "skipped"
    assert exit_code([row]) == (4 if status == "fail" else 0)


def test_every_check_can_complain() -> None:
    told = {row[0] for row in (*FAILURES, *WARNINGS)} | {"over_allocation", "disk_growth", "emulated"}
    assert {row.id for row in examine(profile(), HOST)} <= told


def no_share() -> Profile:
    """The share of GPU memory is left to vLLM."""
    whole = profile()
    return whole.model_copy(update={"tiers": whole.tiers.model_copy(update={"device": DeviceTier()})})


OF_A_PROFILE: list[tuple[str, Profile, str, str]] = [
    ("engine_version", profile(version=None), "warn", "the profile pins no version; 0.32.0 is installed"),
    ("engine_version", profile(version=None, **IMAGE), "skipped", "pins no version"),
    ("port", profile(args={}), "ok", "is free"),
    ("memory", profile(host={"size": 300 * GIB}), "fail", "300 GiB for the host tier"),
    ("memory", profile(args={"tensor-parallel-size": 4}), "ok", "12 GiB for its processes"),
    ("gpu", profile(args={"tensor-parallel-size": 4}), "fail", "the profile uses 4"),
    ("memory", profile(host={"size": 60 * GIB}, args={"data-parallel-size": 4}), "fail", "240 GiB for the host"),
    ("memory", profile(args={"data-parallel-size": 8, "data-parallel-size-local": 2}), "ok", "6 GiB for its proc"),
    ("gpu", profile(args={"data-parallel-size": 2, "tensor_parallel_size": 2}), "fail", "the profile uses 4"),
    ("gpu", profile(kind="tensorrt-llm", args={"cp_size": 2}, host={}), "fail", "the profile uses 2"),
    ("dev_shm", profile(host={"size": 41 * GIB}, args={"data-parallel-size": 3}), "fail", "puts 123 GiB"),
    ("gpu_memory", profile(), "ok", "68 GiB asked for (tiers.device.memory_utilization: 0.85)"),
    ("gpu_memory", no_share(), "ok", "73.6 GiB asked for (vLLM's default share of 0.92)"),
    ("gpu_memory", profile(args={"kv-cache-memory-bytes": 90 * GIB}), "fail", "90 GiB asked for (kv-cache-memory"),
    ("gpu_memory", embedded(), "skipped", "takes no memory of a GPU"),
    ("gpu_memory", profile(kind="tensorrt-llm", args={}, host={}), "ok", "of which the engine takes its share"),
    ("dev_shm", profile(host={"size": 119.5 * GIB}, args={"tensor-parallel-size": 2}), "fail", "puts 120 GiB"),
    ("dev_shm", profile(**IMAGE), "ok", "the container gets a /dev/shm"),
    ("dev_shm", profile(container={"shm_size": "1GiB"}, **IMAGE), "fail", "a /dev/shm of 1 GiB"),
    ("memlock", profile(**IMAGE), "skipped", "limits of its own"),
    ("open_files", profile(**IMAGE), "skipped", "limits of its own"),
    ("cgroup_memory", profile(**IMAGE), "skipped", "not in this process's control group"),
    ("over_allocation", without_disk(version="0.30.1"), "ok", "up to 35 GiB in all"),
    ("over_allocation", profile(host={}), "skipped", "no host tier"),
    ("disk_growth", profile(disk={"size_limit": None}), "warn", "evicts nothing"),
    ("disk_space", profile(disk={"size_limit": None}), "ok", "may take 1 GiB"),
    ("disk_read", profile(host={}), "skipped", "no disk tier"),
    ("budget_disk", profile(host={}), "skipped", "no disk tier"),
    ("numa", embedded(), "ok", "GPUs on node 0"),
]  # fmt: skip


@pytest.mark.parametrize(("id_", "of", "status", "words"), OF_A_PROFILE)
def test_what_a_profile_asks_for_decides(id_: str, of: Profile, status: str, words: str) -> None:
    row = check(id_, of=of)
    assert (row.status, words in row.text) == (status, True), row


@pytest.mark.parametrize(
    ("version", "status"), [("0.30.1", "fail"), (None, "warn"), ("0.32.0", "ok"), ("0.33.0+cu130", "ok")]
)
def test_versions_that_round_up_need_room_for_twice_the_tier(version: str | None, status: str) -> None:
    short = replace(memory(available=24 * GIB), engine=None)
    assert check("over_allocation", short, without_disk(version=version)).status == status


def test_shared_memory_in_use_is_not_counted_as_available() -> None:
    row = check("memory", memory(shmem=50 * GIB))
    assert (row.value, row.limit) == (200 * GIB, 19 * GIB)
    assert "50 GiB of shared memory in use is not among it" in row.text


def test_the_embedded_engine_keeps_device_tier_and_weights_in_host_memory() -> None:
    row = check("memory", model(weights_bytes=2 * GIB, kv_bytes_per_token=2048), embedded())
    assert row.limit == 3 * GIB + 2 * GIB + 130 * 128 * 2048 + 64 * 2**20


def test_an_embedded_engine_on_several_nodes_is_warned_of_their_distance() -> None:
    row = check("numa", replace(HOST, gpus=()), embedded())
    assert (row.status, "vary from launch to launch" in row.text) == ("warn", True)


def test_without_a_gpu_that_is_said_plainly() -> None:
    host = replace(HOST, gpus=(), gpu_absent="no GPU: this host has no driver of one")
    rows = {row.id: row for row in examine(embedded(), host)}
    for id_ in ("gpu", "pcie", "host_to_device", "device_to_host", "gpu_memory", "gpu_load"):
        assert (rows[id_].status, rows[id_].text.partition(";")[0]) == ("skipped", host.gpu_absent)


def test_a_far_node_that_may_not_be_used_does_not_count() -> None:
    far = NumaNode(1, 128 * GIB, 100 * GIB, {0: 21, 1: 10}, allowed=False)
    row = check("numa", replace(HOST, numa=(replace(NODES[0], available=10 * GIB), far)))
    assert (row.status, row.value) == ("fail", 10 * GIB)


def test_an_attached_server_is_not_judged_by_this_host() -> None:
    rows = {row.id: row for row in examine(ATTACHED, HOST)}
    assert rows["server_host"].status == "skipped"
    assert "memory" not in rows
    assert essential(ATTACHED, HOST) == []


def test_an_emulated_engine_says_that_it_is_one_and_what_is_injected() -> None:
    rows = {row.id: row for row in examine(EMULATED, model(kv_bytes_per_token=2048))}
    assert (rows["emulated"].status, "useless_hits" in rows["emulated"].text) == ("warn", True)
    assert "memory" not in rows
    assert rows["budget_host"].status == rows["budget_disk"].status == "ok"
    assert [row.id for row in essential(EMULATED, HOST)] == ["emulated", "port"]


def test_a_comparison_makes_the_checks_that_doctor_shows() -> None:
    rows = essential(profile(), HOST)
    shown = {row.id: row for row in examine(profile(), HOST)}
    assert all(shown[row.id] == row for row in rows)
    assert {"memory", "cgroup_memory", "dev_shm", "port", "disk_space"} <= {row.id for row in rows}


def test_the_document_has_the_agreed_form() -> None:
    found_ = document(examine(profile(), memory(available=GIB)))
    rows: Any = found_["checks"]
    assert found_.keys() == {"checks", "exit_code"}
    assert all(list(row) == ["id", "status", "value", "unit", "limit", "text", "do"] for row in rows)
    assert {row["status"] for row in rows} <= {"ok", "warn", "fail", "skipped"}
    assert found_["exit_code"] == 4
