"""docs/gate.md says what is so: keys that are sent and read, headers, the signature, the cells of the table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from pydantic import BaseModel

from kvbench.canary.hook import fire
from kvbench.spec.canary import Canary, OnBreach, PrometheusServer, Scrape, Selection, load_canary
from tests.canary.watched import BAD, Clock, Stored, both, gate, loaded
from tests.conftest import REPOSITORY
from tests.proofs.gate_watches import CELLS

PAGE = (REPOSITORY / "docs" / "gate.md").read_text()
PARTS = {
    "prometheus": PrometheusServer,
    "scrape": Scrape,
    "candidate": Selection,
    "baseline": Selection,
    "on_breach": OnBreach,
}
OPEN = ("profile", "argv", "env", "files")
"""Parts of a configuration whose content is the profile's."""


def first_cells(heading: str) -> list[str]:
    """First column of the table whose first heading this is, without the line below the heading."""
    table = re.search(rf"^\| {heading} \|.*\n\|[ :|-]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert table is not None, heading
    return [line.split("|")[1] for line in table[1].splitlines()]


def documented(column: list[str]) -> set[str]:
    return {key for cell in column for key in re.findall(r"`([\w.-]+)`", cell)}


def keys(value: object, above: str = "") -> Iterator[str]:
    """Dotted paths of what has no keys of its own below it, as far as they are the payload's."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        path = f"{above}{key}"
        if isinstance(inner, dict) and key not in OPEN:
            yield from keys(inner, f"{path}.")
        else:
            yield path


def fields(model: type[BaseModel], above: str = "") -> Iterator[str]:
    for name in model.model_fields:
        if name in PARTS and not above:
            yield from fields(PARTS[name], f"{name}.")
        else:
            yield f"{above}{name}"


def test_every_key_of_a_canary_file_is_there_and_no_other() -> None:
    assert documented(first_cells("key")) == set(fields(Canary))


def test_every_key_that_a_hook_is_told_is_there_and_no_other(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    breach = json.dumps({"hook": ["sh", "-c", f"cat > {told}"], "armed": True, "within": "70s"})
    with gate(tmp_path, Stored(Clock(), both(BAD)), canary=loaded(tmp_path, breach)) as watched:
        watched.watch(lambda _: None)
    sent = set(keys(json.loads(told.read_text())))
    page = re.sub(r"(?s)^.*## What a hook is told", "", PAGE)
    rows = re.search(r"\| key \| holds \|\n\|[ |-]+\n((?:\|.*\n)+)", page)
    assert rows is not None
    listed = documented([line.split("|")[1] for line in rows[1].splitlines()])
    assert listed - {"action"} == sent, "`action` is there for when it is null"


@pytest.fixture
def posted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[httpx.Headers, bytes]:
    """Headers and body of a signed post."""
    monkeypatch.setenv("KEY", "k3y")
    breach = '{post: "http://127.0.0.1:9/x", secret_env: KEY, armed: true}'
    loaded(tmp_path, breach)
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(204)

    client: Callable[..., httpx.Client] = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **_: client(transport=httpx.MockTransport(answer)))
    assert fire(load_canary(tmp_path / "canary.yaml").canary, {"a": 1}, "id-1").state == "done"
    return seen[0].headers, seen[0].content


def test_every_header_of_a_post_is_there_and_no_other(posted: tuple[httpx.Headers, bytes]) -> None:
    sent = {key for key in posted[0] if key.startswith("x-kvbench")}
    assert {key.lower() for key in documented(first_cells("header of a post"))} == sent


def test_the_example_knows_a_signature_of_the_gate_from_another(posted: tuple[httpx.Headers, bytes]) -> None:
    headers, body = posted
    code = re.search(r"(?s)```python\n(.*?)```", PAGE)
    assert code is not None
    names: dict[str, object] = {}
    exec(code[1], names)
    check = names["is_from_the_gate"]
    assert callable(check)
    assert check(b"k3y", headers, body)
    assert not check(b"other", headers, body)
    assert not check(b"k3y", headers, body + b" ")
    headers["X-Kvbench-Timestamp"] = "1790000000"
    assert not check(b"k3y", headers, body)


def test_the_table_of_false_alarms_has_every_cell_that_the_proof_prints() -> None:
    rows = re.findall(r"^\| \**([\d.]+)\** \| \**([\d.]+)\** \|", PAGE, re.MULTILINE)
    assert [(float(times), float(drift)) for times, drift in rows] == [(cell.times, cell.drift) for cell in CELLS]
    judged = re.findall(r"\| \*\*([\d.]+)\*\* \| \*\*([\d.]+)", PAGE)
    cells = [(cell.times, cell.drift) for cell in CELLS if cell.judged]
    assert [(float(times), float(drift)) for times, drift in judged] == cells
