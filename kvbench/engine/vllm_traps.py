"""Settings of vLLM that are valid and mislead, in sentences. Pure but for a look at the model's configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvbench.engine.flags import flag_name
from kvbench.spec.fitness import block_tokens
from kvbench.spec.profile import HostTier, Profile
from kvbench.spec.quantity import show_bytes

__all__ = ["traps"]

LEAST_BLOCK = 16
"""Tokens in a block where the profile leaves it to the engine: CUDA's default, and no platform's is smaller."""
PAGE_BYTES = 4096
FEW = 4
"""Prompts on their way from a tier behind the host, below which it is called small. vLLM takes hundreds of requests
at once unless `max-num-seqs` says otherwise; of 48 hits on disk, a host tier that was too small let 30 through."""


def traps(profile: Profile) -> list[str]:
    """One sentence each, in the order of the profile."""
    args = dict(_positive(flag_name(key), value) for key, value in profile.engine.args.items())
    return [
        *_engine_traps(profile, args),
        *_host_traps(profile, args),
        *_way_traps(profile, args),
        *_disk_traps(profile),
    ]


def _positive(name: str, value: object) -> tuple[str, object]:
    """`no-enable-prefix-caching: true` as `enable-prefix-caching: false`."""
    return (name.removeprefix("no-"), False) if name.startswith("no-") and value is True else (name, value)


def _engine_traps(profile: Profile, args: Mapping[str, object]) -> Iterator[str]:
    if args.get("enable-prefix-caching") is False:
        yield (
            "prefix caching is off, so nothing is ever reused on the device: a tier then beats recomputing, not "
            "the device cache that production has"
        )
    if profile.tiers.host is None:
        return
    if any(name.partition(".")[0] in ("speculative-config", "spec-config") for name in args):
        yield (
            "speculative decoding gives the draft model blocks of its own, and a prefix is found in a tier only "
            "where all groups of blocks are: with some drafts that is never; look at the promoted tokens first"
        )
    replicas = args.get("data-parallel-size", 1)
    if isinstance(replicas, int) and not isinstance(replicas, bool) and replicas > 1:
        total = show_bytes(replicas * profile.tiers.host.size)
        yield f"each of the {replicas} data-parallel replicas gets a host tier of its own: {total} in all"


def _host_traps(profile: Profile, args: Mapping[str, object]) -> Iterator[str]:
    host = profile.tiers.host
    if host is None:
        return
    if host.via == "lmcache":
        yield from _lmcache_traps(profile, host)
    if host.store_threshold == 1:
        yield "tiers.host.store_threshold: 1 is the same as 0; what is stored at the second use is 2"
    elif host.store_threshold > 1:
        yield (
            f"store_threshold: a prefix is stored when it comes for time {host.store_threshold}, so a short "
            "workload sees few promotions"
        )
    if host.max_tracker_size is not None and host.store_threshold < 2:
        yield "tiers.host.max_tracker_size has no effect without a store_threshold of 2 or more"
    chunk, longest = _chunk_bytes(profile, host), _longest_bytes(profile, args)
    if chunk is not None and host.size < chunk:
        yield (
            f"the host tier of {show_bytes(host.size)} is smaller than one chunk ({show_bytes(chunk)}), so it "
            "holds nothing: vLLM starts and answers all the same"
        )
    elif longest is not None and host.size < longest:
        behind = "; hits of such prompts in a tier behind it become misses" if profile.tiers.behind_host else ""
        yield (
            f"the host tier of {show_bytes(host.size)} is smaller than one prompt of "
            f"{_length_named(args)} ({show_bytes(longest)}){behind}"
        )


def _lmcache_traps(profile: Profile, host: HostTier) -> Iterator[str]:
    if host.in_process:
        yield (
            "LMCache inside the engine starts and answers also where it cannot cache (0.5.6: on CPUs), and says so "
            "in the log alone"
        )
        return
    held = round(0.8 * host.size)
    yield (
        "LMCache evicts a fifth of what it holds whenever four fifths of its memory are used: of "
        f"{show_bytes(host.size)} no more than {show_bytes(held)} hold blocks"
    )
    device = _device_bytes(profile)
    if device is not None and held < device and profile.tiers.disk is not None:
        yield (
            f"LMCache's memory ({show_bytes(host.size)}) is no larger than the device tier ({show_bytes(device)}), "
            "so what came from it and what came from files can be told apart only roughly"
        )


def _chunk_bytes(profile: Profile, host: HostTier) -> int | None:
    """What a tier keeps or drops as one; whole memory pages."""
    from kvbench.plan.profile_geometry import kv_bytes_per_token  # plans read engines, too

    per_token = kv_bytes_per_token(profile)
    if per_token is None:
        return None
    tokens = host.tokens_per_chunk(block_tokens(profile.engine) or LEAST_BLOCK)
    if host.via == "lmcache":
        return per_token * tokens
    return -(-per_token * tokens // PAGE_BYTES) * PAGE_BYTES


def _device_bytes(profile: Profile) -> int | None:
    from kvbench.plan.profile_geometry import kv_bytes_per_token  # plans read engines, too

    blocks, tokens, per_token = (
        profile.tiers.device.blocks,
        block_tokens(profile.engine),
        kv_bytes_per_token(profile),
    )
    return blocks * tokens * per_token if blocks and tokens and per_token else None


def _way_traps(profile: Profile, args: Mapping[str, object]) -> Iterator[str]:
    """What comes from a tier behind the host goes through the host."""
    host, longest, at_once = profile.tiers.host, _longest_bytes(profile, args), args.get("max-num-seqs")
    if host is None or not profile.tiers.behind_host:
        return
    if longest is None or longest > host.size or isinstance(at_once, bool):
        return
    if at_once is None and host.size < FEW * longest:
        yield (
            f"the host tier of {show_bytes(host.size)} has room for {host.size // longest} prompts of "
            f"{_length_named(args)} ({show_bytes(longest)}) at once on their way from the tier behind it: what "
            "does not fit is recomputed, and there is no max-num-seqs that keeps others waiting"
        )
    if not isinstance(at_once, int):
        return
    needed = longest * at_once
    if host.size < needed:
        yield (
            f"{at_once} requests at once may need {show_bytes(needed)} of the host tier on the way from the tier "
            f"behind it, and it has {show_bytes(host.size)}: what does not fit is recomputed"
        )


def _disk_traps(profile: Profile) -> Iterator[str]:
    host, disk = profile.tiers.host, profile.tiers.disk
    if host is None or disk is None:
        return
    if disk.size_limit is not None and disk.size_limit < host.size:
        yield (
            f"tiers.disk.size_limit ({show_bytes(disk.size_limit)}) is below the host tier "
            f"({show_bytes(host.size)}): every block in the host is written to the disk too, so the limit will be "
            "reached before the disk can hold anything that the host does not"
        )
    if disk.backpressure is not None:
        yield "back-pressure of the disk tier sees slow writes only: in 0.32 a full disk does not trigger it"


def _longest_bytes(profile: Profile, args: Mapping[str, object]) -> int | None:
    """KV of the longest request; None where length or model are not known."""
    from kvbench.plan.profile_geometry import kv_bytes_per_token, model_length  # plans read engines, too

    length = args.get("max-model-len", model_length(profile))
    if isinstance(length, bool) or not isinstance(length, int) or length <= 0:
        return None
    per_token = kv_bytes_per_token(profile)
    return None if per_token is None else per_token * length


def _length_named(args: Mapping[str, object]) -> str:
    return "max-model-len" if "max-model-len" in args else "the model's own length (there is no max-model-len)"
