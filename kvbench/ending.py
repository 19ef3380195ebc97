"""How a command ends: one message on stderr or one document on stdout, an exit code, never a traceback."""

from __future__ import annotations

import contextlib
import errno
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import cast

import typer
from rich.text import Text

from kvbench.errors import InputError, KvbenchError, NotSupportedYetError
from kvbench.interrupts import stop_on_signals
from kvbench.report.plain import plain_lines
from kvbench.report.streams import discard, flush, people, print_document, tolerate_any_encoding

__all__ = ["LATER", "ended"]

LATER = ("ladder", "drill", "capacity", "workload")
"""Commands that the documentation names; those that are not there yet say so."""

_USAGE_ERRORS = cast(
    "tuple[type[typer.BadParameter], ...]",
    tuple(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException"),
)
"""What typer raises for a wrong call; newer releases carry a Click of their own, older ones import it."""


def ended(command: Callable[[], object]) -> int:
    """Carry out `command`, tell what went wrong with it, and return the exit code."""
    tolerate_any_encoding()
    as_json = "--json" in sys.argv[1:]
    try:
        code = _run(command, as_json)
        flush()
    except BrokenPipeError:  # `kvbench ... | head`: the reader has what it wanted
        discard()
        return 141
    except OSError as error:
        with contextlib.suppress(OSError):
            print(f"error: the output cannot be written: {error.strerror or error}", file=sys.stderr, flush=True)
        discard()
        return KvbenchError.exit_code
    return code


def _run(command: Callable[[], object], as_json: bool) -> int:
    try:
        with stop_on_signals():
            result = command()
        return result if isinstance(result, int) else 0
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer makes it exit 1, which means NO_GO here
            raise end.__context__ from None
        return end.code if isinstance(end.code, int) else 0
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort:
        return 130
    except Exception as error:  # noqa: BLE001 - told, and recorded where it is a fault of kvbench's own
        return _failed(error, as_json)


def _failed(error: Exception, as_json: bool) -> int:
    """Tell what went wrong; the exit code. An OSError of our own output is raised."""
    if isinstance(error, KvbenchError):
        return _told(str(error), error.exit_code, as_json)
    if isinstance(error, _USAGE_ERRORS):
        return _told_usage(error, as_json)
    if (
        isinstance(error, OSError)
        and error.filename is None
        and error.errno in (errno.EPIPE, errno.ENOSPC, errno.EIO)
    ):
        raise error
    return _told(_crash(error), KvbenchError.exit_code, as_json)


def _told(text: str, code: int, as_json: bool) -> int:
    if as_json:
        print_document({"error": text, "exit_code": code})
    else:
        people().print(Text.assemble(("error: ", "bold red"), plain_lines(text)), soft_wrap=True)
    return code


def _told_usage(error: typer.BadParameter, as_json: bool) -> int:
    """What was wrong with the call, in typer's own frame for people."""
    later = next((name for name in LATER if f"'{name}'" in error.message), None)
    if later is not None and "No such command" in error.message:
        return _told(str(NotSupportedYetError(f"kvbench {later}")), InputError.exit_code, as_json)
    if as_json:
        return _told(error.format_message(), InputError.exit_code, as_json)
    error.show(sys.stderr)
    return InputError.exit_code


def _crash(error: Exception) -> str:
    """Keep the traceback where it can be sent from; one sentence for the user."""
    text = "".join(traceback.format_exception(error))
    what = f"kvbench failed: {type(error).__name__}: {error}"
    try:
        with tempfile.NamedTemporaryFile("wb", prefix="kvbench-crash-", suffix=".txt", delete=False) as file:
            file.write(text.encode("utf-8", "backslashreplace"))
    except OSError:
        return f"{what}\n{text}"
    return f"{what}\n  → this is a fault of kvbench itself; its traceback is in {file.name}"
