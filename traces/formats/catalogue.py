"""Every known flat format. Sources, licences and quirks of each: docs/traces.md."""

from __future__ import annotations

from typing import Any, Final

from traces.decode import Clock
from traces.formats.layout import Filter, Layout

__all__ = ["LAYOUTS", "OWN_HASHES", "TOTALS"]

OWN_HASHES: Final = "hash_ids_"  # our tables name the block size in the column: hash_ids_512

_TABLE: Final = ("table",)
# keys that distinguish the relatives of Mooncake's layout from it
_RELATIVES: Final = ("chat_id", "session_id", "delay", "messages", "text_input", "payload")


# columns of reports that sum requests: their rows are not requests
TOTALS: Final = frozenset(
    {"num_model_requests", "n_requests", "n_context_tokens_total", "api_requests", "successful_requests",
     "countObservations", "request_count", "requests_count", "num_requests"}
)  # fmt: skip


def _timed(name: str, about: str, clock: Clock, block_tokens: int, **more: Any) -> Layout:
    """A layout with Mooncake's keys, in a unit and with a block size of its own."""
    return Layout(
        name=name,
        about=about,
        container=("lines", "table"),
        at=("timestamp",),
        input=("input_length",),
        output=("output_length",),
        clock=clock,
        hashes=("hash_ids",),
        block_tokens=block_tokens,
        **more,
    )


LAYOUTS: Final = (
    Layout(
        name="loadgen",
        about="tables written by `loadgen trace convert`",
        container=_TABLE,
        at=("at_ns",),
        clock="ns",
        input=("input_tokens",),
        output=("output_tokens",),
        session=("session",),
        row_id=("row",),
        parent=("parent",),
        status=("outcome",),
        marks=("row",),
    ),
    Layout(
        name="azure",
        about="Azure LLM inference 2023 and 2024",
        container=_TABLE,
        at=("TIMESTAMP",),
        input=("ContextTokens",),
        output=("GeneratedTokens",),
        alien=("NumImages",),
    ),
    Layout(
        name="azure_multimodal",
        about="Azure multimodal inference 2025",
        container=_TABLE,
        at=("TIMESTAMP",),
        input=("ContextTokens",),
        output=("GeneratedTokens",),
        marks=("NumImages",),
        notes=("NumImages is not read: ContextTokens holds the prompt, images counted in",),
    ),
    Layout(
        name="burstgpt",
        about="BurstGPT v1, v2 and v3",
        container=_TABLE,
        at=("Timestamp",),
        clock="s",
        input=("Request tokens",),
        output=("Response tokens",),
        session=("Session ID",),
        zero_output_fails=True,
    ),
    _timed(
        "mooncake",
        "Mooncake traces: milliseconds, blocks of 512 tokens",
        "ms",
        512,
        alien=_RELATIVES,
    ),
    _timed(
        "timed_trace",
        "vLLM's timed_trace: seconds, blocks of 16 tokens",
        "s",
        16,
        alien=_RELATIVES,
    ),
    _timed(
        "guidellm",
        "GuideLLM replay files: seconds",
        "s",
        512,
        explicit=True,
    ),
    _timed(
        "aiperf",
        "AIPerf mooncake_trace files with sessions: milliseconds, blocks of 512 tokens",
        "ms",
        512,
        session=("session_id",),
        marks=("session_id",),
        notes=("turns timed by `delay` after an answer have no instant of their own: they count as missing_time",),
    ),
    _timed(
        "bailian",
        "Qwen-Bailian usage traces: seconds, blocks of 16 tokens",
        "s",
        16,
        row_id=("chat_id",),
        parent=("parent_chat_id",),
        marks=("chat_id", "parent_chat_id"),
    ),
    Layout(
        name="litellm",
        about="LiteLLM spend logs (LiteLLM_SpendLogs)",
        container=("table", "records"),
        at=("startTime",),
        input=("prompt_tokens",),
        output=("completion_tokens",),
        session=("session_id",),
        status=("status",),
        filters=(
            Filter(column="cache_hit", reason="cache_hit", drop="true"),
            Filter(
                column="call_type",
                reason="no_generation",
                drop=r".*(embedding|image|moderation|transcription|speech|rerank|file|batch|ocr|search).*",
            ),
        ),
        marks=("request_id",),
    ),
    Layout(
        name="helicone",
        about="Helicone exports",
        container=("table", "records"),
        at=("request_created_at",),
        input=("prompt_tokens",),
        output=("completion_tokens",),
        status=("response_status",),
    ),
    Layout(
        name="langfuse",
        about="Langfuse observations (table export)",
        container=_TABLE,
        at=("startTime", "Start Time"),
        input=("inputUsage", "promptTokens", "inputTokens", "Input Tokens"),
        output=("outputUsage", "completionTokens", "outputTokens", "Output Tokens"),
        session=("sessionId",),
        status=("level",),
        ok_status=frozenset({"default", "debug", "warning", ""}),
        filters=(Filter(column="type", reason="not_a_request", keep="generation"),),
    ),
    Layout(
        name="langsmith",
        about="LangSmith runs",
        container=("table", "lines"),
        at=("start_time",),
        input=("prompt_tokens",),
        output=("completion_tokens",),
        status=("status",),
        ok_status=frozenset({"success", "pending", ""}),
        filters=(Filter(column="run_type", reason="not_a_request", keep="llm"),),
        marks=("run_type",),
        notes=("session_id is the project in LangSmith: no sessions are read from it",),
    ),
    Layout(
        name="openinference",
        about="OpenInference spans as a table (Phoenix)",
        container=("table", "lines"),
        at=("start_time",),
        input=("attributes.llm.token_count.prompt",),
        output=("attributes.llm.token_count.completion",),
        session=("attributes.session.id",),
        status=("status_code",),
        ok_status=frozenset({"ok", "unset", ""}),
        filters=(Filter(column="span_kind", reason="not_a_request", keep="llm"),),
    ),
    Layout(
        name="apim",
        about="Azure API Management's ApiManagementGatewayLlmLog",
        container=("table", "lines"),
        at=("TimeGenerated [UTC]", "TimeGenerated"),
        input=("PromptTokens",),
        output=("CompletionTokens",),
        filters=(Filter(column="SequenceNumber", reason="not_a_request", keep="0"),),
    ),
    Layout(
        name="access_log",
        about="Envoy or nginx access logs as JSON lines with token fields",
        container=("lines",),
        at=("start_time", "msec", "time_iso8601"),
        clocks={"msec": "s"},
        input=("gen_ai.usage.input_tokens", "input_tokens", "llm_input_token", "prompt_tokens"),
        output=("gen_ai.usage.output_tokens", "output_tokens", "llm_output_token", "completion_tokens"),
        session=("session.id", "session_id"),
        status=("response_code", "status"),
        duration=("request_time",),
        alien=("startTime", "request_created_at", "run_type"),
        any_of=("response_code", "request_time"),
    ),
)
