"""From what the user typed to a server that answers as an OpenAI-compatible one and serves the requested model.

A server may take minutes to load its weights, so what may pass by waiting is waited for: a refused connection, a
timeout, 502, 503 and 504. What waiting cannot mend (an unknown host, TLS, a web page, a missing key, another model) is
said at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import anyio

from analysis.text import Passing, bounded
from loadgen.common.errors import TargetUnfit, TargetUnreachable
from loadgen.target.answers import ListedModel, listed_models
from loadgen.target.http import Http, HttpResponse, Unreachable

__all__ = ["ModelCard", "wait_ready"]

ProgressNote = Callable[[str], None]
_WORTH_WAITING: Final = ("refused", "timeout", "lost")
_STARTING: Final = (502, 503, 504)
_POLL_S: Final = 0.5
_NO_LIST: Final = (401, 403, 404, 405, 501)
_LISTED: Final = 10  # models named in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """A served model, as /v1/models tells of it."""

    name: str
    max_model_len: int | None


async def wait_ready(
    http: Http, model: str | None, *, timeout_s: float, progress: ProgressNote | None = None
) -> ModelCard:
    """Wait until the server is up, then find the model (the only one if `None`).

    `progress` gets messages while waiting. Raises `TargetUnreachable` or `TargetUnfit`.
    """
    began_s = anyio.current_time()
    while True:
        try:
            fault = await _not_up(http)
        except Unreachable as error:
            if error.why in ("lost", "protocol") and (reason := await http.instead()):
                raise Unreachable(f"{http.base}: {reason}", "protocol") from None
            if error.why not in _WORTH_WAITING:
                raise
            fault = str(error)
            if error.why == "timeout" and await _lists_models(http):  # a gateway asks all behind it before it answers
                fault = None
        if fault is None:
            answer = await http.get("/v1/models")
            if answer.status not in _STARTING:
                return _find(http.base, answer, model)
            fault = f"{http.base}: /v1/models answers {answer.status}"
        waited_s = anyio.current_time() - began_s
        if waited_s + _POLL_S > timeout_s:
            raise TargetUnreachable(f"{fault} (waited {waited_s:.0f} s)")
        if progress is not None:
            why = fault.removeprefix(f"{http.base}: ")
            progress(Passing(f"waiting for {http.base} ({waited_s:.0f} s of {timeout_s:.0f} s): {why}"))
        await anyio.sleep(_POLL_S)


async def _not_up(http: Http) -> str | None:
    """Why the server is not up yet; `None` if it is, or has no such page (not everybody does)."""
    answer = await http.get("/health")
    return f"{http.base}: /health answers {answer.status}" if answer.status in _STARTING else None


async def _lists_models(http: Http) -> bool:
    try:
        return (await http.get("/v1/models")).status == 200
    except Unreachable:
        return False


def _find(base: str, answer: HttpResponse, model: str | None) -> ModelCard:
    """The model's card in the answer of /v1/models. Raises `TargetUnfit`.

    A name that the user gave needs no list (a hosted API may have none, or hide it): it is denied only by a
    list that has others.
    """
    if model is not None and answer.status in _NO_LIST:
        return ModelCard(name=model, max_model_len=None)
    cards = _cards(base, answer)
    names = [card.name for card in cards]
    listed = ", ".join(bounded(name, 80) for name in names[:_LISTED]) + (", …" if len(names) > _LISTED else "")
    if not names and model is not None:
        return ModelCard(name=model, max_model_len=None)
    if not names:
        raise TargetUnfit(f"{base}: /v1/models lists no model; name the one to load with --model")
    if model is None and len(names) > 1:
        raise TargetUnfit(f"{base} serves several models: {listed}; choose one with --model")
    if model is not None and model not in names:
        raise TargetUnfit(f"{base} does not serve the model {bounded(model)}; it serves: {listed}")
    card = cards[0 if model is None else names.index(model)]
    return ModelCard(name=card.name, max_model_len=card.max_model_len)


def _cards(base: str, answer: HttpResponse) -> tuple[ListedModel, ...]:
    if answer.status in (401, 403):
        reason = f"{answer.status}: {answer.excerpt}" if answer.body else str(answer.status)
        raise TargetUnfit(
            f"{base} needs an API key, or another one ({reason}); pass --api-key-env NAME or --api-key-file FILE"
        )
    if answer.is_html:
        raise TargetUnfit(
            f"{base}: /v1/models answers a web page ({answer.status}), not JSON: no OpenAI-compatible server"
        )
    if 300 <= answer.status < 400:
        raise TargetUnfit(f"{base}: /v1/models redirects to {bounded(answer.location)}; give that server's URL")
    if answer.status == 404:
        raise TargetUnfit(
            f"{base}: there is no /v1/models (404); is the path right, is this an OpenAI-compatible server? "
            "If it only has no list of models, name one with --model"
        )
    if answer.status == 400 and b"HTTPS port" in answer.body:  # as nginx says
        raise TargetUnfit(f"{base}: this port speaks TLS; write https:// instead of http://")
    if answer.status != 200:
        raise TargetUnfit(f"{base}: /v1/models answers {answer.status}: {answer.excerpt}")
    listed = listed_models(answer)
    if answer.truncated or listed is None:
        raise TargetUnfit(f"{base}: /v1/models did not return a list of models: {answer.excerpt}")
    return listed
