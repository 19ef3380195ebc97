"""Replays traces on vLLM's own `CPUOffloadingManager`, in the engine's environment: traces on stdin, JSON out."""

import json
import sys

from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager


def key_of(number):
    return make_offload_key(number.to_bytes(32, "big"), 0)


def number_of(key):
    return int.from_bytes(key[:32], "big")


def replay(trace):
    manager = CPUOffloadingManager(
        trace["capacity"], cache_policy=trace["policy"], store_threshold=trace["threshold"]
    )
    contexts, writing, reading, said = {}, [], [], []
    known = set()
    for step in trace["steps"]:
        who, keys = step["request"], [key_of(number) for number in step["keys"]]
        known.update(step["keys"])
        if step["do"] == "new":
            contexts[who] = ReqContext(req_id=str(who))
            manager.on_new_request(contexts[who])
            for position, key in enumerate(keys):
                contexts[who].set_offload_key_position(key, position)
        elif step["do"] == "store":
            output = manager.prepare_store(keys, contexts[who])
            if output is None:
                said.append(None)
            else:
                stored = [number_of(key) for key in output.keys_to_store]
                said.append([stored, sorted(number_of(key) for key in output.evicted_keys)])
                if stored:
                    writing.append((list(output.keys_to_store), contexts[who]))
        elif step["do"] == "load":
            ready = [key for key in keys if (chunk := manager._policy.get(key)) is not None and chunk.is_ready]
            said.append([number_of(key) for key in ready])
            manager.prepare_load(ready, contexts[who])
            reading.append((ready, contexts[who]))
        elif step["do"] == "settle":
            if writing:
                manager.complete_store(*writing.pop(0))
            if reading:
                manager.complete_load(*reading.pop(0))
        elif step["do"] == "finish":
            manager.on_request_finished(contexts[who])
    state = [(number, manager._policy.get(key_of(number))) for number in sorted(known)]
    said.append([[number, chunk.ref_cnt] for number, chunk in state if chunk is not None])
    return said


print(json.dumps([replay(trace) for trace in json.load(sys.stdin)]))
