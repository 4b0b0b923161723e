# ruff: noqa: E501 - a captured body is one line
"""Requests are accepted, cut and refused as vLLM 0.32.0 does; the refusals below are its own words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadgen.emulator.profiles import ServerLimits
from loadgen.emulator.request import ApiError, Endpoint, GenerateRequest, read_request

LIMITS = ServerLimits(max_model_len=4096, vocab_size=4096)


def read(body: Any, endpoint: Endpoint = "completions") -> GenerateRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_request(endpoint, raw, "tiny", LIMITS)


REFUSALS: list[tuple[Endpoint, Any, int, str]] = [
    ("completions", b'{"model": "tiny", "prompt": ', 400,
     r'''{"error":{"message":"1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.28', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': 'Expecting value'}}","type":"Bad Request","param":"body.28","code":400}}'''),
    ("completions", b"", 400,
     r'''{"error":{"message":"1 validation error:\n  {'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}","type":"Bad Request","param":"body","code":400}}'''),
    ("completions", [1], 400,
     r'''{"error":{"message":"1 validation error:\n  {'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input should be a valid dictionary or object to extract fields from', 'input': '<list of 1 items>'}","type":"Bad Request","param":"body","code":400}}'''),
    ("completions", {"model": "nope", "prompt": "hello", "max_tokens": 4, "stream": True}, 404,
     '{"error":{"message":"The model `nope` does not exist. Valid aliases: tiny.","type":"NotFoundError","param":"model","code":404}}'),
    ("completions", {"model": "tiny", "prompt": "hello", "max_tokens": 0}, 400,
     '{"error":{"message":"max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)","type":"BadRequestError","param":"max_tokens","code":400}}'),
    ("completions", {"model": "tiny", "prompt": [999999], "max_tokens": 4}, 400,
     '{"error":{"message":"Token id 999999 is out of vocabulary","type":"BadRequestError","param":null,"code":400}}'),
    ("completions", {"model": "tiny", "prompt": [300] * 5000, "stream": True}, 400,
     '{"error":{"message":"This model\'s maximum context length is 4096 tokens. However, your prompt contains 5000 input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=5000)","type":"BadRequestError","param":"input_tokens","code":400}}'),
    ("completions", {"model": "tiny", "prompt": "hello", "max_tokens": 4, "stream_options": {"include_usage": True}}, 400,
     '{"error":{"message":"Stream options can only be defined when `stream=True`. (parameter=stream_options)","type":"BadRequestError","param":"stream_options","code":400}}'),
    ("completions", {"model": "tiny", "max_tokens": 4}, 400,
     '{"error":{"message":"Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)","type":"BadRequestError","param":"prompt","code":400}}'),
    ("completions", {"model": "tiny", "max_tokens": 4, "prompt": []}, 400,
     '{"error":{"message":"You must pass at least one prompt","type":"BadRequestError","param":null,"code":400}}'),
    ("completions", {"model": "tiny", "max_tokens": "x", "prompt": "a"}, 400,
     r'''{"error":{"message":"1 validation error:\n  {'type': 'int_parsing', 'loc': 'body.max_tokens', 'msg': 'Input should be a valid integer, unable to parse string as an integer', 'input': 'x'}","type":"Bad Request","param":"body.max_tokens","code":400}}'''),
    ("completions", {"model": "tiny", "max_tokens": 4, "min_tokens": 8, "prompt": "a"}, 400,
     '{"error":{"message":"min_tokens must be less than or equal to max_tokens=4, got 8.","type":"BadRequestError","param":null,"code":400}}'),
    ("completions", {"model": "tiny", "max_tokens": 4, "cache_salt": "", "prompt": "a"}, 400,
     '{"error":{"message":"Parameter \'cache_salt\' must be a non-empty string if provided. (parameter=cache_salt)","type":"BadRequestError","param":"cache_salt","code":400}}'),
    ("chat", {"model": "tiny", "max_tokens": 4}, 400,
     r'''{"error":{"message":"1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', 'input': '<dict of 2 items>'}","type":"Bad Request","param":"body.messages","code":400}}'''),
]  # fmt: skip


@pytest.mark.parametrize(("endpoint", "body", "status", "said"), REFUSALS)
def test_refusals_are_vllms(endpoint: Endpoint, body: Any, status: int, said: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(body, endpoint)
    assert caught.value.status == status
    assert json.loads(caught.value.body) == json.loads(said)


@pytest.mark.parametrize(
    "prompt", [[1.5], [True, "a"], {"a": 1}, 7, [None], [[1], [2]], ["a", "b"], [-1], [2**70], [[1], 2]]
)
def test_prompts_of_a_wrong_shape_are_refused_with_400(prompt: Any) -> None:
    with pytest.raises(ApiError) as caught:
        read({"prompt": prompt})
    assert caught.value.status == 400


@pytest.mark.parametrize("messages", [[], "hi", ["hi"], [1], {}])
def test_messages_of_a_wrong_shape_are_refused_with_400(messages: Any) -> None:
    with pytest.raises(ApiError) as caught:
        read({"messages": messages}, "chat")
    assert caught.value.status == 400


def test_what_does_not_fit_is_cut_silently() -> None:
    request = read({"prompt": [300] * 4000, "max_tokens": 200, "min_tokens": 200, "ignore_eos": True})
    assert (request.max_tokens, request.min_tokens) == (96, 96)


def test_defaults_text_ids_and_chat() -> None:
    assert read({"prompt": "a"}).max_tokens == 16
    assert read({"prompt": "aé"}).prompt.tolist() == list("aé".encode())
    assert read({"prompt": [5, 6]}).prompt.tolist() == [5, 6]
    chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}
    assert bytes(read(chat, "chat").prompt.tolist()) == b"<|user|>hi"
    assert read(chat, "chat").max_tokens == 4096 - 10
    assert read({**chat, "max_completion_tokens": 3}, "chat").max_tokens == 3
    assert read({"prompt": "a", "unknown": 1, "cache_salt": "s"}).cache_salt == "s"
