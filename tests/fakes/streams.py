"""Answers as OpenAI-compatible servers write them."""

from __future__ import annotations

from functools import cache
from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"


def event(document: Any) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


def text(piece: str, finish: str | None = None, **extra: Any) -> dict[str, Any]:
    """A completions event."""
    return {"choices": [{"index": 0, "text": piece, "finish_reason": finish}], **extra}


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chat event."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def usage(completion: int, prompt: int = 8, **extra: Any) -> dict[str, Any]:
    """A usage-only event."""
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **extra}}


@cache
def completion_events(tokens: int) -> tuple[bytes, ...]:
    """Token events, usage and [DONE] of a whole stream."""
    pieces = [event(text(f" t{i}", "length" if i == tokens - 1 else None)) for i in range(tokens)]
    return (*pieces, event(usage(tokens)), DONE)


def chunked(piece: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(piece), piece)
