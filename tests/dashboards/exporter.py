"""Two engines, a host, a GPU and a gate that tell everything that dashboards and rules ask for, over HTTP.

The engines' series are those of the emulated engine, which spells vLLM's; what it never has (failures) is added.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kvbench.engine.emulated.counters import Counters
from kvbench.engine.emulated.exposition import exposition
from kvbench.engine.emulated.sizes import Sizes

SIZES = Sizes(
    block_tokens=128, device_blocks=512, max_model_len=8192, max_batched_tokens=8192, max_sequences=64,
    block_bytes=262144, host_bytes=1 << 28, host_chunks=1024, store_threshold=2, disk=True,
)  # fmt: skip
ENGINE_FAILURES = (
    "kv_offload_tiering_promotion_job_failures", "kv_offload_tiering_cascade_job_failures",
    "kv_offload_tiering_backpressure_stores_dropped",
)  # fmt: skip
NODE = """\
node_uname_info{{nodename="h"}} 1
node_memory_MemAvailable_bytes 5e10
node_memory_MemTotal_bytes 1e11
node_memory_Shmem_bytes 2e10
node_filesystem_avail_bytes{{mountpoint="/dev/shm"}} 3e10
node_filesystem_size_bytes{{mountpoint="/dev/shm"}} 5e10
node_filesystem_avail_bytes{{mountpoint="/mnt/kv_cache"}} 3e11
node_filesystem_size_bytes{{mountpoint="/mnt/kv_cache"}} 5e11
node_disk_read_bytes_total{{device="nvme0n1"}} {n}e6
node_disk_written_bytes_total{{device="nvme0n1"}} {n}e6
node_disk_read_time_seconds_total{{device="nvme0n1"}} {n}
node_disk_write_time_seconds_total{{device="nvme0n1"}} {n}
node_disk_reads_completed_total{{device="nvme0n1"}} {n}e3
node_disk_writes_completed_total{{device="nvme0n1"}} {n}e3
node_disk_io_time_seconds_total{{device="nvme0n1"}} {n}
node_pressure_cpu_waiting_seconds_total {n}
node_pressure_memory_waiting_seconds_total {n}
node_pressure_io_waiting_seconds_total {n}
node_cpu_seconds_total{{cpu="0",mode="user"}} {n}
node_cpu_seconds_total{{cpu="0",mode="system"}} {n}
node_cpu_seconds_total{{cpu="0",mode="iowait"}} {n}
node_cpu_seconds_total{{cpu="0",mode="steal"}} {n}
DCGM_FI_PROF_PCIE_TX_BYTES{{gpu="0",Hostname="h"}} 1e9
DCGM_FI_PROF_PCIE_RX_BYTES{{gpu="0",Hostname="h"}} 2e9
"""


def engine(step: int) -> str:
    """An engine after `step` looks: everything has grown."""
    counters = Counters()
    for name, value in vars(counters).items():
        if isinstance(value, int | float) and not name.startswith("_"):
            setattr(counters, name, 100 * step)
        elif isinstance(value, dict):
            counters.finished = dict.fromkeys(value, 10 * step)
    for histogram in (counters.ttft, counters.itl, counters.e2e, counters.queue, counters.prefill, counters.lookup):
        for value in (0.004, 0.03, 0.3, 3.0):
            for _ in range(step):
                histogram.observe(value)
    counters.running, counters.waiting, counters.usage = 3, 1, 0.5
    text = exposition(counters, SIZES, model="tiny", created_s=1.0)
    kept = [line for line in text.splitlines() if not any(name in line for name in ENGINE_FAILURES)]
    failures = [f'vllm:{n}_total{{engine="0",model_name="tiny",tier="1:fs"}} {step}' for n in ENGINE_FAILURES]
    return "\n".join([*kept, *failures]) + "\n"


def gate(step: int) -> str:
    """What the gate tells about itself."""
    lines = [
        *(f'kvbench_gate_verdict{{gate="g",verdict="{v}"}} {int(v == "GO")}' for v in ("GO", "NO_GO", "INVALID")),
        'kvbench_gate_verdict{gate="g",verdict="INCONCLUSIVE"} 0',
        *(
            f'kvbench_gate_rule{{gate="g",rule="ttft-p99",kind="guardrail",status="{s}"}} {int(s == "pass")}'
            for s in ("pass", "fail", "unknown")
        ),
        *(
            f'kvbench_gate_{name}{{gate="g",rule="ttft-p99"}} 1'
            for name in ("rule_effect", "rule_limit", "rule_ci_low", "rule_ci_high", "firing_share")
        ),
        *(
            f'kvbench_gate_share_over_budget{{gate="g",rule="ttft-p99",stretch="{s}"}} 0.01'
            for s in ("for", "window")
        ),
        f'kvbench_gate_windows_total{{gate="g",state="evaluable"}} {step}',
        f'kvbench_gate_requests_total{{gate="g",selection="candidate"}} {step}',
        'kvbench_gate_replicas{gate="g",selection="candidate",state="warm"} 3',
        f'kvbench_gate_scrapes_total{{gate="g",selection="candidate",outcome="failed"}} {step}',
        'kvbench_gate_scrape_age_seconds{gate="g",selection="candidate"} 5',
        'kvbench_gate_action{gate="g",state="armed"} 1',
        'kvbench_gate_rollback{gate="g",part="tier_off",status="proven"} 1',
        'kvbench_gate_rollback_after_seconds{gate="g",part="tier_off"} 30',
    ]
    return "\n".join(lines) + "\n"


@contextmanager
def exporter() -> Iterator[int]:
    """Serve /engine, /node and /gate on a loopback port; every look finds that a second's worth has happened."""
    began = time.monotonic()
    pages = {"/engine": engine, "/node": lambda step: NODE.format(n=step), "/gate": gate}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path)
            body = page(10 + int(10 * (time.monotonic() - began))).encode() if page else b""
            self.send_response(200 if page else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
