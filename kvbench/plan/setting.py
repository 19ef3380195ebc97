"""What an answer about a trace assumes of model, GPU and paths; the user's word replaces each. Bytes, seconds."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.errors import InputError
from kvbench.plan.budget import UTILIZATION, Memory, memory_budget
from kvbench.plan.geometry import KvGeometry, geometry_of
from kvbench.plan.known_models import YARDSTICK
from kvbench.plan.layers import Config, layer_kinds, text_config, whole
from kvbench.plan.named_model import NamedModel, named_model
from kvbench.plan.weights import weights_of
from kvbench.spec.bounds import BANDWIDTH, LARGEST_BYTES, Range, check_option
from kvbench.spec.quantity import parse_quantity, show_bytes

__all__ = ["Setting", "Wishes", "given_bytes", "given_share", "make_setting"]

GPU_BYTES = 80 * 2**30
HOST_BYTES = 256 * 2**30
DISK_BYTES = 2 * 2**40
PATH_BYTES_PER_S = 25e9
"""PCIe 4.0 x16: 31.5 GB/s each way after encoding, of which copies reach about 80 %."""
DISK_BYTES_PER_S = 5e9
"""One NVMe drive on PCIe 4.0 x4, large sequential reads."""
FLOP_PER_S = 4e14
"""A GPU of 989 TFLOP/s in bfloat16 (dense) of which prefill reaches 40 %."""
_MOST_RANKS = 64
_SLOWEST_PREFILL = 1e-6
_PREFILL = Range(_SLOWEST_PREFILL, 1e12, "0.000001/s and 1e12/s")
"""The upper end is a thousand times what the largest machines compute."""
_SIZE = Range(0, LARGEST_BYTES, "0 and 1024PiB")


@dataclass(frozen=True)
class Wishes:
    """Options as the user wrote them; None: not said."""

    model: str | None = None
    kv_dtype: str = "auto"
    device_kv: str | None = None
    host_kv: str | None = None
    disk_kv: str | None = None
    path: str | None = None
    disk_path: str | None = None
    prefill: str | None = None
    tensor_parallel: int | None = None
    """GPUs that share every layer, as a profile says; None: as few as hold the model."""
    pipeline_parallel: int = 1
    """Stages that share the layers, each of as many GPUs."""
    utilization: float | None = None
    """Share of a GPU that the engine uses, as a profile says; None: vLLM's default."""
    free_share: float | None = None
    """Instead, the share of what weights and workspace leave (TensorRT-LLM)."""


@dataclass(frozen=True)
class Setting:
    """One model on one kind of machine."""

    geometry: KvGeometry
    device_bytes: int
    host_bytes: int
    disk_bytes: int
    path_bytes_per_s: float
    disk_bytes_per_s: float
    prefill_tokens_per_s: float
    attention_s: float
    """Seconds of attention for each pair of a computed token and a token before it."""
    weights_bytes: int
    assumptions: tuple[str, ...]
    """Everything in here that the user did not say, in words."""
    pipeline_parallel: int = 1

    @property
    def token_bytes(self) -> int:
        """KV bytes of a token as tiers keep it."""
        return self.geometry.block_token_bytes

    @property
    def recompute_s(self) -> float:
        """Seconds to compute a prompt token."""
        return 1.0 / self.prefill_tokens_per_s

    @property
    def ranks(self) -> int:
        """GPUs that share the model, each with a path of its own."""
        return self.geometry.tensor_parallel * self.pipeline_parallel

    def load_s(self, tier: str) -> float:
        """Seconds to bring a token's KV to the device: from the host, or from the disk into the host and then on.

        A promotion is read whole before vLLM loads it from the host, so that the two do not overlap.
        """
        host_s = self.token_bytes / self.path_bytes_per_s
        return host_s if tier == "host" else host_s + self.token_bytes / self.disk_bytes_per_s

    def document(self) -> dict[str, object]:
        """For machines."""
        return {
            "model": self.geometry.name,
            "kv_dtype": self.geometry.kv_dtype,
            "bytes_per_token": self.token_bytes,
            "device_bytes": self.device_bytes,
            "host_bytes": self.host_bytes,
            "disk_bytes": self.disk_bytes,
            "path_bytes_per_s": self.path_bytes_per_s,
            "disk_bytes_per_s": self.disk_bytes_per_s,
            "prefill_tokens_per_s": self.prefill_tokens_per_s,
            "assumptions": list(self.assumptions),
        }


def make_setting(wishes: Wishes | None = None) -> Setting:
    """What the user says, and for the rest stated assumptions. InputError names the option at fault."""
    wishes = wishes or Wishes()
    notes: list[str] = []
    model = _model(wishes, notes)
    device, tensor_parallel = _device(wishes, model, notes)
    ranks = tensor_parallel * wishes.pipeline_parallel
    geometry = geometry_of(
        model.config, kv_dtype=wishes.kv_dtype, tensor_parallel=tensor_parallel, name=model.name, where=model.where
    )
    if geometry.block_token_bytes == 0:
        raise InputError(
            f"{model.name} keeps no KV of its tokens, only a state of fixed size: tiers hold nothing of it",
            where=model.where,
            do="name a model with attention layers (--model)",
        )
    weights = weights_of(model.config, model.directory)
    if wishes.prefill is None:
        notes.append(f"prefill: {ranks} × {FLOP_PER_S / 1e12:.0f} TFLOP/s over 2 FLOP a parameter and token")
    return Setting(
        geometry=geometry,
        device_bytes=device,
        host_bytes=_size("--host-kv", wishes.host_kv, HOST_BYTES, "host tier", notes),
        disk_bytes=_size("--disk-kv", wishes.disk_kv, DISK_BYTES, "disk tier", notes),
        path_bytes_per_s=_rate("--path", wishes.path, PATH_BYTES_PER_S * ranks, "path to the device", notes),
        disk_bytes_per_s=_rate("--disk-path", wishes.disk_path, DISK_BYTES_PER_S, "reads from disk", notes),
        prefill_tokens_per_s=ranks * FLOP_PER_S / (2 * weights.active_parameters)
        if wishes.prefill is None
        else _tokens_per_s(wishes.prefill),
        attention_s=_attention_flop(model.config) / (ranks * FLOP_PER_S),
        weights_bytes=weights.size_bytes,
        assumptions=tuple(notes),
        pipeline_parallel=wishes.pipeline_parallel,
    )


def _model(wishes: Wishes, notes: list[str]) -> NamedModel:
    if wishes.model is None:
        notes.append(f"model: {YARDSTICK}")
    return named_model(wishes.model or YARDSTICK)


def _device(wishes: Wishes, model: NamedModel, notes: list[str]) -> tuple[int, int]:
    """(KV bytes on the device, GPUs of 80 GiB in a stage). Unless it is said, as few as leave some room."""
    used = UTILIZATION if wishes.utilization is None else wishes.utilization
    memory = Memory(GPU_BYTES, utilization=used if wishes.free_share is None else 1.0)
    ranks = wishes.tensor_parallel or 1
    while True:
        budget = memory_budget(
            model,
            memory,
            kv_dtype=wishes.kv_dtype,
            tensor_parallel=ranks,
            pipeline_parallel=wishes.pipeline_parallel,
        )
        enough = budget.kv_bytes > GPU_BYTES // 10 or ranks >= _MOST_RANKS
        if wishes.tensor_parallel is not None or enough:
            break
        ranks *= 2
    if wishes.device_kv is not None:
        return given_bytes("--device-kv", wishes.device_kv), ranks
    total = round(budget.kv_total_bytes * (wishes.free_share or 1.0))
    share = f"{used:.0%} of" if wishes.free_share is None else f"{wishes.free_share:.0%} of what is free of"
    gpus = ranks * wishes.pipeline_parallel
    notes.append(f"device tier: {show_bytes(total)}, what {share} {gpus} × 80 GiB leaves beside the weights")
    return total, ranks


def _attention_flop(config: Config) -> float:
    """Of one pair of tokens: a product with the key and one with the value in every head of every layer."""
    text = text_config(config)
    heads, hidden = whole(text, "num_attention_heads"), whole(text, "hidden_size")
    head = text.get("head_dim")
    layers = sum(kind == "full" for kind in layer_kinds(text))
    return 4.0 * layers * heads * (head if isinstance(head, int) else hidden // heads)


def _size(option: str, text: str | None, default: int, what: str, notes: list[str]) -> int:
    if text is None:
        notes.append(f"{what}: {show_bytes(default)}")
        return default
    return given_bytes(option, text)


def given_bytes(option: str, text: str) -> int:
    """A size from the command line. InputError names the option."""
    try:
        size = parse_quantity(text, "bytes")
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None
    if size < 0:
        raise InputError(f"{option}: a size cannot be negative, got {text}")
    return round(check_option(option, size, _SIZE, text))


def given_share(option: str, text: str) -> float:
    """A share above 0 up to 1 from the command line, such as 90%. InputError names the option."""
    try:
        share = parse_quantity(text, "fraction")
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None
    if not 0 < share <= 1:
        raise InputError(f"{option}: expected a share above 0 up to 100%, got {text}")
    return share


def _rate(option: str, text: str | None, default: float, what: str, notes: list[str]) -> float:
    if text is None:
        notes.append(f"{what}: {default / 1e9:.3g} GB/s")
        return default
    try:
        rate = parse_quantity(text, "bytes per second")
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None
    if rate < 1:
        raise InputError(f"{option}: a bandwidth is above zero and at least one byte per second, got {text}")
    return check_option(option, rate, BANDWIDTH, text)


def _tokens_per_s(text: str) -> float:
    try:
        rate = parse_quantity(text, "per second")
    except ValueError as error:
        raise InputError(f"--prefill: {error}") from None
    if rate < _SLOWEST_PREFILL:
        raise InputError(f"--prefill: tokens per second are above zero, got {text}")
    return check_option("--prefill", rate, _PREFILL, text)
