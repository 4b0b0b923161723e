"""Folds the JSON documents of an answer into a `ParsedResponse`: what each brings (method, section 2), without I/O."""

from __future__ import annotations

from typing import Any, Final

import orjson

from analysis.schema import ABSENT
from analysis.text import bounded
from loadgen.send.openai import GOOD_FINISH, ParsedResponse

__all__ = ["Fold"]

_COUNT_LIMIT: Final = 1 << 53  # a larger "count" is noise, and would not fit the table
_NONE, _OPENER, _EMPTY, _TEXT = range(4)  # what a choice brings


class Fold:
    """Folds a body's JSON documents into a `ParsedResponse`, in order."""

    __slots__ = ("answer", "began", "empty", "told_by_ids")

    def __init__(self, answer: ParsedResponse) -> None:
        self.answer = answer
        self.began = False  # an event came
        self.empty: list[int] = []  # places of token events without content
        self.told_by_ids = 0  # token events that came with their ids

    def add(self, document: dict[str, Any], at_ns: int, name: bytes) -> bool:
        """True for a later token event that said nothing else: one that differs only in its text is alike."""
        answer = self.answer
        choices, usage = document.get("choices"), document.get("usage")
        if document.get("error") or name == b"error" or document.get("object") == "error":
            answer.error = answer.error or _error_text(document.get("error") or document)
            return False
        fresh = ABSENT if usage is None else self._add_usage(usage)
        if (metrics := document.get("metrics")) is not None:
            self._add_metrics(metrics)
        if not choices:
            return False
        if type(choices) is not list or type(choices[0]) is not dict:
            answer.bad = answer.bad or "choices is not a list of objects"
            return False
        events, brought, ids = answer.events, _NONE, ABSENT
        alike = bool(events) and usage is None
        for choice in choices:
            if type(choice) is not dict:
                continue
            if reason := choice.get("finish_reason"):
                alike = False
                if not answer.finish_reason or answer.finish_reason in GOOD_FINISH:
                    answer.finish_reason = bounded(str(reason))
            token_ids = choice.get("token_ids")
            if type(token_ids) is list:
                alike, ids = False, max(ids, 0) + len(token_ids)
            brought = max(brought, _brings(choice))
        if brought == _NONE or (brought == _OPENER and not events):
            return False
        if ids != ABSENT:
            fresh = ids
            self.told_by_ids += 1
        if brought != _TEXT:
            self.empty.append(len(events))
        events.append((at_ns, fresh))
        return alike

    def _add_usage(self, usage: Any) -> int:
        """Note a usage object; the completion tokens it reports beyond the last one, -1 if it reports none."""
        if type(usage) is not dict:
            return ABSENT
        answer = self.answer
        if (prompt := _count(usage.get("prompt_tokens"))) != ABSENT:
            answer.input_tokens = prompt
        details = usage.get("prompt_tokens_details")
        if type(details) is dict and (cached := _count(details.get("cached_tokens"))) != ABSENT:
            answer.cached_tokens = cached
        completion = _count(usage.get("completion_tokens"))
        if completion == ABSENT:
            return ABSENT
        fresh, answer.usage_tokens = max(completion - max(answer.usage_tokens, 0), 0), completion
        return fresh

    def _add_metrics(self, metrics: Any) -> None:
        """vLLM's times of one request (--enable-per-request-metrics); its "time to first token" begins at the start."""
        if type(metrics) is not dict:
            return
        answer = self.answer
        answer.server_queue_ns = _ns(metrics.get("queue_time_ms"))
        answer.server_prefill_ns = _ns(metrics.get("time_to_first_token_ms"))
        answer.server_decode_ns = _ns(metrics.get("generation_time_ms"))


def _brings(choice: dict[str, Any]) -> int:
    """What one choice brings (method, section 2)."""
    text, delta = choice.get("text"), choice.get("delta")
    if text or choice.get("token_ids") or choice.get("message"):
        return _TEXT
    if type(delta) is dict:
        if any(value for key, value in delta.items() if key != "role"):
            return _TEXT
        return _OPENER if delta.get("role") and not choice.get("finish_reason") else _EMPTY
    return _NONE if text is None else _EMPTY


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < _COUNT_LIMIT else ABSENT


def _ns(milliseconds: Any) -> int:
    known = type(milliseconds) in (int, float) and 0 <= milliseconds < _COUNT_LIMIT / 1e6
    return round(milliseconds * 1e6) if known else ABSENT


def _error_text(error: object) -> str:
    if isinstance(error, dict) and error.get("message"):
        error = error["message"]
    return bounded(error if isinstance(error, str) else orjson.dumps(error)) or "an error event"
