"""A trace file as a user names it: how it is to be read, in one value that commands and scenarios share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from loadgen.common.errors import ScenarioError
from traces.collect import OnInvalid
from traces.read import read_trace
from traces.report import ReadReport
from traces.trace import Trace

__all__ = ["OnInvalid", "Reading", "parse_mapping"]


def parse_mapping(text: str | None) -> dict[str, str]:
    """`timestamp=ts,input=prompt_tokens,output=completion_tokens` as a dict. Raises `ScenarioError`."""
    mapping: dict[str, str] = {}
    for part in (text or "").split(",") if text else ():
        name, equals, column = part.partition("=")
        if not equals or not name.strip() or not column.strip():
            raise ScenarioError(
                f"--map {text!r}: {part!r} is not NAME=COLUMN; write timestamp=ts,input=prompt,output=completion"
            )
        if name.strip() in mapping:
            raise ScenarioError(f"--map {text!r}: {name.strip()} is given twice")
        mapping[name.strip()] = column.strip()
    return mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How trace files are read; the options of the same names, None: as the file's content says."""

    format: str | None = None
    map: str | None = None
    unit: str | None = None
    block_tokens: int | None = None
    on_invalid: str = "error"
    max_model_len: int | None = None  # rows with more tokens in all are unusable: `on_invalid` decides

    def read(self, path: str | Sequence[str]) -> tuple[Trace, ReadReport]:
        """Read files as one trace. Raises `TraceError`, and `ScenarioError` for the options themselves."""
        return read_trace(
            path,
            format=self.format,
            mapping=parse_mapping(self.map),
            unit=self.unit,
            block_tokens=self.block_tokens,
            on_invalid=self._policy(),
            max_tokens=self.max_model_len,
        )

    def _policy(self) -> Literal["error", "drop", "clip"]:
        for policy in get_args(OnInvalid):
            if policy == self.on_invalid:
                found: OnInvalid = policy
                return found
        raise ScenarioError(f"--on-invalid {self.on_invalid!r}: pass error, drop or clip")
