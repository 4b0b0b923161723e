"""The requests: which API they go to, how long they are and what is in them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from loadgen.common import defaults
from loadgen.scenario.option import ANYWHERE, SAMPLED, Settings, setting
from loadgen.scenario.settings import Extras, Text

__all__ = ["RequestSettings"]

_setting = partial(setting, panel="Requests")


class RequestSettings(Settings):
    """What is sent."""

    endpoint: Literal["completions", "chat"] = _setting(
        "completions", "API to load: completions or chat.", metavar="NAME", on=ANYWHERE
    )
    prompt: Literal["ids", "text"] | None = _setting(
        None,
        "Prompts as ids (exact lengths, no tokenizer needed) or text.",
        metavar="KIND",
        shown="ids for completions, text for chat",
        on=ANYWHERE,
    )
    input: Text = _setting(
        defaults.INPUT,
        "Input tokens: a number, uniform:a..b, normal:mean,sd or lognormal:median,sigma.",
        metavar="LENGTH",
        on=SAMPLED,
    )
    output: Text = _setting(
        defaults.OUTPUT, "Output tokens, written as those of the input.", metavar="LENGTH", on=SAMPLED
    )
    lengths: str | None = _setting(
        None,
        "CSV or JSONL of input, output[, prefix], or trace:FILE: both lengths of a request are drawn together.",
        metavar="FILE",
        on=SAMPLED,
    )
    shared_prefix: Annotated[int, Field(ge=0)] = _setting(
        0, "Input tokens that all requests of a prefix group share.", on=SAMPLED
    )
    prefix_groups: Annotated[int, Field(ge=1)] = _setting(1, "Number of prefix groups.", on=SAMPLED)
    stop: Literal["forced", "natural"] = _setting(
        "forced",
        "When an answer ends: forced (after exactly the planned output) or natural.",
        metavar="HOW",
        on=ANYWHERE,
    )
    temperature: Annotated[float, Field(ge=0, le=2)] = _setting(0.0, "Sampling temperature.", on=ANYWHERE)
    token_ids: Text = _setting(
        defaults.TOKEN_IDS, "Range of token ids that prompts are made of.", metavar="A..B", on=ANYWHERE
    )
    extra: Extras = _setting({}, "Further member of each request's JSON, such as priority=1; repeatable.", on=ANYWHERE)

    @model_validator(mode="after")
    def _lengths_have_one_source(self) -> Self:
        if self.prompt == "ids" and self.endpoint == "chat":
            raise ValueError("prompt = ids needs endpoint = completions: chat messages are text")
        if self.lengths is not None and {"input", "output"} & self.model_fields_set:
            raise ValueError("lengths gives input and output together: drop input and output, or lengths")
        return self

    @property
    def prompt_kind(self) -> Literal["ids", "text"]:
        """Token ids where the endpoint takes them, text otherwise."""
        return self.prompt or ("ids" if self.endpoint == "completions" else "text")
