"""Writing answers field by field as vLLM 0.32.0 does: stream events, whole answers, the list of models.

What an event has in common with the others of its stream is rendered once; a token costs one join of a few pieces.
The output is a fixed cycle of words, for nobody reads it.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import orjson

from loadgen.emulator.request import GenerateRequest

__all__ = ["DONE", "Answer", "models_body"]

DONE: Final = b"data: [DONE]\n\n"
_WORDS: Final = (" one", " two", " three", " four", " five", " six", " seven", " eight")
_IDS: Final = (1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008)
_TEXTS: Final = tuple(orjson.dumps(word) for word in _WORDS)


class Answer:
    """Renders one answer. Token numbers count from 0; `tokens` is how many it will have, `stops` how it ends."""

    def __init__(
        self, request: GenerateRequest, *, key: str, created: int, model: str, tokens: int, stops: bool
    ) -> None:
        self._request = request
        self._chat = request.endpoint == "chat"
        self._tokens = tokens
        self._finish = b'"stop"' if stops else b'"length"'
        self._stops = stops
        self._fingerprint = b',"system_fingerprint":"loadgen-emulator"'
        kind = "chat.completion" if self._chat else "text_completion"
        self.id = f"{'chatcmpl' if self._chat else 'cmpl'}-{key}"
        self._object, self._created, self._model = kind, created, model
        chunk = f"{kind}.chunk" if self._chat else kind
        head = orjson.dumps({"id": self.id, "object": chunk, "created": created, "model": model})
        self._head = b"data: " + head[:-1] + b',"choices":['
        self._open = self._head + b'{"index":0,' + (b'"delta":{"content":' if self._chat else b'"text":')
        self._close_text = b'},"logprobs":null,"finish_reason":' if self._chat else b',"logprobs":null,"finish_reason":'

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

    def events(self, first: int, count: int) -> bytes:
        """The events of `count` tokens from number `first` on, one event a token."""
        return b"".join(self._event(number) for number in range(first, first + count))

    def end(self) -> bytes:
        """What stands after the last token: usage if it was asked for, and [DONE]."""
        if not self._request.include_usage:
            return DONE
        usage = orjson.dumps(self._usage(self._tokens))
        return b"".join((self._head, b'],"usage":', usage, self._fingerprint, b"}\n\n", DONE))

    def whole(self) -> bytes:
        """The answer to a request without `stream`."""
        request = self._request
        shown = self._tokens - self._stops  # the token that stops has no text
        text = "".join(itertools.islice(itertools.cycle(_WORDS), shown))
        ids = [_IDS[number % len(_IDS)] for number in range(self._tokens)] if request.return_token_ids else None
        prompt_ids = request.prompt.tolist() if request.return_token_ids else None
        end: dict[str, Any] = {
            "logprobs": None, "finish_reason": "stop" if self._stops else "length", "stop_reason": None,
            "token_ids": ids,
        }  # fmt: skip
        usage = {
            **self._usage(self._tokens),
            "prompt_tokens_details": None,
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

    def _event(self, number: int) -> bytes:
        last = number == self._tokens - 1
        slot = number % len(_IDS)
        pieces = [self._open, b'""' if last and self._stops else _TEXTS[slot], self._close_text]
        pieces.append(self._finish if last else b"null")
        if last or not self._chat:
            pieces.append(b',"stop_reason":null')
        wants_ids = self._request.return_token_ids
        if not self._chat:
            ids = orjson.dumps(self._request.prompt.tolist()) if wants_ids and number == 0 else b"null"
            pieces += (b',"prompt_token_ids":', ids)
        pieces += (
            b',"token_ids":',
            b"[%d]" % _IDS[slot] if wants_ids else b"null",
            b"}]",
            self._usage_member(number + 1),
        )
        if last and not self._request.include_usage:
            pieces.append(self._fingerprint)
        pieces.append(b"}\n\n")
        return b"".join(pieces)

    def _usage(self, tokens: int) -> dict[str, Any]:
        prompt = len(self._request.prompt)
        return {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}

    def _usage_member(self, tokens: int) -> bytes:
        """The running usage inside an event, where it was asked for."""
        if not self._request.continuous_usage:
            return b""
        usage = self._usage(tokens)
        if self._chat:
            usage["completion_tokens_details"] = None
        return b',"usage":' + orjson.dumps(usage)


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
