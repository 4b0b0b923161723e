"""What an experiment may cost, and what is kept of it."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from loadgen.scenario.option import Settings, setting
from loadgen.scenario.settings import Seconds

__all__ = ["BudgetSettings", "ResultSettings"]

_setting = partial(setting, panel="Budget", on=("sweep",), hashed=False)


class ResultSettings(Settings):
    """What is kept."""

    events: Literal["none", "sample", "prompt", "all"] | None = setting(
        None,
        "Token events to keep of a run: all, prompt (of requests read promptly), sample (one request in 16) or none.",
        panel="Results",
        metavar="WHICH",
        shown="prompt, none in virtual time",
        hashed=False,
    )


class BudgetSettings(Settings):
    """Where a search stops."""

    max_time: Seconds | None = _setting(
        None, "Stop the search this long after the command started; the bracket so far is kept."
    )
    max_requests: Annotated[int, Field(ge=1)] | None = _setting(
        None, "Stop the search before it sends more requests than this."
    )
    max_tokens: Annotated[int, Field(ge=1)] | None = _setting(
        None, "Stop the search before it asks for more tokens than this."
    )
