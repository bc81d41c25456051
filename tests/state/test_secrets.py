"""Keys stay in the environment."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.harness.runs.secrets import leaked, scrub, scrub_json

printable = st.text(st.characters(exclude_categories=["Cs"]), min_size=8, max_size=30)


@given(printable, st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.booleans(), st.booleans())
@settings(max_examples=150)
def test_a_secret_is_taken_out_of_json_which_stays_json(value: str, around: str, ascii: bool, indent: bool) -> None:
    environment = {"SOME_TOKEN": value}
    thing = {"said": [around + value + around, 1.5, None], value: around}
    text = json.dumps(thing, ensure_ascii=ascii, indent=1 if indent else None).encode()
    assert leaked(text, environment) == "SOME_TOKEN"
    cleaned = scrub_json(text, environment)
    replaced = scrub(around + value + around, environment)
    assert "[secret SOME_TOKEN]" in replaced
    assert json.loads(cleaned) == {
        "said": [replaced, 1.5, None],
        "[secret SOME_TOKEN]": scrub(around, environment),
    }
    assert (b"\n" in cleaned) is indent


@given(st.recursive(st.text() | st.floats(allow_nan=False), lambda inner: st.lists(inner, max_size=3)))
def test_json_without_a_secret_stays_as_it_is_byte_for_byte(thing: object) -> None:
    text = json.dumps(thing).encode()
    assert scrub_json(text, {"SOME_TOKEN": "this is not in there"}) == text


def test_what_only_looks_like_a_secret_across_an_escape_is_left_alone() -> None:
    text = json.dumps({"said": "a\nine lives"}).encode()
    assert json.loads(scrub_json(text, {"CAT_KEY": "nine lives"})) == {"said": "a\nine lives"}


def test_only_variables_named_like_a_secret_and_long_enough_count() -> None:
    environment = {"HOME": "/home/somebody", "API_KEY": "short", "MY_PASSWORD": "long enough"}
    text = "/home/somebody short long enough"
    assert scrub(text, environment) == "/home/somebody short [secret MY_PASSWORD]"


def test_a_secret_within_a_longer_one_does_not_spoil_it() -> None:
    environment = {"A_KEY": "abcdefgh", "B_KEY": "abcdefgh-ijkl"}
    assert scrub("abcdefgh-ijkl abcdefgh", environment) == "[secret B_KEY] [secret A_KEY]"
