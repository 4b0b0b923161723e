"""Servers that make the client work: what that costs, and that it is their fault. Real sockets, the server a thread."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest

from loadgen.common import defaults
from loadgen.common.loop import run_loop
from loadgen.send.active import ActiveRequest, Held, Transport
from loadgen.send.api import Endpoint
from loadgen.send.clock import LoopClock
from loadgen.send.httpx_transport import HttpxTransport
from loadgen.send.openai import HttpEnd, ParsedResponse, outcome_of
from loadgen.send.stamped import StampedTransport
from loadgen.send.wire import WireTransport
from tests.fakes.streams import DONE, completion_events, event, text, usage

KINDS = {"stamped": StampedTransport, "wire": WireTransport, "httpx": HttpxTransport}
PIECE = 1 << 16
OUR_OWN = ["stamped", "wire", pytest.param("httpx", marks=pytest.mark.slow)]  # httpx has another parser of HTTP
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
GOOD = b"".join(completion_events(4))


@dataclass
class Blaster:
    """Answers each request with the next of `answers`, as fast as they are taken."""

    answers: list[bytes]
    port: int = 0
    sent: int = 0  # bytes
    close: bool = False  # behind each answer

    def serve(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                threading.Thread(target=self._talk, args=(peer,), daemon=True).start()

    def _talk(self, peer: socket.socket) -> None:
        with peer, suppress(OSError):
            while self.answers and self._request(peer):
                view = memoryview(self.answers.pop(0))
                while view:
                    done = peer.send(view[:PIECE])
                    self.sent += done
                    view = view[done:]
                if self.close:
                    return

    def _request(self, peer: socket.socket) -> bool:
        seen = b""
        while b"\r\n\r\n" not in seen or not seen.endswith(b"}"):
            piece = peer.recv(1 << 16)
            if not piece:
                return False
            seen += piece
        return True


@contextmanager
def blasting(*answers: bytes, close: bool = False) -> Iterator[Blaster]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)  # so that `sent` is about what was taken
        server = Blaster(list(answers), listener.getsockname()[1], close=close)
        threading.Thread(target=server.serve, args=(listener,), daemon=True).start()
        yield server


@dataclass
class Told:
    active: ActiveRequest
    answer: ParsedResponse | None
    outcome: str
    error: str
    cpu_s: float  # of the client's thread


class _Landing:
    def __init__(self, clock: LoopClock) -> None:
        self.clock = clock
        self.over: tuple[HttpEnd, str] | None = None

    def ended(self, active: ActiveRequest, end: HttpEnd, at_ns: int, error: str = "") -> None:
        active.end, active.ended_ns = end, at_ns
        self.over = (end, error)


def fetch(port: int, kind: str, *, requests: int = 1, together: Held | None = None, pause_s: float = 0) -> list[Told]:
    """Requests of 4 tokens, one after the other, over one transport."""
    import asyncio

    async def main() -> list[Told]:
        clock = LoopClock()
        endpoint = Endpoint(urls=(f"http://127.0.0.1:{port}",), path="/v1/completions", model="m")
        transport: Transport = KINDS[kind](endpoint, clock, keepalive_s=4)
        await transport.open()
        told = []
        try:
            for index in range(requests):
                active, handler = ActiveRequest(index, 0, together=together), _Landing(clock)
                active.output_tokens_planned, active.body = 4, b"{}"
                began_s = time.thread_time()
                transport.start(active, handler)
                while handler.over is None:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.001)
                end, error = handler.over
                answer = active.finish(end)
                cpu_s = time.thread_time() - began_s
                outcome, error = outcome_of(answer, end=end, status=active.status, error=error, forced_tokens=4)
                told.append(Told(active, answer, outcome, error, cpu_s))
                time.sleep(pause_s)  # noqa: ASYNC251 - the loop must not see what comes meanwhile
        finally:
            await transport.close()
            clock.close()
        return told

    return run_loop(main())


def chunks(body: bytes, size: int) -> bytes:
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def flood(name: str, size: int) -> bytes:
    """About `size` bytes before an answer that is good."""
    if name == "comments":
        return CHUNKED + chunks(b": x\n\n" * (size // 5) + GOOD, 1000)
    if name == "comment lines":
        return CHUNKED + chunks(b": x\n" * (size // 4) + b"\n" + GOOD, 1000)
    if name == "pieces":
        return CHUNKED + chunks(event(text("x" * size)) + event(usage(4)) + DONE, 16)
    if name == "carriage returns":
        return CHUNKED + chunks((b": x\n\n" * (size // 5) + GOOD).replace(b"\n", b"\r\n"), 1000)
    assert name == "events"
    return CHUNKED + chunks(b'data: {"choices":[]}\n\n' * (size // 22) + GOOD, 1000)


@pytest.mark.parametrize("kind", OUR_OWN)
@pytest.mark.parametrize("name", ["comments", "comment lines", "pieces", "carriage returns", "events"])
def test_twice_the_bytes_are_twice_the_work(name: str, kind: str) -> None:
    small, large = 100_000, 800_000
    if kind == "httpx" and name == "pieces":
        small, large = 20_000, 160_000  # its parser takes some 50 us a chunk
    costs = {}
    for size in (small, large):
        answers = [flood(name, size)] * 3
        with blasting(*answers) as server:
            told = fetch(server.port, kind, requests=3)
        assert {one.active.status for one in told} == {200}
        if name != "pieces":
            assert {one.outcome for one in told} == {"ok"}
        costs[size] = min(one.cpu_s for one in told)
    assert costs[large] < 2.5 * 8 * max(costs[small], 0.002), costs  # where each byte costs its place: 64 times


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("body", [b": x\n\n" * 10_000_000, b"x" * (64 << 20), b"data: " + b"x" * (64 << 20)])
def test_an_answer_is_read_up_to_its_limit_and_no_further(body: bytes, kind: str) -> None:
    limit = defaults.ANSWER_BASE_BYTES + 4 * defaults.ANSWER_TOKEN_BYTES
    with blasting(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body) as server:
        (told,) = fetch(server.port, kind)
        assert told.outcome == "bad_response"
        assert told.error == "an answer of more than 4.02 MiB for 4 tokens"
        # a piece is counted once `send` returned, and up to what the system's buffers hold may be under way
        assert limit - PIECE < server.sent < limit + (12 << 20)
    assert told.active.together.bytes == 0


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize(
    "headers",
    [
        b"x-a: " + b"y" * (10 << 20),
        b"x-a: y\r\n" * 1_000_000,
        b"x-a: y\r\n" * 10_000 + b"content-length: 0\r\n\r\n",
    ],
)
def test_headers_end_at_their_limit(headers: bytes, kind: str) -> None:
    with blasting(HEAD + headers) as server:
        (told,) = fetch(server.port, kind)
    assert told.outcome == "bad_response"
    if kind == "wire" or headers.endswith(b"\r\n\r\n"):
        assert told.error == "headers of more than 64 KiB"  # httpx has a limit of its own, and stops at either


def test_early_hints_without_end_are_headers_too() -> None:
    with blasting(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 100_000) as server:
        (told,) = fetch(server.port, "wire")
    assert (told.outcome, told.error) == ("bad_response", "headers of more than 64 KiB")


@pytest.mark.parametrize("kind", list(KINDS))
def test_all_answers_together_have_a_limit(kind: str) -> None:
    held = Held(200_000)
    held.bytes = 150_000  # of others
    with blasting(HEAD + b"content-length: 100000\r\n\r\n" + b"x" * 100_000) as server:
        (told,) = fetch(server.port, kind, together=held)
    assert (told.outcome, told.error) == ("bad_response", "all answers together hold more than 0 MiB")
    assert held.bytes == 150_000


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("pause_s", [0.0, 0.05])
def test_a_second_answer_that_nobody_asked_for_never_answers_the_next_request(kind: str, pause_s: float) -> None:
    def whole(finish: str) -> bytes:
        body = event(text("x", finish)) + event(usage(4)) + DONE
        return HEAD + b"content-length: %d\r\n\r\n" % len(body) + body

    with blasting(whole("length") + whole("stop"), whole("tool_calls")) as server:
        told = fetch(server.port, kind, requests=2, pause_s=pause_s)
    assert [one.answer and one.answer.finish_reason for one in told] == ["length", "tool_calls"]


def test_the_end_of_the_connection_ends_a_body_that_is_not_encoded() -> None:
    answer = HEAD + b"transfer-encoding: identity\r\n\r\n" + b"".join(completion_events(4)[:-1]) + b"data: [DONE]"
    with blasting(answer, answer[:-12], close=True) as server:
        whole, cut = fetch(server.port, "wire", requests=2)
    assert (whole.outcome, cut.outcome) == ("ok", "truncated")
