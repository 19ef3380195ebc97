"""Starts vLLM's own API server in a quarter of the usual time: `python -m kvbench_serve` takes its arguments.

vLLM's CPU platform starts its engine core and its worker as fresh interpreters, and importing vLLM takes each of
them as long as the server itself, one after another. Here they are forks of the server process instead (the other
start method that vLLM knows, and its default elsewhere), so vLLM is imported once. Nothing else differs.
"""

# vLLM is installed in the engine's environment only, so its modules are unknown to the type checker here.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import gc
import os
import sys
from multiprocessing import resource_tracker


def main() -> None:
    """Import all that the three processes need, then serve."""
    gc.disable()  # collecting while importing frees nothing and costs a tenth of the start
    from vllm.entrypoints.launchers.api_server.entry import main as serve
    from vllm.platforms.cpu import CpuPlatform

    _import_for_children()
    stock = CpuPlatform.check_and_update_config.__func__

    def check_and_fork(cls: type, vllm_config: object) -> None:
        stock(cls, vllm_config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"  # the stock method has set it to spawn

    CpuPlatform.check_and_update_config = classmethod(check_and_fork)
    register = CpuPlatform.register_triton_kernel_overrides.__func__

    def register_without_llvmlite(cls: type) -> None:
        # A worker that is forked has what connectors import (LMCache: numba). vLLM then asks every object of every
        # module for its attributes, and llvmlite's library takes any name for one of its functions.
        hidden = sys.modules.pop("llvmlite.binding.ffi", None)
        try:
            register(cls)
        finally:
            if hidden is not None:
                sys.modules["llvmlite.binding.ffi"] = hidden

    CpuPlatform.register_triton_kernel_overrides = classmethod(register_without_llvmlite)
    # The tracker removes shared memory that processes leave. As the server's own child it outlives the engine core,
    # which kills all of its children when it stops.
    resource_tracker.ensure_running()
    gc.freeze()
    gc.enable()
    serve()


def _import_for_children() -> None:
    """What the engine core and the worker would import for themselves, once each."""
    from vllm.v1.engine import core  # noqa: F401
    from vllm.v1.executor import multiproc_executor  # noqa: F401
    from vllm.v1.worker import cpu_worker  # noqa: F401


if __name__ == "__main__":
    main()
