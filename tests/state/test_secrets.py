"""Keys stay in the environment."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.harness.runs.secrets import leaked, scrub

printable = st.text(st.characters(exclude_categories=["Cs"]), min_size=8, max_size=30)


@given(printable, st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.booleans())
@settings(max_examples=100)
def test_a_secret_is_found_in_plain_text_and_in_json(value: str, around: str, ascii: bool) -> None:
    environment = {"SOME_TOKEN": value}
    text = json.dumps({"said": around + value + around}, ensure_ascii=ascii).encode()
    assert leaked(text, environment) == "SOME_TOKEN"
    cleaned = scrub(text, environment)
    assert value not in json.loads(cleaned)["said"] or value in "[secret SOME_TOKEN]" + around * 2
    assert "[secret SOME_TOKEN]" in json.loads(cleaned)["said"]
    assert scrub(f"a {value} b".encode(), environment) == b"a [secret SOME_TOKEN] b"


def test_only_variables_named_like_a_secret_and_long_enough_count() -> None:
    environment = {"HOME": "/home/somebody", "API_KEY": "short", "MY_PASSWORD": "long enough"}
    text = b"/home/somebody short long enough"
    assert scrub(text, environment) == b"/home/somebody short [secret MY_PASSWORD]"


def test_a_secret_within_a_longer_one_does_not_spoil_it() -> None:
    environment = {"A_KEY": "abcdefgh", "B_KEY": "abcdefgh-ijkl"}
    assert scrub(b"abcdefgh-ijkl abcdefgh", environment) == b"[secret B_KEY] [secret A_KEY]"
