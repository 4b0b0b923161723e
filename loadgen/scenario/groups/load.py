"""The load: at which rate requests arrive, by which process, and how they are sent."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from loadgen.scenario.option import ANYWHERE, SAMPLED, Settings, setting
from loadgen.scenario.settings import Text

__all__ = ["OF_FILE", "LoadSettings"]

OF_FILE: Final = ("trace", "fit-gamma", "fit-mmpp")
_PROCESSES: Final = ("poisson", "gamma", "constant")
_MOST_WORKERS: Final = 256
_setting = partial(setting, panel="Load")


class LoadSettings(Settings):
    """When requests are sent."""

    rate: Text = _setting(
        "2..18",
        "Requests/s: 2..18 searches that range; 2,4,6 or 2..18:2 measures just those rates.",
        metavar="RATE",
    )
    arrivals: Text = _setting(
        "poisson",
        "poisson, gamma, constant, trace:FILE, fit-gamma:FILE or fit-mmpp:FILE.",
        metavar="PROCESS",
        on=SAMPLED,
    )
    burstiness: Annotated[float, Field(gt=0, le=1e6)] | None = _setting(
        None, "Shape of gamma arrivals: below 1 is burstier than Poisson.", on=SAMPLED
    )
    cv: Annotated[float, Field(gt=0, le=1e3)] | None = _setting(
        None, "Coefficient of variation of gamma arrivals, instead of --burstiness.", on=SAMPLED
    )
    max_concurrency: Annotated[int, Field(ge=1)] | None = _setting(
        None, "Model a gateway that lets at most N requests through at a time; the wait in front of it counts."
    )
    closed: Annotated[int, Field(ge=1)] | None = _setting(
        None, "Fixed-concurrency baseline: N requests at a time instead of an arrival rate.", on=("run",)
    )
    transport: Literal["wire", "httpx"] = _setting(
        "wire", "HTTP client: wire, or httpx (slower, goes through proxies).", metavar="NAME", on=ANYWHERE
    )
    stamps: Literal["kernel", "user"] | None = _setting(
        None,
        "Who says when an answer came: the kernel, or this process as it reads (user).",
        metavar="WHO",
        shown="kernel over http:// on Linux",
    )
    workers: Text = _setting(
        "1",
        "Processes that send the load: a number, or auto (one for each core but one).",
        metavar="N",
        hashed=False,
    )
    prewarm: Annotated[int, Field(ge=0, le=100_000)] = _setting(0, "Connections to open to each URL just before a run.")

    @field_validator("arrivals")
    @classmethod
    def _arrivals_are_known(cls, arrivals: str) -> str:
        kind, colon, file = arrivals.partition(":")
        if not (arrivals in _PROCESSES or (colon and kind in OF_FILE and file.strip())):
            raise ValueError(
                f"{arrivals!r} is not an arrival process; write poisson, gamma, constant, trace:FILE, fit-gamma:FILE "
                "or fit-mmpp:FILE"
            )
        return arrivals

    @field_validator("workers")
    @classmethod
    def _workers_are_counted(cls, workers: str) -> str:
        if workers != "auto" and not (workers.isascii() and workers.isdigit() and 1 <= int(workers) <= _MOST_WORKERS):
            raise ValueError(f"{workers!r} is neither auto nor a number from 1 to {_MOST_WORKERS}")
        return workers

    @model_validator(mode="after")
    def _process_and_shape_agree(self) -> Self:
        if self.burstiness is not None and self.cv is not None:
            raise ValueError("burstiness and cv say the same thing (cv = 1/sqrt(burstiness)): give one")
        if self.arrivals != "gamma" and (self.burstiness is not None or self.cv is not None):
            raise ValueError(f"burstiness and cv belong to arrivals = gamma, not to {self.arrivals}")
        if self.arrivals == "gamma" and self.burstiness is None and self.cv is None:
            raise ValueError("arrivals = gamma needs burstiness (its shape k) or cv")
        if self.closed is not None and self.max_concurrency is not None:
            raise ValueError(
                "closed and max_concurrency exclude each other: a closed loop already fixes the concurrency"
            )
        return self

    @property
    def recorded(self) -> bool:
        """Whether the arrivals are a trace's own."""
        return self.arrivals.startswith("trace:")

    @property
    def arrivals_file(self) -> str | None:
        """The trace that arrivals come from, or are fitted to."""
        return self.arrivals.partition(":")[2] or None
