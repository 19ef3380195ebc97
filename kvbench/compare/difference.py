"""One variable at a time: what the arms' rendered commands differ in, and which differences may be.

Values of environment variables may be private: names alone are shown.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping

from rich.console import Console

from kvbench.engine.base import Rendered
from kvbench.engine.create import render_profile
from kvbench.errors import InputError
from kvbench.report.streams import say
from kvbench.spec.crosscheck import named_differences
from kvbench.spec.loading import Experiment, where
from kvbench.spec.profile import Profile

__all__ = [
    "allowed_differences",
    "forbidden_differences",
    "refuse_differences",
    "rendered_difference",
    "rendered_differences",
    "show_differences",
]

ALLOW = "--allow-difference"


def forbidden_differences(experiment: Experiment) -> list[str]:
    """`candidate: engine.args.seed: 1 against 2` for everything outside tiers that was not allowed by name."""
    return [f"{name}: {text}" for name, key, text in _outside(experiment) if key not in experiment.allowed]


def allowed_differences(experiment: Experiment) -> list[str]:
    """The same for what was allowed."""
    return [f"{name}: {text}" for name, key, text in _outside(experiment) if key in experiment.allowed]


def _outside(experiment: Experiment) -> Iterable[tuple[str, str, str]]:
    for candidate in experiment.candidates:
        for key, text in named_differences(experiment.baseline, candidate).items():
            yield candidate.name, key, text


def refuse_differences(experiment: Experiment) -> None:
    """InputError when arms differ in more than their tiers: the verdict could not say what made the difference."""
    for candidate in experiment.candidates:
        found = named_differences(experiment.baseline, candidate)
        forbidden = {key: text for key, text in found.items() if key not in experiment.allowed}
        if forbidden:
            options = " ".join(f"{ALLOW} {key}" for key in forbidden)
            raise InputError(
                f"'{candidate.name}' differs from the baseline outside its tiers: {'; '.join(forbidden.values())}",
                where=where(candidate, next(iter(forbidden))) or where(candidate),
                do=f"make them equal, or allow them by name: {options}",
            )


def rendered_differences(experiment: Experiment) -> dict[str, list[str]]:
    """For each candidate what its start has that the baseline's has not (`+`), and the other way round (`-`).

    Attached servers have none. Nothing has to be installed for it, so an InputError tells what is wrong with an arm
    wherever it were started.
    """
    baseline = _rendered(experiment.baseline)
    return {arm.name: rendered_difference(baseline, _rendered(arm)) for arm in experiment.candidates}


def _rendered(profile: Profile) -> Rendered:
    """With the arm's own name, which stands in engine ids and paths, taken out."""
    if profile.engine.kind == "attached":
        return Rendered(argv=(), env={})
    return _without_name(render_profile(profile), f"kvbench-{profile.name}")


def _without_name(rendered: Rendered, own: str) -> Rendered:
    return Rendered(
        argv=tuple(word.replace(own, "kvbench-ARM") for word in rendered.argv),
        env={name: value.replace(own, "kvbench-ARM") for name, value in rendered.env.items()},
        files={
            path.replace(own, "kvbench-ARM"): text.replace(own, "kvbench-ARM")
            for path, text in rendered.files.items()
        },
        beside={name: _without_name(each, own) for name, each in rendered.beside.items()},
    )


def rendered_difference(baseline: Rendered, candidate: Rendered) -> list[str]:
    """Arguments, then environment, then files, then what is started beside; nothing when they are the same."""
    return [
        *_argument_lines(_flags(baseline.argv), _flags(candidate.argv)),
        *_environment_lines(baseline.env, candidate.env),
        *_file_lines(baseline.files, candidate.files),
        *_beside_lines(baseline.beside, candidate.beside),
    ]


def _beside_lines(here: Mapping[str, Rendered], there: Mapping[str, Rendered]) -> list[str]:
    lines = []
    for name in dict.fromkeys((*here, *there)):
        pair = (here.get(name, Rendered((), {})), there.get(name, Rendered((), {})))
        lines += [f"{line} (of {name}, started beside it)" for line in rendered_difference(*pair)]
    return lines


def _flags(argv: Iterable[str]) -> dict[str, list[str]]:
    """Flag → each time it is given, with its values; what stands before the first flag is the command."""
    flags: dict[str, list[str]] = {}
    words: list[str] = []
    for word in argv:
        if word.startswith("--"):
            words = [word]
            flags.setdefault(word.partition("=")[0], []).append(word)
            continue
        words.append(word)
        given = flags.setdefault(words[0] if words[0].startswith("--") else "", [""])
        given[-1] = " ".join(words)
    return flags


def _argument_lines(here: Mapping[str, list[str]], there: Mapping[str, list[str]]) -> list[str]:
    lines = []
    for flag in dict.fromkeys((*here, *there)):
        before, after = Counter(here.get(flag, [])), Counter(there.get(flag, []))
        lines += [f"- {text}" for text in (before - after).elements()]
        lines += [f"+ {text}" for text in (after - before).elements()]
    return lines


def _environment_lines(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    names = [name for name in sorted({*here, *there}) if here.get(name) != there.get(name)]
    marks = {name: "+" if name not in here else "-" if name not in there else "±" for name in names}
    return [f"{mark} {name} in the environment" for name, mark in marks.items()]


def _file_lines(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    lines = []
    for path in dict.fromkeys((*here, *there)):
        pair = (here.get(path, "").splitlines(), there.get(path, "").splitlines())
        changed = [line for line in difflib.unified_diff(*pair, lineterm="", n=0) if line[:3] not in ("---", "+++")]
        lines += [f"{line[0]} {line[1:].strip()} in {path}" for line in changed if line[:2] != "@@"]
    return lines


def show_differences(console: Console, differences: Mapping[str, list[str]]) -> None:
    """For people, before anything starts."""
    for name, lines in differences.items():
        if lines:
            say(console, f"{name} against the baseline, as they would be started:")
            for line in lines:
                say(console, f"  {line}")
