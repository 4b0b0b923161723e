"""Writing answers field by field as vLLM 0.32.0 does: stream events, whole answers, the list of models.

What an event has in common with the others of its stream is rendered once; a token costs one join of a few pieces.
The output is a fixed cycle of words.
"""

from __future__ import annotations

from typing import Any, Final, TypedDict

import orjson

from loadgen.emulator.profiles import ServerLimits
from loadgen.emulator.request import GenerateRequest
from loadgen.emulator.vocabulary import piece

__all__ = ["DONE", "RenderedResponse", "models_body"]

DONE: Final = b"data: [DONE]\n\n"
_CLOSE: Final = b"}\n\n"
_IDS: Final = tuple(range(1001, 1009))
_WORDS: Final = tuple(piece(token_id).decode() for token_id in _IDS)


class _Usage(TypedDict):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int


class RenderedResponse:
    """Renders one answer. Token numbers count from 0; `tokens` is how many it will have, `stops` how it ends."""

    def __init__(
        self, request: GenerateRequest, *, key: str, created: int, model: str, tokens: int, stops: bool,
        limits: ServerLimits,
    ) -> None:  # fmt: skip
        self.cached_tokens = 0  # of the prompt; known with the first token
        self._request = request
        self._chat = request.endpoint == "chat"
        self._tokens = tokens
        self._finish = b'"stop"' if stops else b'"length"'
        self._stops = stops
        self._interval = limits.stream_interval
        self._details = limits.enable_prompt_tokens_details
        self._fingerprint = b',"system_fingerprint":"loadgen-emulator"'
        kind = "chat.completion" if self._chat else "text_completion"
        self.id = f"{'chatcmpl' if self._chat else 'cmpl'}-{key}"
        self._object, self._created, self._model = kind, created, model
        chunk = f"{kind}.chunk" if self._chat else kind
        head = orjson.dumps({"id": self.id, "object": chunk, "created": created, "model": model})
        self._head = b"data: " + head[:-1] + b',"choices":['
        self._open = self._head + b'{"index":0,' + (b'"delta":{"content":' if self._chat else b'"text":')
        self._close_text = b'},"logprobs":null,"finish_reason":' if self._chat else b',"logprobs":null,"finish_reason":'
        self._inner: list[bytes] = []  # events of one token that are neither first nor last (with usage: up to it)

    def ready(self, emitted: int) -> int:
        """How many of `emitted` tokens can be written: an event holds the first, then one each `stream_interval`."""
        if emitted == self._tokens or not emitted:
            return emitted
        return 1 + (emitted - 1) // self._interval * self._interval

    def opener(self) -> bytes:
        """What stands before the first token: a chat's role event, or nothing."""
        if not self._chat:
            return b""
        ids = orjson.dumps(self._request.prompt.tolist()) if self._request.return_token_ids else b"null"
        usage = self._usage_member(0)
        return b"".join((
            self._head,
            b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]',
            usage, b',"prompt_token_ids":', ids, b',"prompt_text":null}\n\n',
        ))  # fmt: skip

    def events(self, first: int, end: int) -> bytes:
        """The events of tokens `first` to `end` (excluded); both are what `ready` said."""
        out: list[bytes] = []
        while first < end:
            after = min(first + self._interval, end) if first else 1
            if first and self._interval == 1 and first < self._tokens - 1:
                after = min(end, self._tokens - 1)
                out += self._inner_events(first, after)
            else:
                out.append(self._event(first, after))
            first = after
        return b"".join(out)

    def end(self) -> bytes:
        """What stands after the last token: usage if it was asked for, and [DONE]."""
        if not self._request.include_usage:
            return DONE
        details = {"prompt_tokens_details": {"cached_tokens": self.cached_tokens}} if self._details else {}
        usage = orjson.dumps({**self._usage(self._tokens), **details})
        return b"".join((self._head, b'],"usage":', usage, self._fingerprint, b"}\n\n", DONE))

    def whole(self) -> bytes:
        """The answer to a request without `stream`."""
        request = self._request
        shown = self._tokens - self._stops  # the token that stops has no text
        text = _text(0, shown)
        ids = _ids(0, self._tokens) if request.return_token_ids else None
        prompt_ids = request.prompt.tolist() if request.return_token_ids else None
        end: dict[str, Any] = {
            "logprobs": None, "finish_reason": "stop" if self._stops else "length", "stop_reason": None,
            "token_ids": ids,
        }  # fmt: skip
        details = {"cached_tokens": self.cached_tokens, "created_cache_tokens": None, "multimodal_tokens": None}
        usage = {
            **self._usage(self._tokens),
            "prompt_tokens_details": details if self._details else None,
            "completion_tokens_details": None,
        }
        body: dict[str, Any] = {"id": self.id, "object": self._object, "created": self._created, "model": self._model}
        if self._chat:
            message = {
                "role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None,
                "function_call": None, "reasoning": None,
            }  # fmt: skip
            body["choices"] = [{"index": 0, "message": message, **end, "routed_experts": None}]
            tail = {"prompt_logprobs": None, "prompt_token_ids": prompt_ids, "prompt_text": None}
        else:
            choice = {"index": 0, "text": text, **end, "prompt_logprobs": None, "prompt_token_ids": prompt_ids}
            body["choices"] = [{**choice, "routed_experts": None}]
            tail = {}
        body |= {"service_tier": None, "system_fingerprint": "loadgen-emulator", "usage": usage, **tail}
        return orjson.dumps(body | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None})

    def _inner_events(self, first: int, end: int) -> list[bytes]:
        """One a token, neither the first nor the last: the bulk of a stream, and all alike but for word and usage."""
        usage = self._request.continuous_usage
        if not self._inner:
            close = b"" if usage else _CLOSE
            self._inner = [self._choice(slot, slot + 1, b"null", b"null") + close for slot in range(len(_IDS))]
        inner, size = self._inner, len(_IDS)
        if not usage:
            return [inner[number % size] for number in range(first, end)]
        return [inner[number % size] + self._usage_member(number + 1) + _CLOSE for number in range(first, end)]

    def _event(self, first: int, end: int) -> bytes:
        last = end == self._tokens
        wants_prompt = self._request.return_token_ids and first == 0
        prompt = orjson.dumps(self._request.prompt.tolist()) if wants_prompt else b"null"
        choice = self._choice(first, end, self._finish if last else b"null", prompt)
        fingerprint = self._fingerprint if last and not self._request.include_usage else b""
        return b"".join((choice, self._usage_member(end), fingerprint, _CLOSE))

    def _choice(self, first: int, end: int, finish: bytes, prompt: bytes) -> bytes:
        """An event from its start to the end of `choices`."""
        last = finish != b"null"
        text = _text(first, end - (last and self._stops))  # the token that stops has no text
        pieces = [self._open, orjson.dumps(text), self._close_text, finish]
        if last or not self._chat:
            pieces.append(b',"stop_reason":null')
        if not self._chat:
            pieces += (b',"prompt_token_ids":', prompt)
        ids = orjson.dumps(_ids(first, end)) if self._request.return_token_ids else b"null"
        pieces += (b',"token_ids":', ids, b"}]")
        return b"".join(pieces)

    def _usage(self, tokens: int) -> _Usage:
        prompt = len(self._request.prompt)
        return {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}

    def _usage_member(self, tokens: int) -> bytes:
        """The running usage inside an event, where it was asked for."""
        if not self._request.continuous_usage:
            return b""
        usage = self._usage(tokens)
        shown = {**usage, "completion_tokens_details": None} if self._chat else usage
        return b',"usage":' + orjson.dumps(shown)


def _ids(first: int, end: int) -> list[int]:
    return [_IDS[number % len(_IDS)] for number in range(first, end)]


def _text(first: int, end: int) -> str:
    return "".join(_WORDS[number % len(_WORDS)] for number in range(first, end))


def models_body(model: str, created: int, max_model_len: int) -> bytes:
    """The answer to GET /v1/models."""
    permission = {
        "id": "modelperm-emulator", "object": "model_permission", "created": created, "allow_create_engine": False,
        "allow_sampling": True, "allow_logprobs": False, "allow_search_indices": False, "allow_view": True,
        "allow_fine_tuning": False, "organization": "*", "group": None, "is_blocking": False,
    }  # fmt: skip
    card = {
        "id": model, "object": "model", "created": created, "owned_by": "loadgen-emulator", "root": model,
        "parent": None, "max_model_len": max_model_len, "permission": [permission],
    }  # fmt: skip
    return orjson.dumps({"object": "list", "data": [card]})
