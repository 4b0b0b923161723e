"""A request header is checked by one rule, named by a user or given to a sender; its value is never shown."""

from __future__ import annotations

import pytest

from loadgen.common.errors import UsageError
from loadgen.common.headers import fault_of_header, load_headers, stored_header


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("x-tenant", "blue", ""),
        ("Host", "s3cret", "loadgen sets that header itself"),
        ("content-type", "s3cret", "loadgen sets that header itself"),
        ("x:y", "s3cret", "its name is not one of letters, digits and dashes"),
        ("", "s3cret", "its name is not one of letters, digits and dashes"),
        ("x", "s3cret\r\ny: z", "its value is not one line of printable ASCII"),
        ("x", "s3crét", "its value is not one line of printable ASCII"),
    ],
)
def test_what_no_request_can_carry_is_refused_without_its_value(name: str, value: str, fault: str) -> None:
    assert fault_of_header(name, value) == fault


def test_a_header_option_is_refused_in_the_same_words() -> None:
    with pytest.raises(UsageError, match="--header Host: loadgen sets that header itself") as refused:
        load_headers(["Host: s3cret"])
    assert "s3cret" not in str(refused.value)
    assert load_headers(["X-Tenant: blue"]) == {"X-Tenant": "blue"}


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        (["no colon s3cret"], "is not of the form 'Name: value'"),
        (["n\u00e4me: s3cret"], "is not of the form 'Name: value'"),
        (["X-Key:"], "--header X-Key: it has no value"),
        (["X-Key: s3cret", "x-key: s3cret2"], "--header x-key is given twice"),
        (["X-Key: env:LOADGEN_NOT_SET"], "--header X-Key: environment variable LOADGEN_NOT_SET is not set"),
    ],
)
def test_an_entry_that_cannot_be_meant_is_named_without_its_value(
    entries: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOADGEN_NOT_SET", raising=False)
    with pytest.raises(UsageError) as refused:
        load_headers(entries)
    assert says in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_value_may_come_from_the_environment_and_only_its_name_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADGEN_KEY", " s3cret\n")
    assert load_headers(["X-Key: env:LOADGEN_KEY"]) == {"X-Key": "s3cret"}
    assert stored_header("X-Key: env:LOADGEN_KEY") == "X-Key: env:LOADGEN_KEY"
    assert stored_header("X-Key: s3cret") == "X-Key:"
