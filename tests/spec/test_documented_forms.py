"""The forms that the contracts show are accepted to the letter."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kvbench.spec.loading import load_profile, load_rules, load_workload
from kvbench.spec.model import SpecFile

pytestmark = pytest.mark.shared

LEFT_OUT = {
    "prefix: {...}, suffix_tokens: ..., output_tokens: ...": "prefix: {tokens: 64, pool: 2}, suffix_tokens: 8, "
    "output_tokens: 8"
}
"""What a form leaves to its reader, and what may stand there."""


@pytest.mark.parametrize(
    ("form", "load"), [("Profile", load_profile), ("Workload", load_workload), ("Rules", load_rules)]
)
def test_the_form_is_loaded_as_it_is_written(
    form: str, load: Callable[[Path], SpecFile], shared_dir: Path, tmp_path: Path
) -> None:
    contract = (shared_dir / "DESIGN.md").read_text(encoding="utf-8")
    found = re.search(rf"^{form}\n```yaml\n(.*?)^```", contract, re.MULTILINE | re.DOTALL)
    assert found is not None
    text = found[1]
    for dots, meant in LEFT_OUT.items():
        text = text.replace(dots, meant)
    path = tmp_path / f"{form.lower()}.yaml"
    path.write_text(text, encoding="utf-8")
    spec = load(path)
    keys = set(re.findall(r"^(\w+):", text, re.MULTILINE))
    assert keys
    assert keys <= {field.alias or name for name, field in type(spec).model_fields.items()}
