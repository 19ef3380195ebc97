"""How many processes share a copy of the model, and how many copies there are, each with tiers of its own. Pure."""

from __future__ import annotations

from kvbench.engine.flags import flag_name
from kvbench.spec.profile import Profile

__all__ = ["ranks", "replicas"]

SHARES = (
    ("tensor-parallel-size", "tp-size"),
    ("pipeline-parallel-size", "pp-size"),
    ("context-parallel-size", "cp-size"),  # TensorRT-LLM's
    ("prefill-context-parallel-size",),  # vLLM's; that of decoding takes no GPUs of its own
)
"""What the engines call the numbers whose product is the ranks of one copy."""

COPIES = (("data-parallel-size-local",), ("data-parallel-size",))
"""vLLM's: of these on this host, when it is said, else of all."""


def ranks(profile: Profile) -> int:
    """Processes with a share of the model each, of one replica."""
    count = 1
    for names in SHARES:
        count *= _given(profile, names) or 1
    return count


def replicas(profile: Profile) -> int:
    """Copies of the engine on this host behind one server."""
    return next((given for names in COPIES if (given := _given(profile, names)) is not None), 1)


def _given(profile: Profile, names: tuple[str, ...]) -> int | None:
    args = {flag_name(key): value for key, value in profile.engine.args.items()}
    given = next((args[name] for name in names if name in args), None)
    return given if isinstance(given, int) and not isinstance(given, bool) and given > 0 else None
