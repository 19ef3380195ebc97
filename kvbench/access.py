"""What every request to a server carries and whom its TLS trusts: made here for every client that kvbench has.

Secrets are read from the environment when they are used, and are in no error, log or file.
"""

from __future__ import annotations

import os
import ssl

from kvbench.errors import InputError, KeyPath
from kvbench.spec.access import Access, FromEnvironment, carriable

__all__ = ["request_headers", "trust"]


def request_headers(access: Access) -> dict[str, str]:
    """Headers by name. InputError for a variable that is not set, or holds what no header can carry."""
    found: dict[str, str] = {}
    if access.api_key_env is not None:
        found["Authorization"] = f"Bearer {_variable(access.api_key_env, ('engine', 'api_key_env'))}"
    for name, value in access.headers.items():
        key = ("engine", "headers", name)
        found[name] = _variable(value.env, key) if isinstance(value, FromEnvironment) else value
    return found


def _variable(name: str, key: KeyPath) -> str:
    value = os.environ.get(name)
    if not value:
        raise InputError(f"the environment has no {name}", key=key, do=f"export {name}=...")
    if not carriable(value):
        raise InputError(
            f"{name} holds what no HTTP header can carry",
            key=key,
            do="look for a line break, or for blanks at its ends",
        )
    return value


def trust(access: Access) -> ssl.SSLContext:
    """For every TLS connection to the server. InputError for a `ca_file` that is missing or broken."""
    if access.ca_file is None:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=os.fspath(access.ca_file.expanduser()))
    except OSError as error:
        raise InputError(
            f"{access.ca_file} holds no certificate that can be read: {error.strerror or error}",
            key=("engine", "ca_file"),
            do="give the PEM file of the authority that signed the server's certificate",
        ) from None
