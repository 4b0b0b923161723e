"""Where requests go on the network: URLs taken apart, names resolved once, and the machine's limits.

All of it happens before t0. A name is resolved once and one address is kept: the first that accepts a connection
(`localhost` may be ::1 first where the server listens on 127.0.0.1 only), else the first. A Unix socket is a base URL
`unix:/path.sock`; its Host header says localhost.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from loadgen.common.errors import TargetUnreachable, UsageError

__all__ = [
    "UNIX",
    "Origin",
    "connection_limit",
    "exhausted",
    "port_limit",
    "raise_descriptor_limit",
    "resolve",
    "socket_path",
]

UNIX: Final = "unix:"  # a base URL of this scheme is the path of a Unix socket, e.g. unix:/run/vllm.sock

_PROBE_S: Final = 2.0
_RESERVED_DESCRIPTORS: Final = 16  # the journal, scrapes of the target, and the like while a run is on
_PORT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_DESCRIPTORS: Final = Path("/proc/self/fd")
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL})  # our machine refused, not the server


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """One URL of a target, ready to be connected to."""

    host: str  # as written: for Host and TLS server name
    address: str  # numeric
    port: int
    tls: bool
    path: str  # of the request
    socket_path: str = ""  # a Unix socket, instead of address and port

    @property
    def authority(self) -> str:
        """The Host header's value."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def socket_path(url: str) -> str:
    """The path in a base URL of the form unix:/path.sock; empty for any other."""
    return url.removeprefix(UNIX) if url.startswith(UNIX) else ""


def exhausted(error: BaseException | None) -> bool:
    """Whether the operating system had no descriptor, address or port left for a connection, at any depth of causes."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            return True
        error = error.__cause__ or error.__context__
    return False


async def resolve(url: str, path: str) -> Origin:
    """Resolve a base URL. Raises `UsageError` for one that is none, `TargetUnreachable` for a name nobody knows."""
    if unix := socket_path(url):
        return Origin(host="localhost", address="", port=80, tls=False, path=path, socket_path=unix)
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise UsageError(f"target {url!r}: the port is not a number below 65536") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"target {url!r} is not a URL such as http://127.0.0.1:8000")
    tls = parts.scheme == "https"
    port = port or (443 if tls else 80)
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise TargetUnreachable(f"target {url!r}: the name {parts.hostname} is not known ({error})") from None
    addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
    chosen = addresses[0]
    for address in addresses if len(addresses) > 1 else ():
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_PROBE_S):
                _, writer = await asyncio.open_connection(address, port)
            writer.close()
            chosen = address
            break
    full_path = parts.path.rstrip("/") + path
    return Origin(host=parts.hostname, address=chosen, port=port, tls=tls, path=full_path)


def raise_descriptor_limit() -> None:
    """Lift the soft limit of open files to the hard one: every request in flight is a socket."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connection_limit(urls: Collection[str]) -> int | None:
    """How many connections this process can have open to these base URLs; `None` if nothing is known.

    The smaller of the file descriptors left and the ephemeral ports, of which each destination has the whole range and
    a Unix socket needs none.
    """
    limits: list[int] = []
    with suppress(ImportError, OSError):
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            used = sum(1 for _ in _DESCRIPTORS.iterdir()) if _DESCRIPTORS.exists() else 0
            limits.append(max(soft - used - _RESERVED_DESCRIPTORS, 1))
    ports = port_limit(urls)
    return min([*limits, *([] if ports is None else [ports])], default=None)


def port_limit(urls: Collection[str]) -> int | None:
    """How many connections all processes of this machine together can have open to these base URLs, for want of ports.

    `None` if nothing is known.
    """
    destinations = set(urls)
    if not any(map(socket_path, destinations)):
        with suppress(OSError, ValueError):
            first, last = map(int, _PORT_RANGE.read_text().split())
            return (last - first + 1) * len(destinations)
    return None
