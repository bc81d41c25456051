"""Keep secrets out of a run: values of the environment that look like keys never reach the disk."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH|COOKIE|BEARER", re.IGNORECASE)
SHORTEST = 8
"""A shorter value would turn up by chance in any text, and protects nothing."""


def secrets(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment's secrets as name -> value: variables named like a key whose value is long enough."""
    source = os.environ if environment is None else environment
    found = {name: value for name, value in source.items() if _NAME.search(name) and len(value) >= SHORTEST}
    # Longest first: one secret may contain another.
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def scrub(text: bytes, environment: Mapping[str, str] | None = None) -> bytes:
    """`text` (plain or JSON, UTF-8) with the value of each secret replaced by `[secret NAME]`."""
    for name, value in secrets(environment).items():
        for form in _forms(value):
            if form in text:
                text = text.replace(form, f"[secret {name}]".encode())
    return text


def leaked(text: bytes, environment: Mapping[str, str] | None = None) -> str | None:
    """The name of the first secret whose value stands in `text`, or None."""
    return next((name for name, value in secrets(environment).items() if any(f in text for f in _forms(value))), None)


def _forms(value: str) -> tuple[bytes, ...]:
    """The value as it stands in plain text and in JSON, escaped or not."""
    plain = value.encode(errors="surrogateescape")
    escaped = (json.dumps(value, ensure_ascii=ascii)[1:-1].encode(errors="replace") for ascii in (True, False))
    return tuple(dict.fromkeys((plain, *escaped)))
