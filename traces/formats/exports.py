"""JSON exports whose requests are nested or want more than a column each: one function a format, from record to row."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

from traces.decode import Clock
from traces.formats.documents import dig

__all__ = ["EXPORTS", "Export", "Row"]


@dataclass(slots=True, kw_only=True, eq=False)  # not frozen: one is made of every record, and that takes twice as long
class Row:
    """A record's values as the file has them, None where it has none; `skip`: the reason to leave it out, if any."""

    at: object = None
    input: object = None
    output: object = None
    session: object = None
    status: object = None
    duration: object = None
    skip: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """One format: how it is recognised in a record, and how its rows are taken out. None: no model request.

    `ends`: the instant is the end of the request, and `duration`, in seconds, goes off it.
    """

    name: str
    about: str
    clock: Clock
    claims: Callable[[dict[str, Any]], bool]
    record: Callable[[Any], Row | None]
    ends: bool = False
    notes: tuple[str, ...] = ()


def _get(record: Any, *path: str) -> Any:
    return dig(record, path)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _whole(value: Any) -> int | None:
    """A count that can be added up; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
        return int(value)
    if isinstance(value, Decimal) and value.is_finite() and value.adjusted() < 18 and value == int(value):
        return int(value)
    return value if isinstance(value, int) else None


def _sum(main: Any, *more: Any) -> Any:
    """`main` with what is counted apart from it; `main` itself if it is not a number, or nothing is to be added."""
    extra = [count for value in more if (count := _whole(value)) is not None]
    whole = _whole(main)
    return main if whole is None or not extra else whole + sum(extra)


def _flat(
    row: Any, *, at: str, tokens_in: str = "prompt_tokens", tokens_out: str = "completion_tokens", session: str = "",
    status: str = "",
) -> Row:  # fmt: skip
    """What stands at these keys; "" is a key that the format does not have."""
    return Row(
        at=_get(row, at),
        input=_get(row, tokens_in),
        output=_get(row, tokens_out),
        session=_get(row, session) if session else None,
        status=_get(row, status) if status else None,
    )


def _litellm(row: Any) -> Row:
    kind = str(_get(row, "call_type") or "")
    idle = re.fullmatch(
        r".*(embedding|image|moderation|transcription|speech|rerank|file|batch|ocr|search).*", kind, re.IGNORECASE
    )
    hit = str(_get(row, "cache_hit")).lower() == "true"
    flat = _flat(row, at="startTime", session="session_id", status="status")
    return replace(flat, skip="cache_hit" if hit else "no_generation" if idle else "")


def _langfuse(row: Any) -> Row | None:
    kind = _get(row, "type")
    if kind is not None and str(kind).upper() != "GENERATION":
        return None
    details = _first(_get(row, "usageDetails"), _get(row, "usage_details"))
    usage = _first(_get(row, "usage"), {})
    return Row(
        at=_first(_get(row, "startTime"), _get(row, "start_time")),
        input=_first(_detailed(details, "input"), _get(usage, "input"), _get(row, "promptTokens")),
        output=_first(_detailed(details, "output"), _get(usage, "output"), _get(row, "completionTokens")),
        session=_first(_get(row, "sessionId"), _get(row, "session_id")),
        status="failed" if _get(row, "level") == "ERROR" else "ok",
    )


def _detailed(details: Any, side: str) -> Any:
    """One side of Langfuse's usage details, whose parts (cached, audio, reasoning, …) stand beside the main count.

    Where their `total` is that of the two main counts alone, the parts are within those.
    """
    if not isinstance(details, dict):
        return None
    main = details.get(side)
    parts = [value for key, value in details.items() if side in key and key != side]
    both, total = _sum(details.get("input"), details.get("output")), _whole(details.get("total"))
    if total is not None and total == both:
        return main
    return _sum(0 if main is None and parts else main, *parts)


def _kong(row: Any) -> Row | None:
    plugins = _get(row, "ai")
    usage = [_get(one, "usage") for one in plugins.values()] if isinstance(plugins, dict) else []
    found = next((one for one in usage if isinstance(one, dict) and "prompt_tokens" in one), None)
    if found is None:
        return None
    cached = any(_get(one, "cache", "cache_status") == "Hit" for one in plugins.values())
    return Row(
        at=_get(row, "started_at"),
        input=found.get("prompt_tokens"),
        output=found.get("completion_tokens"),
        status=_get(row, "response", "status"),
        skip="cache_hit" if cached else "",
    )


def _bedrock(row: Any) -> Row | None:
    if _get(row, "schemaType") not in (None, "ModelInvocationLog"):
        return None
    counts = _get(row, "input")
    failed = _get(row, "errorCode") is not None
    output = _get(row, "output", "outputTokenCount")
    return Row(
        at=_get(row, "timestamp"),
        input=_sum(
            _get(counts, "inputTokenCount"),
            _get(counts, "cacheReadInputTokenCount"),
            _get(counts, "cacheWriteInputTokenCount"),
        ),
        output=output,
        status="failed" if failed else "ok",
        skip="no_generation" if "embed" in str(_get(row, "modelId")) else "",
    )


def _sglang(row: Any) -> Row | None:
    if _get(row, "event") != "request.finished":
        return None
    meta = _get(row, "out", "meta_info")
    reason = _get(meta, "finish_reason", "type")
    return Row(
        at=_get(row, "timestamp"),
        input=_get(meta, "prompt_tokens"),
        output=_get(meta, "completion_tokens"),
        duration=_get(meta, "e2e_latency"),
        status="failed" if reason == "abort" else "ok",
    )


def _openai(row: Any) -> Row | None:
    usage = _get(row, "usage")
    return Row(
        at=_first(_get(row, "created"), _get(row, "created_at")),
        input=_first(_get(usage, "prompt_tokens"), _get(usage, "input_tokens")),
        output=_first(_get(usage, "completion_tokens"), _get(usage, "output_tokens")),
        status="failed" if _get(row, "error") is not None or _get(row, "status") == "failed" else "ok",
        skip="no_generation" if _get(row, "object") == "list" else "",
    )


def _vertex(row: Any) -> Row:
    usage = _get(row, "full_response", "usageMetadata")
    claude = _get(row, "full_response", "usage")
    return Row(
        at=_get(row, "logging_time"),
        input=_first(
            _sum(_get(usage, "promptTokenCount"), _get(usage, "toolUsePromptTokenCount")),
            _sum(
                _get(claude, "input_tokens"),
                _get(claude, "cache_read_input_tokens"),
                _get(claude, "cache_creation_input_tokens"),
            ),
        ),
        output=_first(
            _sum(_get(usage, "candidatesTokenCount"), _get(usage, "thoughtsTokenCount")), _get(claude, "output_tokens")
        ),
    )


EXPORTS: Final = (
    Export(
        name="langfuse",
        about="Langfuse observations as JSON",
        clock="iso",
        claims=lambda r: (
            ("startTime" in r and not r.keys().isdisjoint(("usageDetails", "usage", "promptTokens", "traceId")))
            or ("start_time" in r and "usage_details" in r)
        ),
        record=_langfuse,
    ),
    Export(
        name="litellm",
        about="LiteLLM spend logs as JSON",
        clock="iso",
        claims=lambda r: {"startTime", "prompt_tokens", "completion_tokens"} <= r.keys(),
        record=_litellm,
    ),
    Export(
        name="helicone",
        about="Helicone exports as JSON",
        clock="iso",
        claims=lambda r: {"request_created_at", "prompt_tokens"} <= r.keys(),
        record=lambda r: _flat(r, at="request_created_at", status="response_status"),
    ),
    Export(
        name="ragpulse",
        about="RAGPulse: seconds",
        clock="s",
        claims=lambda r: isinstance(r.get("hash_ids"), dict),
        record=lambda r: _flat(
            r, at="timestamp", tokens_in="input_length", tokens_out="output_length", session="session_id"
        ),
        notes=("hash_ids name prompt components of unequal length, not blocks: they are not read as shared prefixes",),
    ),
    Export(
        name="kong",
        about="Kong AI Gateway log entries",
        clock="ms",
        claims=lambda r: isinstance(r.get("ai"), dict) and "started_at" in r,
        record=_kong,
    ),
    Export(
        name="bedrock",
        about="Amazon Bedrock model invocation logs",
        clock="iso",
        claims=lambda r: r.get("schemaType") == "ModelInvocationLog",
        record=_bedrock,
        notes=("Bedrock's clock has whole seconds: arrivals within one are ties",),
    ),
    Export(
        name="sglang",
        about="SGLang request logs",
        clock="iso",
        claims=lambda r: str(r.get("event")).startswith("request.") and "rid" in r,
        record=_sglang,
        ends=True,
        notes=("an arrival is the instant of request.finished less its e2e_latency",),
    ),
    Export(
        name="openai",
        about="OpenAI answers with their usage",
        clock="s",
        claims=lambda r: (
            isinstance(r.get("usage"), dict)
            and not r.keys().isdisjoint(("created", "created_at"))
            and not r["usage"].keys().isdisjoint(("prompt_tokens", "input_tokens"))
        ),
        record=_openai,
        notes=("`created` has whole seconds: arrivals within one are ties",),
    ),
    Export(
        name="vertex",
        about="Vertex AI request-response logs",
        clock="iso",
        claims=lambda r: "logging_time" in r and "full_response" in r,
        record=_vertex,
        notes=("logging_time is when the answer was logged: each arrival comes later by as long as its answer took",),
    ),
)
