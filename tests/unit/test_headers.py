"""A request header is checked by one rule, named by a user or given to a sender; its value is never shown."""

from __future__ import annotations

import pytest

from loadgen.common.errors import UsageError
from loadgen.common.headers import fault_of_header, load_headers


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
