"""The kernel's stamps as instants of a run: mapped, held against what is known, replaced where they cannot be right."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

import pytest

from loadgen.send.stamps import StampedReads, stamps_refused

MS = 1_000_000
WALL = 1_790_000_000_000_000_000


@dataclass
class Clocks:
    """The run's clock and the wall clock, whose offset a test may set."""

    now: int = 0
    offset: int = WALL

    def now_ns(self) -> int:
        return self.now

    def wall_ns(self) -> int:
        return self.now + self.offset

    def stamp(self, at_ns: int) -> list[tuple[int, int, bytes]]:
        """What the kernel says of a segment that came at `at_ns`, by the wall clock of now."""
        return [(socket.SOL_SOCKET, 35, struct.pack("@qq", *divmod(at_ns + self.offset, 1_000_000_000)))]


@pytest.fixture
def clocks() -> Clocks:
    return Clocks(now=500 * MS)


def test_a_stamp_says_when_it_came_and_not_when_it_was_read(clocks: Clocks) -> None:
    reads = StampedReads(clocks.now_ns, clocks.wall_ns)
    early = clocks.stamp(470 * MS)
    assert reads.at(early, not_before_ns=0) == 470 * MS
    clocks.now += 300 * MS
    assert reads.at(early, not_before_ns=0) == 470 * MS
    assert (reads.reads, reads.by_reading, reads.moved_ns) == (2, 0, 0)


def test_a_wall_clock_that_is_set_moves_no_stamp_and_is_noted(clocks: Clocks) -> None:
    reads = StampedReads(clocks.now_ns, clocks.wall_ns)
    reads.measure()
    for step in (3_600_000 * MS, -7_200_000 * MS, 20 * MS):
        clocks.offset += step
        clocks.now += 10 * MS
        assert reads.at(clocks.stamp(clocks.now - MS), not_before_ns=clocks.now - 5 * MS) == clocks.now - MS
    assert reads.moved_ns == pytest.approx(7_200_000 * MS, abs=MS)
    assert reads.by_reading == 0


def test_a_slew_is_followed_ten_times_a_second_and_is_no_step(clocks: Clocks) -> None:
    reads = StampedReads(clocks.now_ns, clocks.wall_ns)
    for _ in range(100):
        clocks.now += 101 * MS
        clocks.offset += 40_000  # 400 ppm
        at = reads.at(clocks.stamp(clocks.now - MS), not_before_ns=0)
        assert abs(at - (clocks.now - MS)) <= 42_000
    assert reads.moved_ns == 0
    clocks.offset += 300_000
    clocks.now += 101 * MS
    reads.at(clocks.stamp(clocks.now - MS), not_before_ns=0)
    assert 200_000 < reads.moved_ns < 300_000


def test_what_cannot_be_right_has_the_time_of_the_read(clocks: Clocks) -> None:
    reads = StampedReads(clocks.now_ns, clocks.wall_ns)
    for wrong in ([], [(socket.SOL_SOCKET, 1, b"x" * 16)], clocks.stamp(clocks.now + 9 * MS), clocks.stamp(100 * MS)):
        assert reads.at(wrong, not_before_ns=400 * MS) == clocks.now
    assert reads.by_reading == 4


def test_a_stamp_is_never_before_the_one_before_nor_after_now(clocks: Clocks) -> None:
    """Both clocks are read one after the other: differences of microseconds are no fault."""
    reads = StampedReads(clocks.now_ns, clocks.wall_ns)
    assert reads.at(clocks.stamp(clocks.now + 20_000), not_before_ns=0) == clocks.now
    assert reads.at(clocks.stamp(399_980_000), not_before_ns=400 * MS) == 400 * MS
    assert reads.by_reading == 0


def test_only_plain_tcp_is_stamped() -> None:
    assert stamps_refused(["http://127.0.0.1:1"]) == ""
    assert stamps_refused(["http://h", "https://h"]) == "https://h is not http:// over TCP"
    assert stamps_refused(["unix:/run/x"]) == "unix:/run/x is not http:// over TCP"
