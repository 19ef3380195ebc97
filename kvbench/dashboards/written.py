"""Prometheus rule files as text: long queries stay readable, and the first line says where they come from."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

__all__ = ["rule_file"]

HEADER = "# Made by `python -m kvbench.dashboards` from kvbench/dashboards/{module}; change it there.\n"


def rule_file(module: str, groups: Sequence[tuple[str, Sequence[object]]]) -> str:
    """YAML of `groups`, each a name and its rules; `module` is the file that they come from."""
    document = {"groups": [{"name": name, "rules": list(rules)} for name, rules in groups]}
    return HEADER.format(module=module) + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=2000)


class _Dumper(yaml.SafeDumper):
    """Queries of several lines as literal blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
