"""Secrets that a server repeats are in nothing that is kept."""

from __future__ import annotations

from loadgen.common.redact import redacted, secrets_of

KEY = "sk-very-secret-4711"
SECRETS = secrets_of({"authorization": f"Bearer {KEY}", "x-team": "a b c"})


def test_a_key_is_one_with_and_without_its_scheme() -> None:
    assert redacted(f"Incorrect API key {KEY}.", SECRETS) == "Incorrect API key [redacted]."
    assert redacted(f"authorization: Bearer {KEY}", SECRETS) == "authorization: Bearer [redacted]"


def test_what_is_left_of_a_key_where_a_text_was_cut_goes_too() -> None:
    for length in range(4, len(KEY)):
        assert redacted(f"no such key: {KEY[:length]}", SECRETS) == "no such key: [redacted]"


def test_short_words_of_a_header_leave_a_text_whole() -> None:
    assert redacted("a b c: abc", SECRETS) == "a b c: abc"
    assert redacted("", SECRETS) == ""
    assert redacted("this wants a Bearer", SECRETS) == "this wants a Bearer"
