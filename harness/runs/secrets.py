"""Keep secrets out of a run: values of the environment that look like keys never reach the disk."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH|COOKIE|BEARER", re.IGNORECASE)
SHORTEST = 8
"""A shorter value would turn up by chance in any text, and protects nothing."""


def secrets(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment's secrets as name -> value: variables named like a key whose value is long enough."""
    source = os.environ if environment is None else environment
    found = {name: value for name, value in source.items() if _NAME.search(name) and len(value) >= SHORTEST}
    # Longest first: one secret may contain another.
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def scrub(text: str, environment: Mapping[str, str] | None = None) -> str:
    """`text` with the value of each secret replaced by `[secret NAME]`."""
    for name, value in secrets(environment).items():
        text = text.replace(value, f"[secret {name}]")
    return text


def scrub_json(text: bytes, environment: Mapping[str, str] | None = None) -> bytes:
    """JSON with each secret in its strings, keys among them, replaced by `[secret NAME]`; else byte for byte."""
    if leaked(text, environment) is None:
        return text

    def clean(part: Any) -> Any:
        if isinstance(part, str):
            return scrub(part, environment)
        if isinstance(part, list):
            return [clean(item) for item in part]
        if isinstance(part, dict):
            return {scrub(key, environment): clean(value) for key, value in part.items()}
        return part

    # String by string: in the text itself a secret may begin in the middle of an escape.
    layout: dict[str, Any] = {"indent": 1} if b"\n" in text.rstrip() else {"separators": (",", ":")}
    end = b"\n" if text.endswith(b"\n") else b""
    return json.dumps(clean(json.loads(text)), ensure_ascii=False, **layout).encode() + end


def leaked(text: bytes, environment: Mapping[str, str] | None = None) -> str | None:
    """The name of the first secret whose value stands in `text` (plain or JSON, UTF-8), or None."""
    return next((name for name, value in secrets(environment).items() if any(f in text for f in _forms(value))), None)


def _forms(value: str) -> tuple[bytes, ...]:
    """The value as it stands in plain text and in JSON, escaped or not."""
    plain = value.encode(errors="surrogateescape")
    escaped = (json.dumps(value, ensure_ascii=ascii)[1:-1].encode(errors="replace") for ascii in (True, False))
    return tuple(dict.fromkeys((plain, *escaped)))
