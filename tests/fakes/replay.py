"""Feeds captured reads to the sender's own HTTP parsing, without a socket."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from loadgen.send.active import ActiveRequest
from loadgen.send.connection import Connection
from loadgen.send.openai import HttpEnd


def pool_of(clock: Any) -> Any:
    """What a connection needs of a pool."""
    return SimpleNamespace(
        read_buffer=memoryview(bytearray(1 << 20)), clock=clock, connections=set(), idle={}, request=lambda body: body
    )


class Replay:
    """The protocol of one connection, with a clock and a transport that do what they are told."""

    def __init__(self) -> None:
        self.active = ActiveRequest(0, 0)
        self.end: HttpEnd = ""
        self._now_ns = 0
        self._connection = Connection(pool_of(SimpleNamespace(now_ns=lambda: self._now_ns)))
        self._connection.connection_made(_Transport())
        self._connection.send(self.active, cast("Any", self))

    def feed(self, data: bytes, at_ns: int) -> None:
        self._now_ns = at_ns
        self._connection.get_buffer(-1)[: len(data)] = data
        self._connection.buffer_updated(len(data))

    def close(self, error: Exception | None = None) -> None:
        """The peer is gone."""
        self._connection.connection_lost(error)

    def ended(self, active: ActiveRequest, end: HttpEnd, at_ns: int, error: str = "") -> None:
        self.end = end


class _Transport(asyncio.Transport):
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def write(self, data: Any) -> None:
        pass

    def abort(self) -> None:
        pass
