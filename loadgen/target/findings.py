"""What the answer to a probe shows about a server, feature by feature; pure.

A server that takes a member of a request may still ignore it, so what came is held against what was asked: prompt
tokens, output tokens, events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from loadgen.plan.types import NS, RequestFormat
from loadgen.send.openai import Answer as Reading
from loadgen.target.capabilities import Finding
from loadgen.target.salt import SaltSupport

__all__ = ["IDS", "Adaptable", "ProbeResults", "gathered", "judged"]

IDS: Final = "token-id prompts"
_NATURAL_COST: Final = "output lengths are the model's own: comparable only with runs of the same kind"
_GATHERED_EVENTS: Final = 4  # in a read
_GATHERED_SPAN: Final = 0.1  # of the wait for the first token
_QUICK_S: Final = 0.02  # an answer that is whole after so long is simply quick
_WORDS_CHARS: Final = 100
_TEXT_COST: Final = "prompt lengths are approximate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptable:
    """What the user left open, so that the program may choose or try it."""

    prompt: bool = True  # token ids or text
    salt: bool = True  # the cache policy wants a salt
    continuous: bool = False  # try continuous usage too, which no run asks for


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResults:
    """The last answer of a probe, and what led to its request. `refused`: feature → the server's words."""

    form: RequestFormat  # of the request
    reading: Reading
    wait_s: float  # from the request to its first token
    input_tokens: int  # of a prompt of token ids
    output_tokens: int  # asked for
    refused: Mapping[str, str]
    continuous: bool  # continuous usage was asked for
    salt: SaltSupport
    ask: Adaptable


def judged(seen: ProbeResults) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """The findings in the order of a table, and what the user has to choose first, in sentences with the option."""
    needs: list[str] = []
    if "temperature" in seen.refused:
        needs.append(f"the temperature is refused ({seen.refused['temperature']}): set --temperature 1")
    found = [_streams(seen), _usage(seen)]
    if seen.ask.continuous:
        found.append(_continuous_usage(seen))
    found += [_ids(seen, needs), _forced(seen, needs), _limit(seen), _salt(seen)]
    return tuple(found), tuple(needs)


def _words(seen: ProbeResults, feature: str) -> str | None:
    """What the server said when it refused the feature, cut to what a cell and a line can hold."""
    words = seen.refused.get(feature)
    return words if words is None or len(words) <= _WORDS_CHARS else words[:_WORDS_CHARS] + "…"


def _streams(seen: ProbeResults) -> Finding:
    reading = seen.reading
    if not reading.stream:
        return Finding(
            feature="streams",
            found="no: one JSON document",
            instead="the whole answer is one event",
            cost="TTFT is E2E and there is no TPOT: bound e2e only",
        )
    end = "with" if reading.done else "without"
    found = f"{len(reading.events)} events in {reading.token_reads} reads, {end} [DONE]"
    if fault := gathered(seen):
        return Finding(feature="streams", found=found, instead="bound e2e only", cost=fault)
    return Finding(feature="streams", found=f"yes: {found}")


def gathered(seen: ProbeResults) -> str:
    """Why the stream's instants are not those of its tokens; empty if they may be.

    What a server writes token by token comes in about as many reads, spread over the time that it takes. An answer that
    is all there at once may also be a very quick one.
    """
    reading = seen.reading
    events, reads = len(reading.events), reading.token_reads
    span_s = (reading.last_token_ns - reading.first_token_ns) / NS
    if not reading.stream or events < _GATHERED_EVENTS * max(reads, 1) or seen.wait_s < _QUICK_S:
        return ""
    if span_s > _GATHERED_SPAN * seen.wait_s:
        return ""
    return (
        f"a proxy buffers the stream: {events} events came in {reads} reads within {span_s * 1e3:.0f} ms, "
        f"{seen.wait_s * 1e3:.0f} ms after the request; TTFT and TPOT cannot be measured (nginx: proxy_buffering off)"
    )


def _usage(seen: ProbeResults) -> Finding:
    if seen.reading.output_tokens_source == "usage":
        return Finding(feature="usage", found="yes")
    if seen.reading.usage_doubted:
        cost = "output lengths and TPOT come from counting the answer's tokens"
        return Finding(feature="usage", found=f"contradicted: {_contradiction(seen)}", cost=cost)
    words = _words(seen, "usage")
    return Finding(
        feature="usage",
        found=f"refused ({words})" if words else "no",
        instead="an output that ends at its limit counts as that long; others are counted by events",
        cost="output lengths and TPOT depend on the server's finish_reason, prompt lengths are unchecked",
    )


def _contradiction(seen: ProbeResults) -> str:
    reading = seen.reading
    reason = reading.finish_reason or "no finish_reason"
    return (
        f"it says {reading.usage_tokens} output tokens where {reading.output_tokens} came "
        f"({reason}, {seen.output_tokens} asked)"
    )


def _continuous_usage(seen: ProbeResults) -> Finding:
    events = seen.reading.events
    if not seen.continuous:
        return Finding(feature="continuous usage", found="not tried")
    if len(events) > 1 and all(tokens >= 0 for _, tokens in events[:-1]):
        return Finding(feature="continuous usage", found="yes (no run asks for it)")
    instead = "the first event counts as one token"
    return Finding(feature="continuous usage", found="no", instead=instead)


def _ids(seen: ProbeResults, needs: list[str]) -> Finding:
    feature, sent, reported = IDS, seen.input_tokens, seen.reading.input_tokens
    words = _words(seen, "ids")
    if words is not None:
        if not seen.ask.prompt:
            needs.append(f"token ids as a prompt are refused ({words}): set --prompt text")
        return Finding(feature=feature, found=f"refused ({words})", instead="text prompts", cost=_TEXT_COST)
    if seen.form.prompt == "text":
        why = "chat messages are text" if seen.form.endpoint == "chat" else "not asked for (--prompt text)"
        return Finding(feature=feature, found=why, instead="text prompts", cost=_TEXT_COST, surprise=False)
    if reported < 0:
        return Finding(feature=feature, found="accepted", cost="prompt lengths are unchecked: there is no usage")
    if reported == sent:
        return Finding(feature=feature, found=f"yes: {sent} ids are {reported} prompt tokens")
    found = f"accepted: {reported} prompt tokens reported for {sent} ids"
    return Finding(feature=feature, found=found, cost="prompts are not exactly as long as planned")


def _forced(seen: ProbeResults, needs: list[str]) -> Finding:
    feature, option = "ignore_eos, min_tokens", "--stop natural"
    reading, asked = seen.reading, seen.output_tokens
    words = _words(seen, "forced")
    if words is None and seen.form.stop == "natural":
        return Finding(
            feature=feature, found=f"not asked for ({option})", instead=option, cost=_NATURAL_COST, surprise=False
        )
    if words is None and reading.output_tokens_source == "limit":
        found = "accepted: the output ended at its limit, and its length is unknown"
        return Finding(feature=feature, found=found, cost="a server that ignores them would go unnoticed")
    if words is None and reading.usage_doubted:
        found = f"accepted, but usage and what came contradict each other: {_contradiction(seen)}"
        needs.append(f"no forced output length can be held against usage: {_contradiction(seen)}: set {option}")
        return Finding(feature=feature, found=found, instead=option, cost=_NATURAL_COST)
    if words is None and reading.output_tokens >= asked:
        return Finding(feature=feature, found=f"accepted: {reading.output_tokens} of {asked} tokens came")
    if words is not None:
        found = f"refused ({words})"
    else:
        found = (
            f"ignored: {reading.output_tokens} of {asked} tokens came ({reading.finish_reason or 'no finish_reason'})"
        )
    needs.append(f"ignore_eos and min_tokens are {found}, so no output length can be forced: set {option}")
    return Finding(feature=feature, found=found, instead=option, cost=_NATURAL_COST)


def _limit(seen: ProbeResults) -> Finding:
    if seen.form.limit_field == "max_tokens":
        over = seen.reading.output_tokens - seen.output_tokens
        if over > 0 and seen.reading.output_tokens_source != "events":
            found = f"ignored: {seen.reading.output_tokens} tokens came for {seen.output_tokens}"
            return Finding(feature="max_tokens", found=found, cost="outputs are longer than planned")
        return Finding(feature="max_tokens", found="yes")
    words = _words(seen, "limit")
    return Finding(
        feature="max_tokens", found=f"refused ({words})" if words else "refused", instead="max_completion_tokens"
    )


def _salt(seen: ProbeResults) -> Finding:
    salt = seen.salt
    if not seen.ask.salt or salt.proved:
        return Finding(feature="cache_salt", found=salt.text)
    instead = "other prompts at every rate and attempt"
    return Finding(feature="cache_salt", found=salt.text, instead=instead, cost="content unpaired across rates")
