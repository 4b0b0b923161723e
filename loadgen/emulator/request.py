"""Reading a request as vLLM's OpenAI server does: what it accepts, what it refuses, and its error messages.

A chat's prompt is `<|role|>` and the content of each message, one after the other, so that it ends in the last
message's own text.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import orjson

from loadgen.emulator.profiles import ServerLimits
from loadgen.emulator.vocabulary import encode

__all__ = ["ApiError", "GenerateRequest", "read_detokenize", "read_request", "read_tokenize"]

DEFAULT_COMPLETION_TOKENS: Final = 16  # OpenAI's, and vLLM's, default of max_tokens in /v1/completions
Endpoint = Literal["completions", "chat"]


class ApiError(Exception):
    """A refusal: its HTTP status and vLLM's error body."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerateRequest:
    """A request that was accepted."""

    endpoint: Endpoint
    prompt: npt.NDArray[np.int64]
    max_tokens: int  # already cut to what max_model_len leaves, silently, as vLLM does
    min_tokens: int
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    cache_salt: str
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _StreamOptions:
    """Where usage goes in a stream: in an event of its own at the end, and in every event."""

    include_usage: bool = False
    continuous_usage: bool = False


def read_request(endpoint: Endpoint, body: bytes, model: str, limits: ServerLimits) -> GenerateRequest:
    """Parse and check a body. Raises `ApiError`."""
    raw = _parse(body, model)
    if endpoint == "chat":
        prompt = _messages(raw.get("messages"), len(raw), limits)
    else:
        prompt = _prompt(raw.get("prompt"), limits)
    _check_length(prompt, limits)
    stream = bool(raw.get("stream"))
    options = _stream_options(raw.get("stream_options"), stream=stream)
    room = limits.max_model_len - len(prompt)
    max_tokens = _integer(raw.get("max_tokens"), "max_tokens")
    if endpoint == "chat" and raw.get("max_completion_tokens") is not None:
        max_tokens = _integer(raw["max_completion_tokens"], "max_completion_tokens")
    if max_tokens is None:
        max_tokens = room if endpoint == "chat" else DEFAULT_COMPLETION_TOKENS
    if max_tokens < 1:
        text = f"max_tokens must be at least 1, got {max_tokens}. (parameter=max_tokens, value={max_tokens})"
        raise _bad(text, "max_tokens")
    min_tokens = _integer(raw.get("min_tokens"), "min_tokens") or 0
    if min_tokens > max_tokens:
        raise _bad(f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.")
    if (raw.get("n") or 1) != 1:
        raise _bad("the emulator answers one choice a request: n must be 1. (parameter=n)", "n")
    return GenerateRequest(
        endpoint=endpoint,
        prompt=prompt,
        max_tokens=min(max_tokens, room),
        min_tokens=min(min_tokens, room),
        ignore_eos=bool(raw.get("ignore_eos")),
        stream=stream,
        include_usage=options.include_usage,
        continuous_usage=options.continuous_usage,
        return_token_ids=bool(raw.get("return_token_ids")),
        cache_salt=_salt(raw.get("cache_salt")),
        priority=_integer(raw.get("priority"), "priority") or 0,
    )


def read_tokenize(body: bytes, model: str, limits: ServerLimits) -> tuple[list[int], bool]:
    """The ids of a text or a chat, and whether their texts are wanted too. Raises `ApiError`."""
    raw = _parse(body, model)
    if "messages" in raw:
        ids = _messages(raw["messages"], len(raw), limits)
    elif isinstance(raw.get("prompt"), str):
        ids = encode(raw["prompt"], limits.vocab_size)
    else:
        raise _invalid("missing", "body.prompt", "Field required", f"<dict of {len(raw)} items>")
    return ids.tolist(), bool(raw.get("return_token_strs"))


def read_detokenize(body: bytes, model: str, limits: ServerLimits) -> list[int]:
    """The ids whose text is asked for. Raises `ApiError`."""
    raw = _parse(body, model)
    if raw.get("tokens") == []:
        return []
    if not isinstance(raw.get("tokens"), list):
        raise _invalid("missing", "body.tokens", "Field required", f"<dict of {len(raw)} items>")
    ids: list[int] = _ids(raw["tokens"], "tokens", limits).tolist()
    return ids


def _bad(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, "BadRequestError", param)


def _invalid(kind: str, where: str, message: str, given: str, reason: str = "") -> ApiError:
    """A body of the wrong shape, in the words of the validator that vLLM uses; `reason`: the JSON parser's, if any."""
    context = {"ctx": {"error": reason}} if reason else {}
    entry = {"type": kind, "loc": where, "msg": message, "input": given, **context}
    return ApiError(400, f"1 validation error:\n  {entry}", "Bad Request", where)


def _parse(body: bytes, model: str) -> dict[str, Any]:
    if not body:
        raise _invalid("missing", "body", "Field required", "None")
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError:
        position, reason = _json_fault(body)
        raise _invalid("json_invalid", f"body.{position}", "JSON decode error", "<dict of 0 items>", reason) from None
    if not isinstance(raw, dict):
        text = "Input should be a valid dictionary or object to extract fields from"
        raise _invalid("model_attributes_type", "body", text, _given(raw))
    if raw.get("model", model) != model:
        text = f"The model `{raw['model']}` does not exist. Valid aliases: {model}."
        raise ApiError(404, text, "NotFoundError", "model")
    return raw


def _json_fault(body: bytes) -> tuple[int, str]:
    """Where and why the standard parser, whose words vLLM passes on, gives up."""
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        return error.pos, error.msg
    except UnicodeDecodeError as error:
        return error.start, "invalid UTF-8"
    return 0, "a number or a constant that JSON does not have"


def _given(value: object) -> str:
    return f"<{type(value).__name__} of {len(value)} items>" if isinstance(value, list | dict) else str(value)


def _integer(value: object, key: str) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    text = "Input should be a valid integer"
    if isinstance(value, str):
        raise _invalid("int_parsing", f"body.{key}", f"{text}, unable to parse string as an integer", value)
    raise _invalid("int_type", f"body.{key}", text, _given(value))


def _salt(salt: object) -> str:
    if salt is None:
        return ""
    if not isinstance(salt, str) or not salt:
        text = "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)"
        raise _bad(text, "cache_salt")
    return salt


def _stream_options(options: object, *, stream: bool) -> _StreamOptions:
    if options is None:
        return _StreamOptions()
    if not stream:
        text = "Stream options can only be defined when `stream=True`. (parameter=stream_options)"
        raise _bad(text, "stream_options")
    if not isinstance(options, dict):
        text = "Input should be a valid dictionary or object to extract fields from"
        raise _invalid("model_attributes_type", "body.stream_options", text, _given(options))
    usage = bool(options.get("include_usage"))
    return _StreamOptions(include_usage=usage, continuous_usage=usage and bool(options.get("continuous_usage_stats")))


def _prompt(prompt: object, limits: ServerLimits) -> npt.NDArray[np.int64]:
    if prompt is None or prompt == "":
        raise _bad("Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", "prompt")
    if isinstance(prompt, str):
        return encode(prompt, limits.vocab_size)
    if prompt == []:
        raise _bad("You must pass at least one prompt")
    if not isinstance(prompt, list):
        raise _invalid("list_type", "body.prompt", "Input should be a valid list", _given(prompt))
    if isinstance(prompt[0], str | list):
        raise _bad("the emulator serves one prompt a request: send a batch as requests of its own", "prompt")
    return _ids(prompt, "prompt", limits)


def _ids(given: list[Any], key: str, limits: ServerLimits) -> npt.NDArray[np.int64]:
    try:
        ids = np.frombuffer(array("q", given), dtype=np.int64)  # a third of the time of np.array
    except (TypeError, OverflowError):
        raise _invalid("int_type", f"body.{key}.0", "Input should be a valid integer", _given(given)) from None
    if ids.min() < 0 or ids.max() >= limits.vocab_size:
        outside = (ids < 0) | (ids >= limits.vocab_size)
        raise _bad(f"Token id {ids[outside.argmax()]} is out of vocabulary")
    return ids


def _messages(messages: object, keys: int, limits: ServerLimits) -> npt.NDArray[np.int64]:
    """The prompt of a chat; `keys`: how many the body has, for the refusal of one without messages."""
    if messages is None:
        raise _invalid("missing", "body.messages", "Field required", f"<dict of {keys} items>")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise _invalid("list_type", "body.messages", "Input should be a valid list", _given(messages))
    if not messages:
        raise _bad("You must pass at least one message", "messages")
    text = "".join(f"<|{message.get('role')}|>{_content(message.get('content'))}" for message in messages)
    return encode(text, limits.vocab_size)


def _content(content: object) -> str:
    """The text of a message: a string, or the text parts of a list."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _check_length(prompt: npt.NDArray[np.int64], limits: ServerLimits) -> None:
    if len(prompt) < limits.max_model_len:
        return
    text = (
        f"This model's maximum context length is {limits.max_model_len} tokens. However, your prompt contains "
        f"{len(prompt)} input tokens, which exceeds this limit even without any output tokens. Please reduce the "
        f"length of the input prompt. (parameter=input_tokens, value={len(prompt)})"
    )
    raise _bad(text, "input_tokens")
