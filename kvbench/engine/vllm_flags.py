"""Whether a vLLM has every flag that kvbench writes for it, and whose flag it is when it has not. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kvbench.engine.flags import Flags, flag_name
from kvbench.engine.models import engine_args
from kvbench.errors import InputError, KeyPath, dotted
from kvbench.spec.profile import Profile

__all__ = ["check_written_flags"]

WRITTEN_FOR: Mapping[str, KeyPath] = {
    "model": ("engine", "model"),
    "served-model-name": ("engine", "model"),
    "revision": ("engine", "revision"),
    "gpu-memory-utilization": ("tiers", "device", "memory_utilization"),
    "num-gpu-blocks-override": ("tiers", "device", "blocks"),
    "kv-cache-dtype": ("tiers", "device", "kv_dtype"),
    "kv-offloading-size": ("tiers", "host"),
    "kv-offloading-backend": ("tiers", "host"),
    "kv-transfer-config": ("tiers", "host"),
}
"""The key of a profile for whose sake a flag is written; kvbench writes the others for its own."""

OWN: KeyPath = ("engine", "version")
"""The key that is at fault where a flag is written for none."""


def check_written_flags(profile: Profile, argv: Sequence[str], flags: Flags, *, engine: str) -> None:
    """InputError for the first flag of `argv` that this engine does not have, or that does not take its value.

    Those that the profile's `args` name are checked by `check_flags`.
    """
    given = {flag_name(key).partition(".")[0] for key in profile.engine.args}
    for name, value in _written(argv):
        if name.removeprefix("no-") in given or name in given:
            continue
        if name not in flags.choices:
            raise _missing(profile, name, flags, engine)
        allowed = flags.choices[name]
        if allowed and value is not None and value not in allowed:
            raise InputError(
                f"{engine} does not take {value!r} for --{name}",
                key=WRITTEN_FOR.get(name, OWN),
                do=f"one of: {', '.join(allowed)}",
            )


def _written(argv: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Flags with their values; no value of kvbench's begins with two dashes."""
    for index, word in enumerate(argv):
        if word.startswith("--"):
            value = argv[index + 1] if index + 1 < len(argv) else None
            name, dot, _ = word.removeprefix("--").partition(".")
            yield name, None if dot or value is None or value.startswith("--") else value


def _missing(profile: Profile, name: str, flags: Flags, engine: str) -> InputError:
    near = flags.nearest(name)
    nearest = f"; the nearest that it has is --{near}" if near is not None else ""
    key = WRITTEN_FOR.get(name)
    if key is not None:
        return InputError(
            f"{engine} has no flag --{name}, which this key needs{nearest}",
            key=key,
            do=f"use a version that has it, or leave {dotted(key)} out"
            if key[0] == "tiers"
            else "use another version",
        )
    if name.removeprefix("no-") in engine_args(profile.engine.model):
        return InputError(
            f"{engine} has no flag --{name}, which the built-in model {profile.engine.model} needs{nearest}",
            key=("engine", "model"),
            do="use a version that has it, or another model",
        )
    return InputError(
        f"profile {profile.name}: {engine} has no flag --{name}, with which kvbench starts every vLLM{nearest}",
        key=OWN,
        do="use a version that has it, or start the server yourself and use kind: attached",
    )
