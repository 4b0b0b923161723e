"""Talking to the server about anything but load: small requests, bounded answers, and one clear line for each failure.

What a server says is hostile: bodies are cut at a limit, and text from them passes `bounded` before a person sees it.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit, urlunsplit

import anyio
import httpx
import orjson

from analysis.text import bounded
from loadgen.common.errors import ClientLimited, TargetUnreachable, UsageError
from loadgen.common.headers import sendable
from loadgen.common.members import JsonMembers
from loadgen.common.redact import redacted, secrets_of
from loadgen.common.tls import Tls
from loadgen.send.address import UNIX, exhausted, socket_path

__all__ = ["Http", "HttpResponse", "Unreachable", "base_url", "load_api_key", "no_connection_left"]

_HTTP_2: Final = "the server speaks HTTP/2 alone, which loadgen does not; put a proxy that speaks HTTP/1.1 before it"
BODY_LIMIT: Final = 8 << 20  # vLLM's /metrics is 60 kB; a model list is less
_HANDSHAKE_S: Final = 2.0
_HTTP_2_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_NO_LINK: Final = (OSError, TimeoutError, anyio.BrokenResourceError, anyio.EndOfStream)
_ALWAYS: Final = "/v1/models"  # a running server answers it, with any status
_OURS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1")


class Unreachable(TargetUnreachable):
    """A request that got no HTTP answer, and not for want of ports or descriptors on this machine.

    `why` says how; only `refused`, `timeout` and `lost` may pass by waiting.
    """

    def __init__(self, message: str, why: Literal["refused", "dns", "timeout", "tls", "lost", "protocol"]) -> None:
        super().__init__(message)
        self.why = why


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """An HTTP answer; `truncated` if the body was longer than the limit."""

    url: str
    status: int
    content_type: str
    body: bytes
    truncated: bool = False
    location: str = ""
    retry_after: str = ""
    date: str = ""  # the server's clock
    secrets: tuple[str, ...] = field(default=(), repr=False)  # sent with the request, and kept out of `excerpt`

    def json(self) -> Any:
        """The body as JSON, or `None` if it is none."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None

    @property
    def is_html(self) -> bool:
        """Whether it is a web page, by its content and not its content type."""
        start = self.body[:200].lstrip().lower()
        return "html" in self.content_type or start.startswith((b"<!doctype html", b"<html"))

    @property
    def excerpt(self) -> str:
        """The first 200 characters, made safe: an error message if the body has one in the usual place."""
        parsed = self.json()
        error = parsed.get("error", parsed.get("detail")) if isinstance(parsed, dict) else None
        said = error.get("message") if isinstance(error, dict) else error
        text = said if isinstance(said, str) else self.body[:800].decode(errors="replace")
        return bounded(redacted(text, self.secrets))


@dataclass(slots=True, kw_only=True)
class Http:
    """A client of one base URL. `headers` may hold a key: it is in no repr and no message.

    The load goes straight to the server, so what we ask about it does too: a proxy from the environment is used only
    with `proxied`, for a load that takes it as well.
    """

    base: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: Tls = field(default_factory=Tls)
    timeout_s: float = 10.0
    proxied: bool = False
    sent: int = 0  # requests so far
    _client: httpx.AsyncClient | None = field(default=None, repr=False)

    async def __aenter__(self) -> Http:
        verify = self.tls.context() if self.base.startswith("https") else False
        unix = socket_path(self.base)
        self._client = httpx.AsyncClient(
            headers=dict(self.headers),
            verify=verify,
            trust_env=self.proxied,
            transport=httpx.AsyncHTTPTransport(uds=unix) if unix else None,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._client is not None
        await self._client.aclose()

    async def get(self, path: str, *, timeout_s: float | None = None, limit: int = BODY_LIMIT) -> HttpResponse:
        """GET a path under the base. Raises `Unreachable`, and `ClientLimited` as all requests do."""
        return await self._request("GET", path, None, timeout_s, limit)

    async def head(self, path: str) -> HttpResponse:
        """HEAD of a path under the base, which changes nothing. Raises `Unreachable`."""
        return await self._request("HEAD", path, None, None, BODY_LIMIT)

    async def post(self, path: str, body: JsonMembers | None = None, *, timeout_s: float | None = None) -> HttpResponse:
        """POST JSON, or nothing, to a path under the base. Raises `Unreachable`."""
        return await self._request("POST", path, body, timeout_s, BODY_LIMIT)

    async def instead(self) -> str:
        """What a port that does not answer plain HTTP/1.1 speaks, with what to do; empty if that is not known."""
        parts = urlsplit(self.base)
        if parts.scheme != "http" or parts.hostname is None:
            return ""
        host, port, context = parts.hostname, parts.port or 80, Tls(insecure=True).context()
        with suppress(*_NO_LINK), anyio.fail_after(_HANDSHAKE_S):
            await anyio.aclose_forcefully(await anyio.connect_tcp(host, port, ssl_context=context))
            return "this port speaks TLS; write https:// instead of http://"
        with suppress(*_NO_LINK), anyio.fail_after(_HANDSHAKE_S):
            async with await anyio.connect_tcp(host, port) as stream:
                await stream.send(_HTTP_2_HELLO)
                if (await stream.receive(9))[3:4] == b"\x04":  # the type of SETTINGS, with which HTTP/2 begins
                    return _HTTP_2
        return ""

    async def optional(self, path: str, *, timeout_s: float | None = None) -> HttpResponse | None:
        """GET a page that not every server has; `None` where that page alone gets no answer.

        Raises `Unreachable` where the server answers nothing else either: a server that is gone has not lost a page.
        """
        try:
            return await self.get(path, timeout_s=timeout_s)
        except Unreachable:
            await self.get(_ALWAYS)
            return None

    async def _request(
        self, method: str, path: str, body: JsonMembers | None, timeout_s: float | None, limit: int
    ) -> HttpResponse:
        assert self._client is not None
        self.sent += 1
        url = ("http://localhost" if socket_path(self.base) else self.base) + path
        timeout = self.timeout_s if timeout_s is None else timeout_s
        content = None if body is None else body.to_json()
        headers = {} if body is None else {"content-type": "application/json"}
        kept, truncated = bytearray(), False
        try:
            # httpx bounds each read, so that a server which trickles could hold us for ever: bound the whole as well
            with anyio.fail_after(timeout):
                async with self._client.stream(
                    method, url, content=content, headers=headers, timeout=timeout
                ) as response:
                    async for chunk in response.aiter_bytes():
                        kept += chunk
                        if len(kept) > limit:
                            truncated = True
                            break
        except TimeoutError:
            raise _timed_out(self.base, "no whole answer", timeout) from None
        except httpx.HTTPError as error:
            if any(exhausted(cause) for cause in _causes(error)):
                raise ClientLimited(no_connection_left(self.base)) from None
            raise _unreachable(self.base, error, timeout) from None
        except httpx.InvalidURL:
            raise UsageError(f"target {bounded(url)} is not a URL; write http://HOST:PORT") from None
        return HttpResponse(
            url=self.base + path, status=response.status_code, content_type=response.headers.get("content-type", ""),
            body=bytes(kept[:limit]), truncated=truncated, location=response.headers.get("location", ""),
            retry_after=bounded(response.headers.get("retry-after", ""), 40), date=response.headers.get("date", ""),
            secrets=secrets_of(self.headers),
        )  # fmt: skip


def no_connection_left(base: str) -> str:
    """What to say where this machine, not the server, refused a connection."""
    return (
        f"this machine has no port or file descriptor left for a connection to {base}: close other programs' "
        "connections or wait a minute (closed ones hold their ports so long), raise ulimit -n, widen "
        "net.ipv4.ip_local_port_range"
    )


def base_url(text: str) -> str:
    """The base URL a user means: without a path of the API behind it, http:// where no scheme is given.

    A Unix socket is unix:/path.sock, or http+unix:// with the path percent-encoded; the first form is returned. Raises
    `UsageError` for anything that is neither that nor a plain http or https URL.
    """
    if text.strip().startswith((UNIX, "http+unix:")):
        return _unix_url(text.strip())
    candidate = text.strip() if "://" in text else f"http://{text.strip()}"
    try:
        parts = urlsplit(candidate)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"target {bounded(text)} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or " " in candidate:
        raise UsageError(f"target {bounded(text)} is not a URL; write http://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            "the target URL holds a user or a password; give a key by environment variable or file instead"
        )
    if parts.query or parts.fragment:
        raise UsageError(f"target {bounded(text)}: a base URL has no ? or #; write http://HOST:PORT")
    path = parts.path.rstrip("/")
    ending = next((ending for ending in _OURS if path.endswith(ending)), "")
    return urlunsplit((parts.scheme, parts.netloc, path.removesuffix(ending), "", ""))


def _unix_url(text: str) -> str:
    if text.startswith(UNIX):
        path = text.removeprefix(UNIX).removeprefix("//")
    else:
        path = unquote(text.removeprefix("http+unix:").removeprefix("//").rstrip("/"))
    if not path.startswith("/") or not path.isprintable():
        raise UsageError(f"target {bounded(text)} is not a Unix socket; write unix:/path/to.sock")
    return UNIX + path


def load_api_key(*, env: str | None = None, file: str | Path | None = None) -> str | None:
    """The API key from an environment variable's name or from a file; `None` if neither is given.

    Raises `UsageError`, which never holds the key.
    """
    if env is not None and file is not None:
        raise UsageError("give the API key by environment variable or by file, not both")
    if env is not None:
        key, where = os.environ.get(env, ""), f"environment variable {env}"
        if env not in os.environ:
            raise UsageError(f"{where} is not set; it should hold the API key")
    elif file is not None:
        where = f"API key file {file}"
        try:
            key = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise UsageError(f"{where} cannot be read: {reason}") from None
    else:
        return None
    key = key.strip()
    if not key:
        raise UsageError(f"{where} is empty; it should hold the API key")
    if not sendable(key):
        raise UsageError(f"{where} holds more than one line or characters that no HTTP header can carry")
    return key


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and all that it came from, groups opened."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                yield from _causes(member)
        error = error.__cause__ or error.__context__


def _unreachable(base: str, error: httpx.HTTPError, timeout_s: float) -> Unreachable:
    causes = tuple(_causes(error))

    def first(kind: type[BaseException]) -> BaseException | None:
        return next((cause for cause in causes if isinstance(cause, kind)), None)

    if isinstance(error, httpx.TimeoutException):
        return _timed_out(base, "no connection" if isinstance(error, httpx.ConnectTimeout) else "no answer", timeout_s)
    if first(socket.gaierror) is not None:
        host = urlsplit(base).hostname
        return Unreachable(f"{base}: the host name {host} is not known (DNS); check its spelling", "dns")
    if (tls := first(ssl.SSLError)) is not None:
        return Unreachable(f"{base}: {_tls_fault(tls)}", "tls")
    if first(FileNotFoundError) is not None:
        return Unreachable(f"{base}: no such socket (is the server running, is the path right?)", "refused")
    if first(ConnectionRefusedError) is not None:
        return Unreachable(
            f"{base}: connection refused; nothing listens there (is the server up, is the port right?)", "refused"
        )
    if isinstance(error, httpx.ConnectError):
        fault = first(OSError)
        reason = (getattr(fault, "strerror", None) or str(error)) if fault else str(error)
        return Unreachable(f"{base}: cannot connect: {bounded(reason)}", "refused")
    if isinstance(error, httpx.RemoteProtocolError) and "without sending complete" in str(error):
        return Unreachable(f"{base}: the server closed the connection in the middle of its answer", "lost")
    if isinstance(error, httpx.RemoteProtocolError) and "disconnected" not in str(error):
        return Unreachable(f"{base}: what answers there does not speak HTTP ({bounded(str(error), 80)})", "protocol")
    return Unreachable(f"{base}: the connection was lost ({type(error).__name__})", "lost")


def _tls_fault(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = bounded(error.verify_message)
        remedy = "give its CA by --ca-file FILE, or pass --insecure for a test"
        return f"TLS: the server's certificate is not trusted ({reason}); {remedy}"
    if "WRONG_VERSION_NUMBER" in str(error) or "RECORD_LAYER" in str(error):
        return "TLS: the server does not speak it on this port; write http:// instead of https://"
    if "NO_APPLICATION_PROTOCOL" in str(error):
        return f"TLS: {_HTTP_2}"
    return f"TLS: the handshake failed ({bounded(str(getattr(error, 'reason', None) or error), 80)})"


def _timed_out(base: str, what: str, timeout_s: float) -> Unreachable:
    return Unreachable(f"{base}: {what} within {timeout_s:g} s (is the host right, is a firewall between?)", "timeout")
