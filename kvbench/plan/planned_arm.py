"""The engine that a plan is about: blocks, tiers and costs, ready for the emulated core. Blocks, bytes, s."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvbench.engine.emulated.sizes import DEVICE_BLOCKS
from kvbench.engine.models import BUILT_IN_MODELS, model_directory
from kvbench.errors import InputError
from kvbench.plan.engine_costs import EngineCosts, profile_costs
from kvbench.plan.host_rules import HostRules, host_rules
from kvbench.plan.probe_file import ProbeFile
from kvbench.plan.profile_geometry import kv_bytes_per_token
from kvbench.plan.setting import Setting, Wishes, make_setting
from kvbench.spec.emulation import Emulation, Noise
from kvbench.spec.fitness import usual_block_tokens
from kvbench.spec.profile import HostTier, Profile, Tiers
from kvbench.spec.quantity import show_bytes

__all__ = ["PlannedArm", "planned_arm"]

CPU_BATCH = {"max-num-batched-tokens": 2_048, "max-num-seqs": 128}
"""What vLLM 0.32's server takes in a step on a CPU unless told (`EngineArgs.get_batch_defaults`); longer prompts
are computed in several."""
_RANKS = ("tensor-parallel-size", "tensor_parallel_size", "tp_size", "tp-size")
_STAGES = ("pipeline-parallel-size", "pipeline_parallel_size", "pp_size", "pp-size")
_FREE_SHARE = 0.9
"""TensorRT-LLM's default for `free_gpu_memory_fraction`."""


@dataclass(frozen=True)
class PlannedArm:
    """A profile with everything said that the core needs to know."""

    profile: Profile
    asked: Profile
    """As it was read."""
    setting: Setting
    costs: EngineCosts
    block_tokens: int
    token_bytes: int
    device_blocks: int
    assumptions: tuple[str, ...]

    @property
    def block_bytes(self) -> int:
        """KV of one block."""
        return self.block_tokens * self.token_bytes

    @property
    def host_blocks(self) -> int:
        """What the host tier holds; 0 without one."""
        host = self.profile.tiers.host
        return host.size // self.block_bytes if host is not None else 0

    @property
    def host_rules(self) -> HostRules:
        """What the host tier keeps and gives up; of an arm without one, what one would."""
        return host_rules(self.profile.tiers.host, self.block_tokens)

    @property
    def capacities_tokens(self) -> dict[str, int]:
        """By tier, where its size is known."""
        found = {"device": self.device_blocks * self.block_tokens}
        return found | ({"host": self.host_blocks * self.block_tokens} if self.host_blocks else {})

    @property
    def disk(self) -> bool:
        """Whether there is a disk tier."""
        return self.profile.tiers.disk is not None

    @property
    def emulation(self) -> Emulation:
        """Without noise: a plan tells what is to be expected, not how it varies."""
        return Emulation(costs=self.costs.costs, noise=Noise(launch=0.0, level=0.0, step=0.0))

    def without_tiers(self) -> Profile:
        """The same device alone."""
        return self._with(Tiers(device=self.profile.tiers.device))

    def with_host(self, size: int) -> Profile:
        """The same with a host tier of so many bytes, and no disk."""
        host = self.profile.tiers.host
        sized = host.model_copy(update={"size": size}) if host is not None else HostTier(size=size)
        return self._with(Tiers(device=self.profile.tiers.device, host=sized))

    def _with(self, tiers: Tiers) -> Profile:
        return self.profile.model_copy(update={"tiers": tiers})


def planned_arm(profile: Profile, wishes: Wishes, probe: ProbeFile | None) -> PlannedArm:
    """Sizes and costs of a profile. InputError when the model's KV cannot be told."""
    known = profile.engine.kind == "emulated" or profile.engine.model in BUILT_IN_MODELS
    setting = make_setting(_about_the_gpus(profile, _about_the_model(profile, wishes, known=known)))
    notes: list[str] = []
    block_tokens = usual_block_tokens(profile.engine)
    token_bytes = _token_bytes(profile, wishes, setting, known=known)
    block_bytes = block_tokens * token_bytes
    blocks = _device_blocks(profile, wishes, setting, block_bytes, notes, known=known)
    costs = profile_costs(profile, setting, probe, block_tokens=block_tokens, block_bytes=block_bytes)
    batch: dict[str, int] = {}
    if profile.engine.environment == "vllm-cpu":
        batch, costs = CPU_BATCH, costs.on_shared_cores()
    args = {**batch, **profile.engine.args, "block-size": block_tokens}
    args.setdefault("max-model-len", blocks * block_tokens)
    device = profile.tiers.device.model_copy(update={"blocks": blocks, "memory_utilization": None})
    complete = profile.model_copy(
        update={
            "engine": profile.engine.model_copy(update={"args": args}),
            "tiers": profile.tiers.model_copy(update={"device": device}),
        }
    )
    relevant = tuple(costs.assumptions) if costs.source != "assumed" else _of_paths(costs, wishes, profile)
    return PlannedArm(complete, profile, setting, costs, block_tokens, token_bytes, blocks, (*notes, *relevant))


def _of_paths(costs: EngineCosts, wishes: Wishes, profile: Profile) -> tuple[str, ...]:
    """What the setting assumes and the plan uses; sizes of tiers are the profile's own."""
    unused = ["host tier:", "disk tier:", "device tier:"]
    if wishes.model is not None or not isinstance(model_directory(profile.engine.model), str):
        unused.append("model:")
    return tuple(note for note in costs.assumptions if not note.startswith(tuple(unused)))


def _about_the_model(profile: Profile, wishes: Wishes, *, known: bool) -> Wishes:
    """The model of the profile, where it lies on this machine; else the user names one."""
    if wishes.model is not None:
        return replace(wishes, kv_dtype=_kv_dtype(profile, wishes))
    if known:
        return wishes
    where = model_directory(profile.engine.model)
    if isinstance(where, str) or not (where / "config.json").is_file():
        raise InputError(
            f"the KV of model {profile.engine.model!r} is not known: its config.json is not on this machine",
            do="name a directory, a config.json or a known model: --model Llama-3.1-8B",
        )
    return replace(wishes, model=str(where), kv_dtype=_kv_dtype(profile, wishes))


def _about_the_gpus(profile: Profile, wishes: Wishes) -> Wishes:
    """How many share the model, and how much of each the engine uses."""
    tensorrt = profile.engine.kind == "tensorrt-llm"
    share = profile.tiers.device.memory_utilization
    told, stages = _told(profile, _RANKS), _told(profile, _STAGES)
    if told is None and profile.engine.kind in ("vllm", "tensorrt-llm"):
        told = 1  # what the engine takes unless it is told
    if told is not None and told < 1:
        raise InputError(f"{told} GPUs cannot share a model", do="give tensor-parallel-size as 1 or more")
    if stages is not None and stages < 1:
        raise InputError(f"{stages} stages cannot share a model", do="give pipeline-parallel-size as 1 or more")
    return replace(
        wishes,
        tensor_parallel=told,
        pipeline_parallel=stages or 1,
        utilization=None if tensorrt else share,
        free_share=(_FREE_SHARE if share is None else share) if tensorrt else None,
    )


def _told(profile: Profile, flags: tuple[str, ...]) -> int | None:
    """What the engine is told by one of these flags."""
    values = (profile.engine.args.get(flag) for flag in flags)
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), None)


def _kv_dtype(profile: Profile, wishes: Wishes) -> str:
    return wishes.kv_dtype if wishes.kv_dtype != "auto" else profile.tiers.device.kv_dtype


def _token_bytes(profile: Profile, wishes: Wishes, setting: Setting, *, known: bool) -> int:
    if wishes.model is not None or not known:
        return setting.token_bytes
    told = kv_bytes_per_token(profile)
    if told is None:
        raise InputError(
            f"the KV of model {profile.engine.model!r} is not known: it has not been made yet",
            do="run `kvbench engine start` on the profile once, or name a config.json with --model",
        )
    return told


def _device_blocks(
    profile: Profile, wishes: Wishes, setting: Setting, block_bytes: int, notes: list[str], *, known: bool
) -> int:
    """As the profile says, else what the GPU leaves, else the emulated engine's default."""
    blocks = profile.tiers.device.blocks
    if wishes.device_kv is None and blocks is not None:
        return blocks
    if wishes.device_kv is None and known:
        notes.append(f"device: {DEVICE_BLOCKS} blocks, since the profile does not say")
        return DEVICE_BLOCKS
    if wishes.device_kv is None:
        notes.append(next((note for note in setting.assumptions if note.startswith("device tier:")), "device tier"))
    found = setting.device_bytes // block_bytes
    if found < 2:
        raise InputError(
            f"the device holds less than two blocks of KV: beside the weights, {setting.ranks} × 80 GiB leave "
            f"{show_bytes(setting.device_bytes)}"
            if wishes.device_kv is None
            else "the device holds less than two blocks of KV",
            do="give it more with --device-kv, or more GPUs with tensor-parallel-size",
        )
    return found
