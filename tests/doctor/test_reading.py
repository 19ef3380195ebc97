"""What is read of this host agrees with independent tools; odd hosts are read from copies of their files."""

from __future__ import annotations

import errno
import os
import resource
import secrets
import socket
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.doctor.cgroup import memory_limit
from kvbench.doctor.host import Nic
from kvbench.doctor.mounts import Mount, mount_of, mounts
from kvbench.doctor.nvme import parse_smart, read_endurance
from kvbench.doctor.reading import (
    read_clock,
    read_governors,
    read_leftovers,
    read_limits,
    read_load,
    read_memory,
    read_nics,
    read_numa,
    read_port,
    read_shm,
)
from kvbench.doctor.storage import block_devices, read_disk, rotates
from kvbench.engine.processes import SHM
from tests.doctor.good_host import profile
from tests.doctor.other_tools import df, free, said_by

MIB = 2**20


def test_memory_is_what_free_says() -> None:
    seen = read_memory()
    lines = free()
    assert seen is not None
    total, _used, _free, shared, _cache, available = lines["Mem:"]
    assert seen.total == total
    assert seen.available == pytest.approx(available, abs=256 * MIB)  # other processes live on meanwhile
    assert seen.shmem == pytest.approx(shared, abs=64 * MIB)
    assert (seen.swap_total, seen.swap_free) == (lines["Swap:"][0], pytest.approx(lines["Swap:"][2], abs=64 * MIB))
    assert seen.overcommit == int(said_by("cat", "/proc/sys/vm/overcommit_memory")[0])


def meminfo() -> dict[str, int]:
    """As awk reads it: bytes, and pages where it counts pages."""
    told = said_by("awk", '{print $1, sprintf("%.0f", $2 * ($3 == "kB" ? 1024 : 1))}', "/proc/meminfo")
    return {name.rstrip(":"): int(value) for name, value in map(str.split, told)}


def test_huge_pages_and_promised_memory_are_what_the_kernel_says() -> None:
    before, seen, after = meminfo(), read_memory(), meminfo()
    assert seen is not None
    page = before["Hugepagesize"]
    assert int(said_by("cat", "/proc/sys/vm/nr_hugepages")[0]) == before["HugePages_Total"]
    assert (seen.huge_total, seen.huge_free) == (before["HugePages_Total"] * page, before["HugePages_Free"] * page)
    assert seen.commit_limit == before["CommitLimit"]
    promised = sorted((before["Committed_AS"], after["Committed_AS"]))
    assert promised[0] - 64 * MIB <= seen.committed <= promised[1] + 64 * MIB


def test_huge_pages_are_counted_in_their_own_size(tmp_path: Path) -> None:
    """Given a host with 512 pages of 2 MiB, 500 of them unused, that promises no more than it has."""
    lines = {"MemTotal": 9000, "MemAvailable": 8000, "CommitLimit": 7000, "Committed_AS": 600, "Hugepagesize": 2048}
    text = "".join(f"{name}: {kib:>8} kB\n" for name, kib in lines.items())
    (tmp_path / "meminfo").write_text(f"{text}HugePages_Total: 512\nHugePages_Free: 500\n")
    (tmp_path / "sys" / "vm").mkdir(parents=True)
    (tmp_path / "sys" / "vm" / "overcommit_memory").write_text("2\n")
    seen = read_memory(tmp_path)
    assert seen is not None
    assert (seen.huge_total, seen.huge_free) == (2**30, 1000 * MIB)
    assert (seen.overcommit, seen.commit_limit, seen.committed) == (2, 7000 * 1024, 600 * 1024)


def test_shared_memory_is_what_df_says() -> None:
    seen = read_shm()
    size, available = map(int, df(SHM, "size", "avail"))
    assert seen is not None
    assert (seen.total, seen.free) == (size, pytest.approx(available, abs=64 * MIB))


def test_a_disk_is_what_df_and_findmnt_say(tmp_path: Path) -> None:
    seen = read_disk(tmp_path / "not" / "there" / "yet")
    kind, available, files, left = df(tmp_path, "fstype", "avail", "itotal", "iavail")
    assert (seen.place, seen.is_directory, seen.writable, seen.read_only) == (str(tmp_path), True, True, False)
    assert seen.filesystem == kind
    assert seen.free == pytest.approx(int(available), abs=256 * MIB)
    assert seen.files_total == int(files)
    assert seen.files_free == pytest.approx(int(left), abs=20_000)


def test_a_path_under_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    seen = read_disk(tmp_path / "file" / "below")
    assert (seen.place, seen.is_directory) == (str(tmp_path / "file"), False)


def test_a_path_where_one_may_not_look_is_judged_by_the_last_folder_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a user who may not search /root; root itself, who runs these tests in containers, may."""
    stat, locked = os.stat, tmp_path / "locked"
    locked.mkdir()

    def refused(path: int | str | os.PathLike[str], **options: bool) -> os.stat_result:
        if not isinstance(path, int) and Path(path).parent == locked:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", refused)
        assert read_disk(locked / "kv").place == str(locked)


def test_limits_are_those_of_this_process() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    seen = read_limits()
    assert (seen.files_soft, seen.files_hard) == (soft, None if hard == resource.RLIM_INFINITY else hard)
    shown = said_by("bash", "-c", "ulimit -l")[0]
    assert seen.memlock_soft == (None if shown == "unlimited" else int(shown) * 1024)


def test_a_port_in_use_is_named_with_its_process() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        seen = read_port(profile(args={"port": port}))
        assert seen is not None
        assert (seen.port, seen.free, seen.holders) == (port, False, (os.getpid(),))
    again = read_port(profile(args={"port": port}))
    assert again is not None
    assert again.free
    assert read_port(profile(args={})) is None


def test_files_that_engines_left_are_found_and_others_are_not() -> None:
    name = f"test-{secrets.token_hex(4)}"
    old, new, foreign = (SHM / f"{prefix}{name}" for prefix in ("vllm_offload_", "psm_", "somebody-"))
    try:
        for file in (old, new, foreign):
            file.write_bytes(bytes(8192))
        for file in (old, foreign):
            os.utime(file, (time.time() - 3600,) * 2)
        found = {file.path: file.size for file in read_leftovers()}
        assert found.get(str(old)) == 8192
        assert str(new) not in found
        assert str(foreign) not in found
    finally:
        for file in (old, new, foreign):
            file.unlink()


def test_a_leftover_is_as_large_as_du_says() -> None:
    """Holes take no memory."""
    file = SHM / f"vllm_offload_test-{secrets.token_hex(4)}"
    try:
        with file.open("wb") as sparse:
            sparse.write(bytes(3 * 4096))
            sparse.truncate(MIB)
        os.utime(file, (time.time() - 3600,) * 2)
        (size,) = [left.size for left in read_leftovers() if left.path == str(file)]
        assert size == int(said_by("du", "--block-size=1", str(file))[0].split()[0]) == 3 * 4096
    finally:
        file.unlink()


def test_a_file_that_a_process_maps_is_no_leftover() -> None:
    import mmap

    file = SHM / f"psm_test-{secrets.token_hex(4)}"
    try:
        file.write_bytes(bytes(4096))
        os.utime(file, (time.time() - 3600,) * 2)
        with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 4096):
            assert str(file) not in {left.path for left in read_leftovers()}
        assert str(file) in {left.path for left in read_leftovers()}
    finally:
        file.unlink()


def test_a_look_at_the_load_counts_cores_and_time_of_others() -> None:
    seen = read_load(0.05)
    assert seen.cores == len(os.sched_getaffinity(0))
    assert seen.foreign_cores is not None
    assert 0 <= seen.foreign_cores <= seen.cores + 1
    assert seen.load_average == pytest.approx(os.getloadavg()[0], abs=1)


def test_the_clock_is_the_kernels() -> None:
    file = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    seen = read_clock()
    if not file.exists():
        assert seen is None
        return
    assert seen is not None
    assert seen.source == file.read_text().strip()
    assert seen.resolution_s == time.clock_getres(time.CLOCK_MONOTONIC)
    assert 0 < seen.read_s < 1e-3


def node(root: Path, number: int, free_kib: int, distances: str) -> None:
    folder = root / f"node{number}"
    folder.mkdir(parents=True)
    lines = [("MemTotal", 1000), ("MemFree", free_kib), ("Active(file)", 20), ("Inactive(file)", 30)]
    (folder / "meminfo").write_text("".join(f"Node {number} {name}: {size} kB\n" for name, size in lines))
    (folder / "distance").write_text(distances + "\n")


def test_nodes_are_read_with_distances_and_what_is_allowed(tmp_path: Path) -> None:
    for number, kib, distances in ((0, 100, "10 21 21"), (1, 200, "21 10 21"), (10, 300, "21 21 10")):
        node(tmp_path / "node", number, kib, distances)
    (tmp_path / "status").write_text("Name:\tx\nMems_allowed:\t3\nMems_allowed_list:\t0-1\n")
    seen = read_numa(tmp_path / "node", tmp_path / "status")
    assert [(n.id, n.available // 1024, n.allowed) for n in seen] == [
        (0, 150, True),
        (1, 250, True),
        (10, 350, False),
    ]
    assert seen[2].distances == {0: 21, 1: 21, 10: 10}


def test_a_host_without_nodes_has_none(tmp_path: Path) -> None:
    assert read_numa(tmp_path / "none", tmp_path / "none") == ()


def test_each_processor_has_its_governor(tmp_path: Path) -> None:
    for name, governor in (("cpu0", "performance"), ("cpu1", "powersave"), ("cpu12", "performance")):
        (tmp_path / name / "cpufreq").mkdir(parents=True)
        (tmp_path / name / "cpufreq" / "scaling_governor").write_text(f"{governor}\n")
    (tmp_path / "cpu13").mkdir()
    (tmp_path / "cpufreq").mkdir()
    assert Counter(read_governors(tmp_path)) == {"performance": 2, "powersave": 1}
    assert read_governors(tmp_path / "nowhere") == ()


def test_cards_on_a_bus_that_are_up_are_read_with_node_and_speed(tmp_path: Path) -> None:
    def card(name: str, state: str, node: int | None, speed: int | None) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "operstate").write_text(f"{state}\n")
        if speed is not None:
            (tmp_path / name / "speed").write_text(f"{speed}\n")
        if node is not None:
            (tmp_path / name / "device").mkdir()
            (tmp_path / name / "device" / "numa_node").write_text(f"{node}\n")

    card("ib0", "up", 1, 400_000)
    card("eth0", "up", -1, -1)
    card("eth1", "down", 0, None)
    card("lo", "up", None, None)
    assert read_nics(tmp_path) == (Nic("eth0", None, None), Nic("ib0", 1, 400e9))
    assert read_nics(tmp_path / "nowhere") == ()


@pytest.mark.parametrize(
    ("device", "said", "rotating"),
    [("sda", "1", True), ("sda", "0", False), ("sda", None, False), ("vda", "1", False), ("nvme0n1", "0", False)],
)
def test_a_disk_rotates_where_it_says_so_and_is_no_virtual_one(
    tmp_path: Path, device: str, said: str | None, rotating: bool
) -> None:
    (tmp_path / device / "queue").mkdir(parents=True)
    if said is not None:
        (tmp_path / device / "queue" / "rotational").write_text(f"{said}\n")
    assert rotates(device, tmp_path) == rotating


def proc(root: Path, cgroup: str, *mounted: str) -> Path:
    folder = root / "proc" / "self"
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(cgroup)
    (folder / "mountinfo").write_text("".join(f"{line}\n" for line in mounted))
    return root / "proc"


def group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".", 1)).write_text(f"{content}\n")


def test_the_tightest_limit_of_version_2_counts(tmp_path: Path) -> None:
    """The group itself has none, the pod around it has one, and the slice around that a wider one."""
    top = tmp_path / "cg"
    stat = "anon 5\ninactive_file 100\nactive_file 50\nshmem 70"
    group(top / "slice", memory__max=9000, memory__current=1000, memory__stat=stat)
    group(top / "slice" / "pod", memory__max=4000, memory__current=1000, memory__stat=stat)
    group(top / "slice" / "pod" / "us", memory__max="max", memory__current=900, memory__stat=stat)
    where = proc(tmp_path, "0::/slice/pod/us\n", f"30 20 0:26 / {top} rw,nosuid - cgroup2 cgroup2 rw")
    seen = memory_limit(where)
    assert seen is not None
    assert (seen.version, seen.path, seen.limit, seen.room) == (2, str(top / "slice" / "pod"), 4000, 3150)


def test_version_1_is_read_from_its_memory_controller(tmp_path: Path) -> None:
    top = tmp_path / "memory"
    unlimited = {"memory__limit_in_bytes": 2**63 - 4096, "memory__usage_in_bytes": 10}
    group(top, **unlimited)
    group(
        top / "docker" / "us",
        memory__limit_in_bytes=5000,
        memory__usage_in_bytes=2000,
        memory__stat="inactive_file 1\ntotal_inactive_file 300\ntotal_active_file 200",
    )
    lines = (
        f"31 20 0:27 / {tmp_path / 'cpu'} rw - cgroup cgroup rw,cpu",
        f"32 20 0:28 / {top} rw - cgroup cgroup rw,memory",
    )
    seen = memory_limit(proc(tmp_path, "4:memory:/docker/us\n3:cpu:/x\n0::/\n", *lines))
    assert seen is not None
    assert (seen.version, seen.limit, seen.room) == (1, 5000, 3500)


def test_in_a_container_the_mount_is_the_group(tmp_path: Path) -> None:
    top = tmp_path / "cg"
    group(top, memory__max=4000, memory__current=1000, memory__stat="")
    where = proc(tmp_path, "0::/../../elsewhere\n", f"30 20 0:26 /docker/abc {top} rw - cgroup2 cgroup2 rw")
    seen = memory_limit(where)
    assert seen is not None
    assert seen.path == str(top)


def test_no_limit_is_none(tmp_path: Path) -> None:
    top = tmp_path / "cg"
    group(top, memory__max="max", memory__current=1000)
    assert memory_limit(proc(tmp_path, "0::/\n", f"30 20 0:26 / {top} rw - cgroup2 cgroup2 rw")) is None
    assert memory_limit(tmp_path / "nowhere") is None


def test_the_latest_of_the_nearest_mounts_holds_a_path(tmp_path: Path) -> None:
    where = proc(
        tmp_path,
        "",
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
        "2 1 8:2 / /mnt/a\\040b ro,relatime shared:1 - xfs /dev/sdb rw",
        "3 1 0:9 / /mnt/a\\040b rw - nfs4 server:/x rw",
        "broken",
    )
    table = mounts(where)
    assert [mount.filesystem for mount in table] == ["ext4", "xfs", "nfs4"]
    assert (table[1].point, table[1].read_only) == ("/mnt/a b", True)
    found = mount_of(Path("/mnt/a b/kv"), table)
    assert found == table[2]
    outside = mount_of(Path("/mnt/abc"), table)
    assert outside == table[0]


@given(
    st.lists(st.sampled_from(["/", "/a", "/a/b", "/ab", "/c"]), min_size=1),
    st.sampled_from(["/a/b/c", "/ab", "/x"]),
)
@settings(max_examples=60)
def test_a_path_lies_on_the_longest_mount_point_around_it(points: list[str], path: str) -> None:
    table = [Mount("/", point, (), str(n), "", ()) for n, point in enumerate(points)]
    found = mount_of(Path(path), table)
    around = [p for p in points if Path(path).is_relative_to(p)]
    assert (found.point if found else None) == max(around, key=len, default=None)


def test_devices_are_found_through_partitions_and_mappers(tmp_path: Path) -> None:
    disk, part, mapper = tmp_path / "sda", tmp_path / "sda" / "sda1", tmp_path / "dm-0"
    part.mkdir(parents=True)
    (part / "partition").write_text("1\n")
    (mapper / "slaves").mkdir(parents=True)
    (mapper / "slaves" / "sda1").symlink_to(part)
    numbers = tmp_path / "dev"
    numbers.mkdir()
    (numbers / "253:0").symlink_to(mapper)
    (numbers / "8:1").symlink_to(part)
    assert block_devices(os.makedev(253, 0), numbers) == (disk.name,)
    assert block_devices(os.makedev(8, 1), numbers) == (disk.name,)
    assert block_devices(os.makedev(0, 40), numbers) == ()


def test_the_smart_log_of_an_nvme_device() -> None:
    log = bytearray(512)
    log[0], log[3], log[4], log[5] = 0b100, 90, 10, 83
    log[48:64] = (2_000_000).to_bytes(16, "little")
    seen = parse_smart("nvme0n1", bytes(log))
    assert seen is not None
    assert (seen.used, seen.spare, seen.critical, seen.written) == (0.83, 0.9, True, 2_000_000 * 512_000)
    assert parse_smart("nvme0n1", bytes(512)) is None
    assert parse_smart("nvme0n1", b"") is None
    assert read_endurance("vda") is None
    assert read_endurance("nvme99n1") is None
