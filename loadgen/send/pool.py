"""The connections to one origin, whatever reads them: idle ones are used again, the one used last first.

The pool has no cap. A request takes the connection that was used last, if it has been idle for less than `keepalive_ns`
(a server closes idle ones, and a request caught by that would be lost: there is no retry), else a new one is opened for
it. One on which something came while it was idle is not used: an answer nobody asked for, or its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, Protocol, TypeVar

from analysis.text import bounded
from loadgen.common.errors import TargetUnreachable, UsageError
from loadgen.common.headers import fault_of_header
from loadgen.send.address import Origin, exhausted
from loadgen.send.api import Endpoint

__all__ = ["IdleConnections", "Reusable", "header_lines"]

_PREWARM_AT_ONCE: Final = 64
_PREWARM_S: Final = 10.0


class Reusable(Protocol):
    """A connection as its pool sees it."""

    idle_since_ns: int

    @property
    def stale(self) -> bool:
        """Whether something came on this idle connection that was not read yet."""
        ...

    def drop(self) -> None:
        """Close without a word to anyone."""
        ...


C = TypeVar("C", bound=Reusable)


class IdleConnections(Generic[C]):
    """See the module."""

    def __init__(self, origin: Origin, headers: bytes, *, now_ns: Callable[[], int], keepalive_ns: int) -> None:
        self.idle: dict[C, None] = {}  # a stack, most recently used last, that a closed one can leave
        self.origin = origin
        self._now_ns = now_ns
        self._keepalive_ns = keepalive_ns
        self._head = (
            f"POST {origin.path} HTTP/1.1\r\nhost: {origin.authority}\r\n".encode("latin-1")
            + headers
            + b"content-length: %d\r\n\r\n"
        )

    def request(self, body: bytes) -> bytes:
        """The bytes of a request with this body."""
        return self._head % len(body) + body

    def take(self) -> C | None:
        """An idle connection that can carry a request; `None` if there is none."""
        oldest_ns = self._now_ns() - self._keepalive_ns
        while self.idle:
            connection, _ = self.idle.popitem()
            if connection.idle_since_ns > oldest_ns and not connection.stale:
                return connection
            connection.drop()
        return None

    async def prewarm(self, count: int, connect: Callable[[], Coroutine[Any, Any, C]]) -> None:
        """Open `count` connections just before t0. Raises `TargetUnreachable` or `UsageError`."""
        made: list[tuple[C, int]] = []
        try:
            async with asyncio.timeout(_PREWARM_S):
                while len(made) < count:
                    batch = [connect() for _ in range(min(_PREWARM_AT_ONCE, count - len(made)))]
                    made += [(connection, self._now_ns()) for connection in await asyncio.gather(*batch)]
        except TimeoutError:
            so_far = f"only {len(made)} of {count} connections (--prewarm) within {_PREWARM_S:g} s"
            raise TargetUnreachable(f"{self.origin.authority}: {so_far}") from None
        except OSError as error:
            if exhausted(error):
                raise UsageError(
                    f"--prewarm {count}: this machine gives no more than {len(made)} connections"
                ) from None
            failed = f"connection {len(made) + 1} of {count} (--prewarm) failed: {bounded(str(error))}"
            raise TargetUnreachable(f"{self.origin.authority}: {failed}") from None
        t0_ns = self._now_ns()  # t0 is about now, and the run's clock begins at 0 there
        for connection, made_ns in made:
            connection.idle_since_ns = made_ns - t0_ns
            self.idle[connection] = None


def header_lines(endpoint: Endpoint) -> bytes:
    """The headers of every request. Raises `UsageError` for one that is not HTTP."""
    headers = {"accept": "text/event-stream, application/json", "accept-encoding": "identity", "user-agent": "loadgen"}
    headers |= {"content-type": "application/json"}
    for name, value in endpoint.headers.items():
        if fault := fault_of_header(name, value):
            raise UsageError(f"header {name!r}: {fault}")
        headers[name.lower()] = value
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")
