"""The first moments of a run."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path

import pytest
from rich.console import Console

from kvbench.compare import command
from kvbench.compare.prediction import Predicted
from kvbench.compare.request import Request, prepared
from kvbench.errors import Interrupted
from kvbench.interrupts import stop_on_signals
from kvbench.record.run_directory import RunDirectory
from kvbench.spec.crew import Crew


class Stopped(Predicted):
    """The signal comes while its plans are being stored."""

    def store(self, run: RunDirectory) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        super().store(run)


def test_a_signal_in_its_first_moment_leaves_a_run_that_can_be_gone_on_with(tmp_path: Path) -> None:
    console = Console(file=io.StringIO())
    request = Request(["cpu/demo-baseline", "cpu/demo-host-and-disk"], "demo", "demo")
    experiment, warnings = prepared(request, console)
    with stop_on_signals(), pytest.raises(Interrupted) as stopped:
        command.compare(experiment, warnings, tmp_path, Crew(), Stopped(), console=console, as_json=True)
    (run,) = tmp_path.iterdir()
    assert stopped.value.do == f"go on with `kvbench compare --resume {run}`"
    manifest = RunDirectory.open(run).read_manifest()
    assert (manifest.state, manifest.run_id, manifest.rounds) == ("running", run.name, [])
