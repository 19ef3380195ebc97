"""Which names stand for what nobody may read, be it an environment variable or a header."""

from __future__ import annotations

import re

__all__ = ["header_looks_secret", "variable_looks_secret"]

_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|(API|ACCESS|PRIVATE|SECRET)_?KEY)$", re.IGNORECASE
)
_OF_GATEWAYS = re.compile(r"(^|-)(AUTHORIZATION|COOKIE|KEY|JWT|ASSERTION)$", re.IGNORECASE)
"""Proxy-Authorization, Ocp-Apim-Subscription-Key, X-Goog-Iap-Jwt-Assertion and their like."""


def variable_looks_secret(name: str) -> bool:
    """Whether an environment variable of this name would hold a secret."""
    return _NAME.search(name) is not None


def header_looks_secret(name: str) -> bool:
    """Whether a header of this name would carry one."""
    return variable_looks_secret(name.replace("-", "_")) or _OF_GATEWAYS.search(name) is not None
