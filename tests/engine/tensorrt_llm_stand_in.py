"""Stands in for `trtllm-serve` 1.2: its options, strict YAML and request models, and statistics that drain.

Made from the payloads that upstream's sources and documentation show. Run as a script. Blocks really move between a
device and a host tier, and a prompt's tokens cost time by where their KV is; STAND_IN_* in its environment add
faults. Sizes in bytes, times in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

COMPUTED_S, ONBOARDED_S, STEP_S = 60e-6, 4e-6, 2e-3
"""By token of a prompt, and by output token."""
BLOCK_BYTES = 262_144
DEVICE_BLOCKS = 128
BUCKETS = (0.001, 0.01, 0.1, 1.0, 10.0)


def setting(name: str) -> str | None:
    return os.environ.get(f"STAND_IN_{name}")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class KvCacheConfig(Strict):
    enable_block_reuse: bool = True
    max_tokens: int | None = None
    max_attention_window: list[int] | None = None
    sink_token_length: int | None = None
    free_gpu_memory_fraction: float = 0.9
    host_cache_size: int | None = None
    onboard_blocks: bool = True
    cross_kv_cache_fraction: float | None = None
    secondary_offload_min_priority: int | None = None
    event_buffer_max_size: int = 0
    attention_dp_events_gather_period_ms: int = 5
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    use_uvm: bool = False
    max_gpu_total_bytes: int = 0
    dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    tokens_per_block: int = 32
    use_kv_cache_manager_v2: bool = False
    max_util_for_resume: float = 0.95


class LlmArgs(Strict):
    kv_cache_config: KvCacheConfig = Field(default_factory=KvCacheConfig)
    enable_iter_perf_stats: bool = False
    enable_iter_req_stats: bool = False
    return_perf_metrics: bool = False
    perf_metrics_max_requests: int = 0
    iter_stats_max_iterations: int | None = None
    request_stats_max_iterations: int | None = None
    max_stats_len: int = 1000
    print_iter_log: bool = False
    stream_interval: int = 1
    cuda_graph_config: dict[str, object] | None = None
    disable_overlap_scheduler: bool = False


class StreamOptions(Strict):
    include_usage: bool | None = True
    continuous_usage_stats: bool | None = False


class CompletionRequest(Strict):
    model: str
    prompt: list[int] | str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int = 0
    n: int = 1
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    detokenize: bool = True
    skip_special_tokens: bool = True
    add_special_tokens: bool = True


class Engine:
    """Blocks, statistics and the one processing unit."""

    def __init__(self, args: LlmArgs, model: str) -> None:
        config = args.kv_cache_config
        self.args, self.model, self.block = args, model, config.tokens_per_block
        host = config.host_cache_size or (64 * BLOCK_BYTES if setting("HOST_BY_ITSELF") else 0)
        tokens = config.max_tokens or DEVICE_BLOCKS * self.block
        self.levels = [tokens // self.block, host // BLOCK_BYTES]
        self.lowest = 30 if config.secondary_offload_min_priority is None else config.secondary_offload_min_priority
        self.lock, self.unit = threading.Lock(), threading.Lock()
        self.device: OrderedDict[int, None] = OrderedDict()
        self.host: OrderedDict[int, None] = OrderedDict()
        self.records: list[dict] = []
        self.events: list[dict] = []
        self.requests: list[dict] = []
        self.iteration = self.event_id = self.request_id = 0
        self.reused = self.missed = self.active = self.queued = 0
        self.registry = CollectorRegistry()
        labels = {"model_name": model, "engine_type": "trtllm"}
        self.labels = labels
        names = [*labels]
        self.success = Counter(
            "trtllm_request_success", "Finished.", [*names, "finished_reason"], registry=self.registry
        )
        self.ttft = Histogram(
            "trtllm_time_to_first_token_seconds", "TTFT.", names, buckets=BUCKETS, registry=self.registry
        )
        self.e2e = Histogram(
            "trtllm_e2e_request_latency_seconds", "E2E.", names, buckets=BUCKETS, registry=self.registry
        )
        self.usage = Gauge("trtllm_kv_cache_utilization", "Used.", names, registry=self.registry)
        self.say({"type": "created", "num_blocks_per_cache_level": list(self.levels)})

    def say(self, data: dict) -> None:
        most = self.args.kv_cache_config.event_buffer_max_size
        if most:
            self.events = [*self.events, {"event_id": self.event_id, "window_size": 4096, "data": data}][-most:]
            self.event_id += 1

    def prefill(self, prompt: list[int]) -> tuple[int, int]:
        """Find or compute the blocks of a prompt, one request at a time; cached tokens, and those from the host."""
        with self.lock:
            self.queued += 1
        with self.unit:
            with self.lock:
                self.queued -= 1
                self.active += 1
                cached, onboarded = self.blocks_of(prompt)
            time.sleep(onboarded * ONBOARDED_S + (len(prompt) - cached) * COMPUTED_S)
            with self.lock:
                self.record(len(prompt) - cached)
        return cached, onboarded

    def blocks_of(self, prompt: list[int]) -> tuple[int, int]:
        """Cached tokens, and how many of them came from the host."""
        size, whole = self.block, (len(prompt) - 1) // self.block  # the last token is always computed
        hashes = [hash(tuple(prompt[: (i + 1) * size])) for i in range(whole)]
        found = 0
        if self.args.kv_cache_config.enable_block_reuse:
            while found < whole and (hashes[found] in self.device or hashes[found] in self.host):
                found += 1
        onboarded = 0
        for block in hashes[:found]:
            if block in self.host:
                del self.host[block]
                onboarded += 1
                self.make_room()
                self.moved(block, 1, 0)
                self.device[block] = None
            self.device.move_to_end(block)
        for block in hashes[found:]:
            self.make_room()
            self.device[block] = None
            told = {"type": "stored_block", "block_hash": block, "tokens": [], "cache_level": 0, "priority": 35}
            self.say({"type": "stored", "parent_hash": None, "blocks": [told]})
        self.reused += found
        self.missed += whole - found
        return found * size, onboarded * size

    def make_room(self) -> None:
        while len(self.device) >= self.levels[0]:
            block, _ = self.device.popitem(last=False)
            if self.levels[1] == 0 or self.lowest > 35:
                self.say({"type": "removed", "block_hashes": [block]})
                continue
            while len(self.host) >= self.levels[1]:
                gone, _ = self.host.popitem(last=False)
                self.say({"type": "removed", "block_hashes": [gone]})
            self.host[block] = None
            self.moved(block, 0, 1)

    def moved(self, block: int, old: int, new: int) -> None:
        level = {"type": "event_diff", "new_value": new, "old_value": old}
        self.say({"type": "updated", "block_hash": block, "cache_level": level, "priority": None})

    def record(self, context_tokens: int) -> None:
        self.iteration += 1
        used = min(len(self.device), 8 * self.active)
        total = self.reused + self.missed
        self.usage.labels(**self.labels).set(used / self.levels[0])
        if not self.args.enable_iter_perf_stats:
            return
        stats = {
            "maxNumBlocks": self.levels[0],
            "freeNumBlocks": self.levels[0] - used,
            "usedNumBlocks": used,
            "tokensPerBlock": self.block,
            "allocTotalBlocks": self.missed,
            "allocNewBlocks": self.missed,
            "reusedBlocks": self.reused,
            "missedBlocks": self.missed,
            "cacheHitRate": self.reused / total if total else 0.0,
        }
        batch = {"numScheduledRequests": self.active, "numCtxTokens": context_tokens, "microBatchId": 0}
        self.records.append(
            {
                "iter": self.iteration,
                "iterLatencyMS": 2.0,
                "numActiveRequests": self.active,
                "numQueuedRequests": self.queued,
                "gpuMemUsage": 76665782272,
                "kvCacheStats": stats,
                "inflightBatchingStats": batch,
                "specDecodingStats": None,
            }
        )
        del self.records[: -self.args.max_stats_len]

    def finish(self, arrived: float, first: float) -> None:
        with self.lock:
            self.active -= 1
            self.request_id += 1
            self.record(0)
            self.success.labels(**self.labels, finished_reason="length").inc()
            self.ttft.labels(**self.labels).observe(first - arrived)
            self.e2e.labels(**self.labels).observe(time.monotonic() - arrived)
            if self.args.perf_metrics_max_requests:
                timing = {"arrival_time": arrived, "first_token_time": first, "last_token_time": time.monotonic()}
                self.requests.append({"request_id": self.request_id, "perf_metrics": {"timing_metrics": timing}})

    def drained(self, name: str) -> list[dict]:
        with self.lock:
            given: list[dict] = getattr(self, name)
            setattr(self, name, [])
            return given


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def engine(self) -> Engine:
        return self.server.engine  # type: ignore[attr-defined]

    def do_GET(self) -> None:
        engine, path = self.engine, self.path.partition("?")[0].rstrip("/")
        if path == "/health":
            self.answer(int(setting("HEALTH") or 200), "")
        elif path == "/version":
            self.answer(200, json.dumps({"version": setting("VERSION") or "1.2.1"}))
        elif path == "/v1/models":
            card = {"id": engine.model, "object": "model", "created": 1, "owned_by": "tensorrt_llm"}
            self.answer(200, json.dumps({"object": "list", "data": [card]}))
        elif path == "/metrics":
            self.answer(200, json.dumps(engine.drained("records")))
        elif path == "/perf_metrics":
            self.answer(200, json.dumps(engine.drained("requests")))
        elif path == "/prometheus/metrics" and engine.args.return_perf_metrics:
            self.answer(200, generate_latest(engine.registry).decode())
        else:
            self.answer(404, '{"detail":"Not Found"}')

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/kv_cache_events":
            self.answer(200, json.dumps(self.engine.drained("events")))
        elif self.path != "/v1/completions":
            self.answer(404, '{"detail":"Not Found"}')
        elif setting("COMPLETIONS"):
            self.refuse(int(setting("COMPLETIONS") or 503), "LLM is unavailable. Please check the server logs.")
        else:
            try:
                request = CompletionRequest.model_validate_json(body)
            except ValidationError as error:
                self.refuse(400, str(error))
            else:
                self.complete(request)

    def complete(self, request: CompletionRequest) -> None:
        arrived = time.monotonic()
        prompt = request.prompt if isinstance(request.prompt, list) else list(request.prompt.encode())
        cached, _ = self.engine.prefill(prompt)
        first, seed = time.monotonic(), hash(tuple(prompt))
        if not request.stream:
            text = "".join(f" {(seed + number) % 97}" for number in range(1, (request.max_tokens or 16) + 1))
            choice = {"index": 0, "text": text, "finish_reason": "length"}
            told = {"choices": [choice], "usage": usage(prompt, request.max_tokens or 16, cached)}
            self.answer(200, json.dumps(self.shown(told)))
            self.engine.finish(arrived, first)
            return
        options = request.stream_options or StreamOptions()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        count = request.max_tokens or 16
        try:
            for number in range(1, count + 1):
                time.sleep(STEP_S if number > 1 else 0)
                text = f" {(seed + number) % 97}"
                reason = "length" if number == count else None
                event = {"choices": [{"index": 0, "text": text, "finish_reason": reason}]}
                if options.continuous_usage_stats:
                    event["usage"] = usage(prompt, number, cached)
                self.event(event)
            if options.include_usage:
                self.event({"choices": [], "usage": usage(prompt, count, cached)})
            self.chunk(b"data: [DONE]\n\n")
            self.chunk(b"")
        finally:
            self.engine.finish(arrived, first)

    def event(self, event: dict) -> None:
        self.chunk(b"data: " + json.dumps(self.shown(event)).encode() + b"\n\n")

    def shown(self, part: dict) -> dict:
        return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": self.engine.model, **part}

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def refuse(self, code: int, message: str) -> None:
        error = {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": code}
        self.answer(code, json.dumps(error))

    def answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


def usage(prompt: list[int], completion: int, cached: int) -> dict:
    return {
        "prompt_tokens": len(prompt),
        "total_tokens": len(prompt) + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("trtllm-serve", allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--backend", choices=["pytorch", "tensorrt", "trt", "_autodeploy"], default="pytorch")
    parser.add_argument("--extra_llm_api_options", "--config")
    parser.add_argument("--max_seq_len", type=int)
    parser.add_argument("--tp_size", "--tensor_parallel_size", type=int, default=1)
    parser.add_argument("--enable_chunked_prefill", action="store_true")
    return parser.parse_args()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    given = options()
    if setting("DIE"):
        sys.exit(setting("DIE"))
    text = Path(given.extra_llm_api_options).read_text() if given.extra_llm_api_options else "{}"
    try:
        args = LlmArgs.model_validate(yaml.safe_load(text))
    except ValidationError as error:
        sys.exit(f"pydantic_core._pydantic_core.ValidationError: {error}")
    directory = Path(given.model)
    server = Server((given.host, given.port), Answers)
    server.engine = Engine(args, directory.name if directory.is_dir() else given.model)  # type: ignore[attr-defined]
    print("INFO: Application startup complete.", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
