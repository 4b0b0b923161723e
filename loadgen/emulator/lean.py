"""The least a server can be: streams of equal tokens at equal gaps, written down to the nanosecond.

`loadgen calibrate` measures this machine's client against it. Theory of operation: one thread, one epoll, no HTTP
library. Every answer has the same number of tokens and the same gap, so what is due next is always at the left of one
queue: a stream that wrote a token joins at its right. The instant just before a write to the kernel is the truth of
its token. All instants are on CLOCK_MONOTONIC, as the client's are.

    python -m loadgen.emulator.lean TOKENS GAP_MS

It prints its port, serves until stdin ends, and then prints a JSON document: `rows` of [index, request read, first
token written, last token written], ns, and `cpu_s`, the CPU time of its process. The body of a request begins with
`{"index":N,`.
"""

from __future__ import annotations

import json
import os
import re
import select
import socket
import sys
import time
from collections import deque
from typing import Final

from loadgen.send.address import raise_descriptor_limit

__all__ = ["main"]

_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_INDEX: Final = re.compile(rb'\r\n\r\n\{"index":(\d+),')
_LENGTH: Final = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_READ_BYTES: Final = 1 << 20


def _event(text: str) -> bytes:
    return b"data: " + text.encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _completion(reason: str) -> bytes:
    choice = f'{{"index":0,"text":" a","finish_reason":{reason}}}'
    return _event(f'{{"id":"lean","object":"text_completion","choices":[{choice}]}}')


def _end(tokens: int) -> bytes:
    usage = _event(f'{{"id":"lean","choices":[],"usage":{{"prompt_tokens":1,"completion_tokens":{tokens}}}}}')
    return _chunk(_completion('"length"') + usage + _event("[DONE]")) + b"0\r\n\r\n"


class _Stream:
    """One connection, and the answer that is being written on it."""

    __slots__ = ("first_ns", "index", "left", "received_ns", "seen", "socket")

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.seen = b""
        self.index = self.left = 0
        self.received_ns = self.first_ns = 0


class _Server:
    def __init__(self, tokens: int, gap_ns: int) -> None:
        self.tokens, self.gap_ns = tokens, gap_ns
        self.rows: list[tuple[int, int, int, int]] = []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.listener.setblocking(False)
        self._token, self._end = _chunk(_completion("null")), _end(tokens)
        self._due: deque[tuple[int, _Stream]] = deque()
        self._streams: dict[int, _Stream] = {}
        self._epoll = select.epoll()
        self._epoll.register(self.listener, select.EPOLLIN)

    def serve(self, until: int) -> None:
        """Until this descriptor is readable."""
        self._epoll.register(until, select.EPOLLIN)
        while True:
            wait_s = max((self._due[0][0] - time.monotonic_ns()) / 1e9, 0) if self._due else -1
            for descriptor, _ in self._epoll.poll(wait_s):
                if descriptor == until:
                    return
                if descriptor == self.listener.fileno():
                    self._accept()
                else:
                    self._read(descriptor)
            self._write_due()

    def _accept(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except BlockingIOError:
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._streams[connection.fileno()] = _Stream(connection)
        self._epoll.register(connection, select.EPOLLIN)

    def _read(self, descriptor: int) -> None:
        stream = self._streams[descriptor]
        try:
            data = stream.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._epoll.unregister(descriptor)
            del self._streams[descriptor]
            stream.socket.close()
            return
        stream.seen += data
        head, _, body = stream.seen.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if length is None or len(body) < int(length[1]):
            return
        now_ns = time.monotonic_ns()
        found = _INDEX.search(stream.seen)
        stream.index = int(found[1]) if found else -1
        stream.seen, stream.received_ns, stream.left = b"", now_ns, self.tokens
        self._due.append((now_ns + self.gap_ns, stream))

    def _write_due(self) -> None:
        due = self._due
        while due and due[0][0] <= (now_ns := time.monotonic_ns()):
            at_ns, stream = due.popleft()
            if stream.socket.fileno() < 0:
                continue
            first = stream.left == self.tokens
            stream.left -= 1
            data = self._token if stream.left else self._end
            if first:
                stream.first_ns, data = now_ns, _HEAD + data
            try:
                stream.socket.send(data)
            except OSError:
                continue
            if stream.left:
                due.append((at_ns + self.gap_ns, stream))
            else:
                self.rows.append((stream.index, stream.received_ns, stream.first_ns, now_ns))


def main() -> None:
    """Serve until stdin ends."""
    raise_descriptor_limit()
    tokens, gap_ms = int(sys.argv[1]), float(sys.argv[2])
    server = _Server(tokens, round(gap_ms * 1e6))
    sys.stdout.write(f"{server.listener.getsockname()[1]}\n")
    sys.stdout.flush()
    server.serve(sys.stdin.fileno())
    json.dump({"rows": server.rows, "cpu_s": time.process_time()}, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # thousands of sockets need no farewell


if __name__ == "__main__":
    main()
