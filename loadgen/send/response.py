"""HTTP/1.1 responses of one connection, one at a time: the parser's callbacks, what an answer may cost, how it ends.

Whatever reads the socket stamps a read, hands its bytes to `feed`, and finishes with `finish_lost` when the peer has
closed. httptools cuts the body out, and the request keeps bytes and stamps (`active`). How much work and memory an
answer may cost is limited: a cap on its bytes as they came, one on its headers, and one on what all answers keep.
"""

# ruff: noqa: D102 - the callbacks are httptools's, and documented there
from __future__ import annotations

import httptools

from analysis.text import bounded
from loadgen.common import defaults
from loadgen.send.active import HEADERS_TOO_LONG, READ_AT_BYTES, ActiveRequest, CompletionHandler
from loadgen.send.openai import HttpEnd

__all__ = ["ResponseReader"]


class ResponseReader:
    """The reading half of a connection; a subclass owns the socket and says how it is kept or dropped."""

    def __init__(self) -> None:
        self._flight: ActiveRequest | None = None
        self._landing: CompletionHandler | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._stamp_ns = 0
        self._response_bytes = 0  # as they came, HTTP's own included
        self._look_at_bytes = 0
        self._header_bytes = 0
        self._body: bytes | None = None  # what the read at hand brought of it, and more pieces of that
        self._pieces: list[bytes] = []
        self._delimited = False  # a length or chunks say where the body ends
        self._content_type = ""
        self._encoding = b""
        self._over: tuple[HttpEnd, str] | None = None  # how the answer ended
        self._reusable = False
        self.idle_since_ns = 0

    @property
    def busy(self) -> bool:
        """Whether a request is on it."""
        return self._flight is not None

    def drop(self) -> None:
        """Close without a word to anyone."""
        raise NotImplementedError

    def keep(self) -> None:
        """The answer is over and the connection can take another request."""
        raise NotImplementedError

    def may_be_kept(self) -> bool:
        """Whether nothing of the request is left to be written."""
        raise NotImplementedError

    def begin(self, active: ActiveRequest, handler: CompletionHandler) -> None:
        """The next response is to this request."""
        self._flight, self._landing = active, handler
        self._response_bytes = self._header_bytes = 0
        self._look_at_bytes = defaults.ANSWER_HEADERS_BYTES
        self._over = None
        active.handle = self

    def forget(self) -> None:
        """Nobody waits for the response any more."""
        self._flight = None

    def feed(self, data: memoryview, at_ns: int) -> None:
        """What a read brought, stamped; ends the request where the response is over."""
        self._stamp_ns = at_ns
        if self._flight is None or self._parser is None:  # an answer nobody asked for
            self.drop()
            return
        self._response_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._over is None:  # else bytes after the end of the answer: only the connection is spoilt
                self._over = ("bad", f"not HTTP: {bounded(str(error))}")
            self._reusable = False
        body = self._body
        if body is not None:
            self._body = None
            if self._pieces:
                body = b"".join((body, *self._pieces))
                self._pieces.clear()
            self._flight.received(body, at_ns)
        if self._response_bytes > self._look_at_bytes:
            self._look()
        if self._over is not None:
            self._finish(*self._over)

    def finish_lost(self, at_ns: int, error: str) -> None:
        """The connection is closed, by a fault where `error` says which."""
        self._parser = None  # it holds our methods: a cycle that no collector would find during the run
        if self._flight is None:
            return
        self._stamp_ns = at_ns
        if error:
            self._finish("lost", error)
        elif self._flight.headers_ns < 0:
            self._finish("lost", "the server closed the connection before it answered")
        elif self._delimited:
            self._finish("cut", "the server closed the connection in the middle of its answer")
        else:
            self._finish("eof", "")

    def _look(self) -> None:
        """A long answer: is it too long?"""
        active, size = self._flight, self._response_bytes
        assert active is not None
        self._look_at_bytes = size + READ_AT_BYTES
        if refused := HEADERS_TOO_LONG if active.headers_ns < 0 else active.grown(size):
            self._over = ("bad", refused)

    # httptools calls these from within feed_data; they only note things, so that nothing of ours runs inside the parser

    def on_message_begin(self) -> None:
        if self._over is not None:
            self._reusable = False  # an answer nobody asked for
        self._delimited = False
        self._content_type, self._encoding = "", b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > defaults.ANSWER_HEADERS_BYTES:
            self._over = self._over or ("bad", HEADERS_TOO_LONG)
        name = name.lower()
        if name == b"content-type":
            self._content_type = value.decode("latin-1").lower()
        elif name == b"content-length" or (name == b"transfer-encoding" and value.strip().lower() != b"identity"):
            self._delimited = True
        elif name == b"content-encoding":
            self._encoding = value.strip().lower()
        elif name == b"retry-after" and self._flight is not None:
            self._flight.retry_after = bounded(value)

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if self._flight is None or self._over is not None or status < 200:  # 100 Continue, 103 Early Hints: not yet
            return
        self._flight.opened(self._stamp_ns, status, self._content_type)
        if self._encoding not in (b"", b"identity"):
            self._over = ("bad", f"compressed ({bounded(self._encoding)}), though nobody asked for it")

    def on_body(self, body: bytes) -> None:
        if self._flight is not None and self._over is None:
            if self._body is None:
                self._body = body
            else:
                self._pieces.append(body)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self._over is None and self._flight is not None and self._flight.headers_ns >= 0:
            self._over = ("complete", "")
            self._reusable = self._parser.should_keep_alive() and self.may_be_kept()

    def _finish(self, end: HttpEnd, error: str) -> None:
        """The answer is over: keep the connection if it may be kept, and tell."""
        active, handler = self._flight, self._landing
        self._flight = self._landing = None
        if self._reusable and end == "complete":
            self.idle_since_ns = self._stamp_ns
            self.keep()
        else:
            self.drop()
        if active is not None and handler is not None:
            active.handle = None
            handler.ended(active, end, self._stamp_ns, error)
