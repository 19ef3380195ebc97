"""How a server that is already running lets itself be reached: its key, further headers, whom its TLS trusts.

Names of what is secret, never the secrets: this may stand in plans, manifests and reports. `kvbench.access` makes
the headers out of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from kvbench.spec.forms import form
from kvbench.spec.model import SpecModel
from kvbench.spec.secret_names import header_looks_secret

__all__ = [
    "NO_ACCESS",
    "Access",
    "Api",
    "EnvName",
    "FromEnvironment",
    "Headers",
    "bare_text",
    "carriable",
    "header_problems",
]

Api = Literal["completions", "chat"]
"""Which of the OpenAI routes prompts are sent to."""

EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class FromEnvironment(SpecModel):
    """The name of the environment variable that holds a value."""

    env: EnvName


def bare_text(value: object) -> object:
    """Values of variables and headers are text; numbers may be written bare."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


HeaderValue = Annotated[
    Annotated[str, Tag("bare")] | Annotated[FromEnvironment, Tag("env")],
    Discriminator(
        form("env", bare=str),
        custom_error_type="form",
        custom_error_message="expected text, or {env: NAME} for what a variable holds",
    ),
    BeforeValidator(bare_text),
]
Headers = dict[str, HeaderValue]


class Access(SpecModel):
    """What every request to a server carries and whom it trusts."""

    api_key_env: EnvName | None = None
    """Variable with the key that goes as `Authorization: Bearer`."""
    headers: Headers = Field(default_factory=dict)
    ca_file: Path | None = None
    """PEM file of the authority that signed the server's certificate; None: the system's."""


NO_ACCESS = Access()
"""Nothing is needed, as for engines on loopback that kvbench starts."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A token of RFC 9110, 5.6.2."""
_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_OWN = (
    *("host", "content-length", "content-type", "accept", "accept-encoding", "user-agent", "x-request-id"),
    *("transfer-encoding", "connection"),
)
"""What every client of kvbench sets itself, or what would change how the bytes of a request are understood."""


def carriable(value: str) -> bool:
    """Whether a header can carry it: visible ASCII, blanks within alone."""
    return _VALUE.fullmatch(value) is not None


def header_problems(
    headers: Mapping[str, str | FromEnvironment], api_key_env: str | None
) -> Iterator[tuple[str, str]]:
    """(name, one sentence with the remedy) for each that cannot be. No value is repeated: it may be a secret."""
    seen: dict[str, str] = {}
    for name, value in headers.items():
        same = seen.setdefault(name.lower(), name)
        if not _NAME.fullmatch(name):
            yield name, "is no name of an HTTP header; use letters, digits and '-'"
        elif same != name:
            yield name, f"is given twice ({same}): header names do not differ in their case"
        elif name.lower() in _OWN:
            yield name, "is set by kvbench itself; leave it out"
        elif isinstance(value, FromEnvironment):
            if name.lower() == "authorization" and api_key_env is not None:
                yield name, "is what api_key_env becomes; give one of the two"
        elif header_looks_secret(name):
            yield name, "secrets do not belong in a profile, which every run keeps; name the variable: {env: NAME}"
        elif not carriable(value):
            yield name, "expected visible ASCII characters, with blanks between them alone"
