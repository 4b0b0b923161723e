"""Dates as logs write them -> nanoseconds since 1970, one value at a time, exactly.

Arrow parses plain ISO dates by the column; what it refuses comes here: `… UTC`, Go's `time.String()`, nginx's
`time_local`, AM/PM, a comma before the fraction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date
from typing import Final

__all__ = ["ISO", "DateFault", "SlashDates", "parse_date"]

_EPOCH: Final = date(1970, 1, 1).toordinal()
_MONTHS: Final = {"Jan": 1, "Feb": 2, "Mar": 3, "Apr": 4, "May": 5, "Jun": 6,
                  "Jul": 7, "Aug": 8, "Sep": 9, "Oct": 10, "Nov": 11, "Dec": 12}  # fmt: skip
# what Arrow reads, and reads right
ISO: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?$"
_CLOCK: Final = (
    r"(?P<h>[0-9]{1,2}):(?P<m>[0-9]{2}):(?P<s>[0-9]{2})(?:[.,](?P<f>[0-9]{1,9}))?(?:\s*(?P<half>[AaPp][Mm]))?"
)
# an offset may be followed by the zone's name and Go's monotonic reading; a name alone says too little, but UTC and GMT
_OFFSET: Final = (
    r"(?:\s*(?P<z>Z|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2})?)(?:\s+[A-Z]{1,5}|\s+[+-][0-9]{2,4})?)?"
    r"(?:\s+m=[+-][0-9.]+)?"
)
_FORMS: Final = tuple(
    re.compile(day + _CLOCK + _OFFSET)
    for day in (
        r"(?P<Y>[0-9]{4})-(?P<M>[0-9]{2})-(?P<D>[0-9]{2})[T ]",
        r"(?P<D>[0-9]{2})/(?P<B>[A-Z][a-z]{2})/(?P<Y>[0-9]{4}):",
        r"(?P<A>[0-9]{1,2})/(?P<C>[0-9]{1,2})/(?P<Y>[0-9]{4}),? ",
    )
)


class DateFault(ValueError):
    """Not a date; `reason` is one of the reasons that `traces.decode` knows."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True)
class SlashDates:
    """What a file's dates of the kind 3/1/2025 prove of their order: a number above 12 is not a month."""

    seen: set[tuple[str, str, str]] = field(default_factory=set)
    month_first: bool = False
    day_first: bool = False

    def add(self, first: str, second: str, year: str) -> None:
        """Take one date's parts."""
        self.seen.add((first, second, year))
        self.month_first |= int(second) > 12
        self.day_first |= int(first) > 12

    @property
    def undecided(self) -> bool:
        """Whether the order matters and the file does not tell it; on a single day it does not matter."""
        return len(self.seen) > 1 and not self.month_first


def parse_date(text: str, slashes: SlashDates) -> tuple[int, bool]:
    """Nanoseconds since 1970 and whether the date has a zone (without, it is taken as UTC). Raises `DateFault`.

    A date with slashes is read month first, and remembered in `slashes`.
    """
    match = next((found for form in _FORMS if (found := form.fullmatch(text))), None)
    if match is None:
        raise DateFault("bad_time")
    part = match.groupdict()
    if "A" in part:
        slashes.add(part["A"], part["C"], part["Y"])
        month, day = int(part["A"]), int(part["C"])
    else:
        month = _MONTHS.get(part["B"], 0) if "B" in part else int(part["M"])
        day = int(part["D"])
    hour, minute, second = int(part["h"]), int(part["m"]), int(part["s"])
    if half := part["half"]:
        if not 1 <= hour <= 12:
            raise DateFault("bad_time")
        hour = hour % 12 + 12 * (half in ("PM", "pm", "Pm", "pM"))
    if second == 60:
        raise DateFault("leap_second")
    try:
        days = date(int(part["Y"]), month, day).toordinal() - _EPOCH
    except ValueError:
        raise DateFault("bad_time") from None
    if hour > 23 or minute > 59 or second > 59:
        raise DateFault("bad_time")
    ns = ((days * 24 + hour) * 60 + minute) * 60 + second - _offset_s(part["z"])
    ns = ns * 10**9 + int((part["f"] or "0").ljust(9, "0"))
    if not -(2**63) < ns < 2**63:
        raise DateFault("bad_time")
    return ns, part["z"] is not None


def _offset_s(zone: str | None) -> int:
    if zone is None or zone in ("Z", "UTC", "GMT"):
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    if int(digits[:2]) > 23 or int(digits[2:]) > 59:
        raise DateFault("bad_time")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return -seconds if zone[0] == "-" else seconds
