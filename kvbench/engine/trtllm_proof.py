"""What a running TensorRT-LLM proves about itself, and where that differs from its profile.

Its blocks by cache level come with its first cache event; sizes in bytes are not told, so they are worked out from
the model where that is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import httpx

from kvbench.engine.base import Effective
from kvbench.engine.containers import ImageFacts
from kvbench.engine.proof import ask_server, check_version
from kvbench.engine.tensorrt_llm import extra_options, ranks
from kvbench.engine.trtllm_ledger import TrtllmLedger
from kvbench.engine.trtllm_options import defaults_left
from kvbench.engine.trtllm_reader import TrtllmReader
from kvbench.spec.profile import Profile
from kvbench.spec.quantity import show_bytes

__all__ = ["prove"]


@dataclass
class _Findings:
    differences: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    raw: dict[str, object] = field(default_factory=dict)


def prove(
    profile: Profile,
    client: httpx.Client,
    reader: TrtllmReader,
    image: ImageFacts | None,
    defaults: dict[str, str] | None,
) -> Effective:
    """Everything that the server tells. EngineError when it is of another version than the profile pins.

    `defaults`: what its own models said of keys that the YAML leaves out; None: they could not be asked.
    """
    seen = ask_server(client, reader.url)
    check_version(profile, seen.version)
    found = _Findings(raw={k: v for k, v in seen.texts.items() if v is not None})
    if seen.version is None:
        found.unknown.append("the version")
    if image is not None:
        found.raw["container"] = image.as_dict()
    ledger = reader.ledger
    options = extra_options(profile)
    found.raw["blocks_by_level"] = list(ledger.levels) if ledger.levels is not None else None
    found.raw["statistics_missing"] = list(reader.missing)
    found.unknown += [f"{path}: this server has no such statistics" for path in reader.missing]
    found.unknown += ["max_seq_len"] if "max_seq_len" in profile.engine.args else []
    found.raw["defaults_told"] = defaults
    found.raw["defaults_left"] = defaults_left(options.kv_cache_config, seen.version, defaults)
    found.unknown += _untold(profile)
    _tokens_per_block(ledger, options.kv_cache_config.tokens_per_block, found)
    host_bytes = _host(profile, ledger, found)
    names = [str(model.get("id")) for model in seen.models or []]
    return Effective(
        version=seen.version,
        model=names[0] if len(names) == 1 else None,
        max_model_len=None,
        block_tokens=ledger.tokens_per_block if ledger.iterations else None,
        device_blocks=_device_blocks(profile, ledger, found),
        kv_dtype=None,
        prefix_caching=None,
        host_bytes=host_bytes,
        disk=False if ledger.levels is not None and len(ledger.levels) <= 2 else None,
        differences=tuple(found.differences),
        unknown=tuple(found.unknown),
        raw=found.raw,
    )


def _untold(profile: Profile) -> list[str]:
    """What a profile asks for and no server of this kind tells."""
    device = profile.tiers.device
    asked = {"kv_dtype": device.kv_dtype != "auto", "memory_utilization": device.memory_utilization is not None}
    return [*(what for what, said in asked.items() if said), "whether the device keeps prefixes"]


def _tokens_per_block(ledger: TrtllmLedger, asked: int, found: _Findings) -> None:
    if not ledger.iterations:
        found.unknown.append("the block size: no iteration has been told")
    elif ledger.tokens_per_block != asked:
        found.differences.append(f"the block size is {ledger.tokens_per_block}, not {asked} as asked")


def _device_blocks(profile: Profile, ledger: TrtllmLedger, found: _Findings) -> int | None:
    blocks = ledger.levels[0] if ledger.levels else None
    asked = profile.tiers.device.blocks
    if blocks is None:
        found.unknown.append("the number of device blocks")
    elif asked is not None and blocks != asked:
        found.differences.append(f"the number of device blocks is {blocks}, not {asked} as asked")
    return blocks


def _host(profile: Profile, ledger: TrtllmLedger, found: _Findings) -> int | None:
    """Bytes of the host tier, 0 where there is provably none; None: not known."""
    blocks, host = ledger.host_blocks, profile.tiers.host
    if blocks is None:
        found.unknown.append("that there is no host tier" if host is None else "the host tier")
        return None
    if host is None:
        if blocks:
            found.differences.append(
                f"the profile has no host tier, but the server keeps {blocks:,} blocks in host memory"
            )
        return 0 if not blocks else None
    if not blocks:
        found.differences.append("the profile has a host tier, but the server has none")
        return 0
    return _sized(profile, ledger, blocks, host.size, found)


def _sized(profile: Profile, ledger: TrtllmLedger, blocks: int, asked: int, found: _Findings) -> int | None:
    from kvbench.plan.profile_geometry import kv_bytes_per_token  # plans read engines, too

    per_token = kv_bytes_per_token(profile)
    if per_token is None:
        found.unknown.append(f"the size of the host tier in bytes (it has {blocks:,} blocks)")
        return None
    held = blocks * ledger.tokens_per_block * per_token
    one = ledger.tokens_per_block * per_token * ranks(profile.engine.args)
    # Whole blocks on every rank only.
    if not asked - 2 * one < held <= asked:
        found.differences.append(f"the host tier holds {show_bytes(held)}, not {show_bytes(asked)} as asked")
    return held
