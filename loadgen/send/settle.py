"""How many tokens an answer that is over had, by whose word, and which events at its edges were none.

Usage is held against the events. Where it says fewer tokens than events, empty chunks after the last text, then those
before the first, are no tokens, as far as that explains it. Else it is doubted: token ids count, else events, though
no more than the limit (`ParsedResponse.usage_doubted`). An answer that ends at its limit with just that usage is
believed: a server may cut one token into several events. Without usage and token ids, finish_reason `length` says that
O is the limit that was sent (source `limit`). Else the count of events stands in for O (source `events`): events are
not tokens, so that is a guess.
"""

from __future__ import annotations

from itertools import takewhile

from analysis.schema import ABSENT
from loadgen.send.fold import Fold
from loadgen.send.openai import ParsedResponse

__all__ = ["settle"]


def settle(answer: ParsedResponse, fold: Fold, limit_tokens: int) -> None:
    """Decide O and its source, drop edge events that were no tokens, count the first read. `fold` read the answer."""
    events, usage = answer.events, answer.usage_tokens
    counted = bool(events) and fold.told_by_ids == len(events)
    least = sum(tokens for _, tokens in events) if counted else len(events)
    at_limit = answer.finish_reason == "length" and limit_tokens > 0
    lead, trail = _edges(len(events), fold.empty) if fold.empty else (0, 0)
    if lead or trail:
        lead, trail = _spare(events, lead, trail, usage)
        answer.events = events = events[lead : len(events) - trail]
        least -= 0 if counted else lead + trail
    if usage != ABSENT and (least <= usage or (at_limit and usage == limit_tokens and not counted)):
        answer.output_tokens, answer.output_tokens_source = usage, "usage"
    elif events:
        _count_events(answer, least, counted=counted, at_limit=at_limit, limit_tokens=limit_tokens)
    if events:
        first_ns = events[0][0]
        first = list(takewhile(lambda event: event[0] == first_ns, events))
        believed = counted or answer.output_tokens_source == "usage"
        answer.first_read_events = len(first)
        answer.first_read_tokens = sum(max(tokens, 1) for _, tokens in first) if believed else len(first)
        answer.token_reads = len({at_ns for at_ns, _ in events})


def _count_events(answer: ParsedResponse, least: int, *, counted: bool, at_limit: bool, limit_tokens: int) -> None:
    """O where usage says nothing, or what cannot be."""
    if counted:
        answer.output_tokens, answer.output_tokens_source = least, "token_ids"
    elif at_limit and (answer.usage_tokens == ABSENT or not answer.stream or least > limit_tokens):
        answer.output_tokens, answer.output_tokens_source = limit_tokens, "limit"
    else:
        answer.output_tokens, answer.output_tokens_source = least, "events"


def _edges(total: int, empty: list[int]) -> tuple[int, int]:
    """How many empty events stand before the first text and after the last; one event is always left."""
    lead = 0
    while lead < len(empty) and empty[lead] == lead:
        lead += 1
    if lead == total:
        return total - 1, 0
    trail = 0
    while trail < len(empty) and empty[-1 - trail] == total - 1 - trail:
        trail += 1
    return lead, trail


def _spare(events: list[tuple[int, int]], lead: int, trail: int, usage: int) -> tuple[int, int]:
    """How many of the empty events at the edges are no tokens: all that usage leaves no token for."""
    none_lead = none_trail = 0  # of those that say so themselves
    while none_trail < trail and events[-1 - none_trail][1] == 0:
        none_trail += 1
    while none_lead < lead and events[none_lead][1] == 0:
        none_lead += 1
    spare = len(events) - max(usage, 1) if usage != ABSENT else 0
    if not none_lead + none_trail < spare <= lead + trail:
        return none_lead, none_trail
    none_trail = max(none_trail, min(trail, spare - none_lead))
    return spare - none_trail, none_trail
