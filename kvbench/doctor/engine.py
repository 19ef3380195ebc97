"""Checks of the engine, its model, and its port. Pure."""

from __future__ import annotations

from kvbench.doctor.check import Check, failed, passed, skipped, warned
from kvbench.doctor.host import Host
from kvbench.engine.proof import same_version
from kvbench.spec.profile import Profile
from kvbench.spec.quantity import show_bytes

__all__ = ["emulated", "engine", "engine_version", "model_files", "port"]


def emulated(profile: Profile, _host: Host) -> Check | None:
    """So that every report of such a run says what its figures are; None for real engines."""
    if profile.engine.kind != "emulated":
        return None
    injected = ", ".join(profile.engine.inject.named()) if profile.engine.inject is not None else ""
    return warned(
        "emulated",
        "the engine is emulated: its times come from a model of costs, not from hardware"
        + (f"; injected: {injected}" if injected else ""),
        "compare on the real engine before anything goes to production",
    )


def engine(_profile: Profile, host: Host) -> Check:
    """Whether the engine is here."""
    found = host.engine
    if found is None:
        return skipped("environment", "this engine is part of kvbench")
    if found.found:
        return passed("environment", found.what if not found.detail else f"{found.what}: {found.detail}")
    make = warned if found.got_on_use else failed
    return make("environment", found.detail, found.do)


def engine_version(profile: Profile, host: Host) -> Check:
    """The pinned version against the one that is here."""
    id_, pinned = "engine_version", profile.engine.version
    found = host.engine.version if host.engine is not None and host.engine.found else None
    if pinned is None:
        if profile.engine.kind in ("vllm", "tensorrt-llm") and profile.engine.image is None:
            shown = f"; {found} is installed" if found else ""
            text = f"the profile pins no version{shown}: flags, defaults and metrics differ between them"
            return warned(id_, text, f"set engine.version: {found}" if found else "set engine.version")
        return skipped(id_, "the profile pins no version")
    if found is None:
        return skipped(id_, f"{pinned} is pinned; which one this is shows at the start")
    if profile.engine.image is not None:
        return _by_label(pinned, found)
    if not same_version(pinned, found):
        return failed(id_, f"{pinned} is pinned, and {found} is installed", f"set engine.version: {found}")
    return passed(id_, f"{found}, as pinned")


def _by_label(pinned: str, found: str) -> Check:
    """Somebody wrote the label; the server itself tells at the start, and another version ends it then."""
    id_ = "engine_version"
    if same_version(pinned, found):
        return passed(id_, f"{found} by the image's label, as pinned")
    text = f"{pinned} is pinned, and the image's label says {found}; which one this is shows at the start"
    return warned(id_, text, f"set engine.version: {found}, or name an image of {pinned}")


def model_files(_profile: Profile, host: Host) -> Check:
    """Whether everything that the model consists of is here."""
    id_, model = "model_files", host.model
    if model is None:
        return skipped(id_, "the model is the server's, or emulated")
    if not model.present:
        if model.made_on_use:
            return warned(id_, f"{model.where} is not here yet", "it is made or downloaded at the first start")
        text = f"{model.where} holds no model: it has no config.json"
        return failed(id_, text, "give a model directory, a hub id or a built-in model")
    if model.missing:
        names = ", ".join(model.missing[:3]) + (", ..." if len(model.missing) > 3 else "")
        text = f"{model.where} is not whole: {names}"
        return failed(id_, text, "download it again; with git, run git lfs pull", len(model.missing), "files", 0)
    parameters = f", {model.parameters / 1e6:,.3g} million parameters a token" if model.parameters else ""
    kv = f", {show_bytes(model.kv_bytes_per_token)} of KV per token" if model.kv_bytes_per_token else ""
    text = f"{show_bytes(model.weights_bytes)} of weights{parameters}{kv}"
    return passed(id_, text, model.weights_bytes, "bytes")


def port(_profile: Profile, host: Host) -> Check:
    """The port that the profile asks for."""
    seen = host.port
    if seen is None:
        return passed("port", "kvbench takes a free one")
    if seen.free:
        return passed("port", f"port {seen.port} is free", seen.port)
    who = f" by process {', '.join(map(str, seen.holders))}" if seen.holders else " by another process"
    do = "stop that process, or leave `port` out of engine.args: kvbench then takes a free one"
    return failed("port", f"port {seen.port} is in use{who}", do, seen.port)
