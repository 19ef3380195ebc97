"""Transfer path and host: how fast KV moves between device, host and disk, and what else wants the same path."""

from __future__ import annotations

from functools import partial

from kvbench.dashboards.alerting import SHM
from kvbench.dashboards.boards.overview import RATE, total_rate
from kvbench.dashboards.boards.panel import Board, Lines, Query, both, lines
from kvbench.dashboards.boards.sources import TIERS
from kvbench.dashboards.series import counter

__all__ = ["transfer"]

NODE = 'instance="$node"'
DISK = f'{NODE}, device=~"$device"'


def transfer() -> str:
    """JSON of the dashboard."""
    board = Board(
        "transfer", "KV tiers: transfer path and host", "Bandwidth of the path, PCIe, memory, disk, pressure."
    )
    board.arms(counter("prompt_tokens"))
    board.choice("node", "Host", "label_values(node_uname_info, instance)")
    board.choice("mount", "Disk tier at", f"label_values(node_filesystem_size_bytes{{{NODE}}}, mountpoint)")
    board.choice("device", "Disk", f"label_values(node_disk_io_time_seconds_total{{{NODE}}}, device)")
    board.row("The path, as the engine sees it", *_path())
    board.row("PCIe (needs dcgm-exporter)", *_pcie())
    board.row("Memory of $node", *_memory())
    board.row("Disk of $node", *_disk())
    board.row("Pressure on $node", *_pressure())
    return board.text()


def _path() -> list[Lines]:
    def speed(what: str, more: str = "") -> list[Query]:
        moved, took = f"{what}_bytes", f"{what}_seconds"
        return both(lambda arm: f"{total_rate(moved, more + arm)} / {total_rate(took, more + arm)}")

    busy = "Bytes by the time that jobs took; jobs overlap, so this is the speed of one, not of the path."
    tiers = f"{TIERS}, "
    jobs = (
        ("load", "host_load_seconds", ""),
        ("store", "host_store_seconds", ""),
        ("read", "disk_read_seconds", tiers),
        ("write", "disk_write_seconds", tiers),
    )
    return [
        lines("Host to device, speed of a job", "Bps", speed("host_load"), busy, width=6),
        lines("Device to host, speed of a job", "Bps", speed("host_store"), busy, width=6),
        lines("Disk to host, speed of a job", "Bps", speed("disk_read", tiers), busy, width=6),
        lines("Host to disk, speed of a job", "Bps", speed("disk_write", tiers), busy, width=6),
        lines(
            "Jobs at work",
            "none",
            [query for what, metric, more in jobs for query in both(partial(_rate, metric, more), what)],
            "Seconds of transfer per second: how many were under way on average.",
            width=24,
        ),
    ]


def _rate(metric: str, only: str, arm: str) -> str:
    return total_rate(metric, only + arm)


def _pcie() -> list[Lines]:
    return [
        lines(
            f"PCIe, {what}",
            "Bps",
            [Query(f"sum by (Hostname, gpu) ({series})", "{{Hostname}} GPU {{gpu}}")],
            "All traffic of the GPU, KV or not.",
            width=12,
        )
        for what, series in (
            ("from the GPU", "DCGM_FI_PROF_PCIE_TX_BYTES"),
            ("to the GPU", "DCGM_FI_PROF_PCIE_RX_BYTES"),
        )
    ]


def _memory() -> list[Lines]:
    def left(mount: str) -> str:
        of = f'{NODE}, mountpoint="{mount}"'
        return f"1 - node_filesystem_avail_bytes{{{of}}} / node_filesystem_size_bytes{{{of}}}"

    return [
        lines(
            "Memory",
            "bytes",
            [
                Query(f"node_memory_MemAvailable_bytes{{{NODE}}}", "available"),
                Query(f"node_memory_Shmem_bytes{{{NODE}}}", "shared (host tiers, tmpfs)"),
                Query(f"node_memory_MemTotal_bytes{{{NODE}}}", "in all"),
            ],
            "What host tiers hold is shared memory and cannot be reclaimed.",
        ),
        lines(
            f"{SHM} in use",
            "percentunit",
            [Query(left(SHM), SHM)],
            "node_exporter tells it only when its --collector.filesystem.mount-points-exclude does not name /dev.",
            most=1,
        ),
        lines("Disk tier in use", "percentunit", [Query(left("$mount"), "$mount")], "vLLM's has no limit.", most=1),
    ]


def _disk() -> list[Lines]:
    def each(series: str) -> str:
        return f"rate({series}{{{DISK}}}{RATE})"

    def time_of(way: str, done: str) -> str:
        return f"{each(f'node_disk_{way}_time_seconds_total')} / {each(f'node_disk_{done}_completed_total')}"

    return [
        lines(
            "Read and written",
            "Bps",
            [
                Query(each("node_disk_read_bytes_total"), "{{device}} read"),
                Query(each("node_disk_written_bytes_total"), "{{device}} written"),
            ],
            "What reaches the disk: reads from the page cache do not.",
        ),
        lines(
            "Time of an operation",
            "s",
            [
                Query(time_of("read", "reads"), "{{device}} read"),
                Query(time_of("write", "writes"), "{{device}} written"),
            ],
            "Queueing in the kernel included.",
        ),
        lines(
            "Busy",
            "percentunit",
            [Query(each("node_disk_io_time_seconds_total"), "{{device}}")],
            "Time with work to do.",
            most=1,
        ),
    ]


def _pressure() -> list[Lines]:
    stalls = ("cpu", "memory", "io")
    return [
        lines(
            "Stalls",
            "percentunit",
            [Query(f"rate(node_pressure_{what}_waiting_seconds_total{{{NODE}}}{RATE})", what) for what in stalls],
            "Share of the time in which some task waited for it (PSI).",
            width=12,
        ),
        lines(
            "Processor",
            "none",
            [
                Query(f'sum(rate(node_cpu_seconds_total{{{NODE}, mode="{mode}"}}{RATE}))', mode)
                for mode in ("user", "system", "iowait", "steal")
            ],
            "Cores.",
            width=12,
        ),
    ]
