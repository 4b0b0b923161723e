"""Which format a file has, from its content. Where the content leaves the unit open, the answer is a question."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

from traces.decode import CLOCKS, Clock
from traces.errors import printable
from traces.formats.catalogue import LAYOUTS, OWN_HASHES
from traces.formats.layout import Columns, Layout
from traces.formats.lines import head_records, load_json
from traces.formats.parquet import parquet_names
from traces.formats.records import FIELDS, RECORD_FORMATS, RecordFormat
from traces.formats.tables import split_header
from traces.source import Source

__all__ = ["FORMATS", "GENERIC_PARTS", "Found", "find_format"]

FORMATS: Final = tuple(dict.fromkeys([x.name for x in (*LAYOUTS, *RECORD_FORMATS)] + ["generic"]))
GENERIC_PARTS: Final = {"timestamp": "at", "input": "input", "output": "output", "hashes": "hashes",
                        "session": "session", "id": "row_id", "parent": "parent", "status": "status"}  # fmt: skip
_SERVEGEN: Final = re.compile(rb"\d+,[\d.eE+-]+,[\d.eE+-]+,(Gamma|Weibull)?,[\d.eE+-]+,[\d.eE+-]+\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A format with its columns in one file. `reader` is csv, lines, records or parquet."""

    name: str
    reader: str
    layout: Layout | None
    columns: Columns
    clock: Clock
    block_tokens: int
    header: list[str]
    record_format: RecordFormat | None = None
    ends: bool = False  # the timestamp is the request's end

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of this format should know."""
        form = self.layout or self.record_format
        return form.notes if form else ()


def find_format(
    source: Source, *, name: str | None, mapping: Mapping[str, str], unit: str | None, block_tokens: int | None
) -> Found:
    """The format of an open file: the one asked for, or the only one that the content fits.

    Raises `TraceError` where none or several fit, where the asked one does not, and where a unit is missing.
    """
    if name is not None and name not in FORMATS:
        raise source.fault(f"no format is called {printable(name)!r}", remedy="pass one of " + ", ".join(FORMATS))
    if mapping or name == "generic":
        return _generic(source, mapping, unit, block_tokens)
    if unit is not None:
        raise source.fault("--unit belongs to --map; a known format defines its unit", remedy="leave --unit out")
    if source.container == "parquet":
        names = parquet_names(source)
        return _flat(source, name, names, "parquet", block_tokens)
    if source.head.lstrip()[:1] in (b"{", b"["):
        return _json(source, name, block_tokens)
    if _SERVEGEN.match(source.head.partition(b"\n")[0]):
        raise source.fault(
            "a ServeGen rate table: it describes a generator and holds no requests",
            line=1,
            rows="0 requests",
            remedy="draw arrivals from it with traces.servegen",
        )
    return _flat(source, name, split_header(source), "csv", block_tokens)


def _flat(source: Source, name: str | None, names: list[str], reader: str, block_tokens: int | None) -> Found:
    candidates = [x for x in LAYOUTS if (x.name == name if name else x.claims(names) and not x.explicit)]
    if reader == "csv":
        candidates = [x for x in candidates if "table" in x.container]
    return _chosen(source, name, names, reader, candidates, block_tokens)


def _chosen(
    source: Source, name: str | None, names: list[str], reader: str, candidates: list[Layout], block_tokens: int | None
) -> Found:
    shown = ", ".join(printable(n, 30) for n in names[:12]) + (", …" if len(names) > 12 else "")
    if not candidates and name is None:
        raise source.fault(
            f"no known format has the columns {shown}",
            line=1,
            rows="nothing was read",
            remedy="pass --map timestamp=…,input=…,output=… --unit iso|s|ms|us|ns",
        )
    if len(candidates) > 1:
        options = " or ".join(f"--format {x.name} ({x.about})" for x in candidates)
        raise source.fault(
            "the content fits several formats", line=1, rows="nothing was read", remedy="pass " + options
        )
    layout = candidates[0] if candidates else None
    columns = layout.resolve(names) if layout else None
    if layout is None or columns is None:
        raise source.fault(
            f"not in format {name}: the columns are {shown}",
            line=1,
            rows="nothing was read",
            remedy="leave --format out, or pass --map",
        )
    own = next((n for n in names if layout.name == "loadgen" and re.fullmatch(OWN_HASHES + r"\d{1,6}", n)), "")
    if own:
        columns = replace(columns, hashes=own)
    clock, ends = layout.clock_of(columns.at)
    blocks = int(own.removeprefix(OWN_HASHES)) if own else block_tokens or layout.block_tokens
    return Found(
        name=layout.name,
        reader=reader,
        layout=layout,
        columns=columns,
        clock=clock,
        block_tokens=blocks,
        header=names,
        ends=ends,
    )


def _json(source: Source, name: str | None, block_tokens: int | None) -> Found:
    head = head_records(source)
    document: Any = (head[0] if len(head) == 1 else head) or _whole_sample(source)
    forms = [x for x in RECORD_FORMATS if (x.name == name if name else x.claims(document))]
    if forms:
        form = forms[0]
        return Found(
            name=form.name,
            reader="records",
            layout=None,
            columns=FIELDS,
            clock=form.clock,
            block_tokens=0,
            header=[],
            record_format=form,
        )
    if not head:
        raise source.fault(
            "JSON, but neither lines of objects nor a known export",
            line=1,
            rows="nothing was read",
            remedy="write one object a line",
        )
    names = list(dict.fromkeys(key for record in head for key in record))
    candidates = [x for x in LAYOUTS if "lines" in x.container]
    candidates = [x for x in candidates if (x.name == name if name else x.claims(names) and not x.explicit)]
    if {x.name for x in candidates} == {"mooncake", "timed_trace"}:
        evidence = _mooncake_or_timed(head)
        candidates = [x for x in candidates if evidence in (x.name, None)]
    return _chosen(source, name, names, "lines", candidates, block_tokens)


def _mooncake_or_timed(head: Iterable[dict[str, Any]]) -> str | None:
    """Mooncake and timed_trace have the same keys; block counts and fractions tell them apart, or nothing does."""
    fits = {16: 0, 512: 0}
    blocks = fractions = 0
    for record in head:
        ids, length, at = record.get("hash_ids"), record.get("input_length"), record.get("timestamp")
        if isinstance(ids, list) and isinstance(length, int) and length > 512:
            blocks += 1
            for size in fits:
                fits[size] += len(ids) == -(-length // size)
        fractions += isinstance(at, Decimal) and at.is_finite() and at.adjusted() < 20 and at % 1 != 0
    # one odd row must not hide what all the others say
    if 2 * fits[512] >= blocks > 0 and not fractions:
        return "mooncake"
    return "timed_trace" if 2 * fits[16] >= blocks > 0 else None


def _whole_sample(source: Source) -> Any:
    """The first record of a file that is one document, parsed as far as the head goes."""
    text = source.head.lstrip()
    try:
        return load_json(text)
    except ValueError:
        pass
    # a longer document: the keys it opens with are enough to know it by
    opening = text[:4096].decode("utf-8", errors="replace")
    keys = dict.fromkeys(re.findall(r'"([A-Za-z_.]+)"\s*:', opening))
    return {key: {} if key == "usageDetails" else None for key in keys}


def _generic(source: Source, mapping: Mapping[str, str], unit: str | None, block_tokens: int | None) -> Found:
    missing = [part for part in ("timestamp", "input", "output") if part not in mapping]
    unknown = [printable(part) for part in mapping if part not in GENERIC_PARTS]
    if missing or unknown:
        what = f"--map lacks {', '.join(missing)}" if missing else f"--map knows no {', '.join(unknown)}"
        raise source.fault(
            what, remedy="pass --map timestamp=…,input=…,output=…[,hashes=…,session=…,id=…,parent=…,status=…]"
        )
    clock = next((c for c in CLOCKS if c == unit), None)
    if clock is None:
        raise source.fault(
            "the unit of the timestamps is not known, and is never guessed", remedy="pass --unit iso|s|ms|us|ns"
        )
    if "hashes" in mapping and not block_tokens:
        raise source.fault("block ids without the size of a block", remedy="pass --block-tokens 512, or 16")
    columns = Columns(**{GENERIC_PARTS[part]: column for part, column in mapping.items()})
    if source.container == "parquet":
        reader, names = "parquet", parquet_names(source)
    elif source.head.lstrip()[:1] == b"{":
        reader, names = "lines", list(dict.fromkeys(key for record in head_records(source) for key in record))
    elif source.head.lstrip()[:1] == b"[":
        raise source.fault("one JSON array", line=1, remedy="write one object a line: jq -c '.[]'")
    else:
        reader, names = "csv", split_header(source)
    absent = [printable(column) for column in columns.names() if column not in names]
    if absent:
        shown = ", ".join(printable(n, 30) for n in names[:12])
        raise source.fault(
            f"no column {', '.join(absent)}", line=1, rows="nothing was read", remedy=f"the columns are {shown}"
        )
    return Found(
        name="generic",
        reader=reader,
        layout=None,
        columns=columns,
        clock=clock,
        block_tokens=block_tokens or 0,
        header=names,
    )
