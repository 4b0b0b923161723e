"""Which format a file has, from its content. A file whose unit stays open is refused with the options to pass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from traces.decode import CLOCKS, Clock
from traces.errors import TraceError, printable
from traces.formats.catalogue import LAYOUTS, OWN_HASHES, TOTALS
from traces.formats.documents import Head, head_objects, one_a_line
from traces.formats.evidence import MARK, Unit, unit_of
from traces.formats.exports import EXPORTS, Export
from traces.formats.layout import Columns, Filter, Layout
from traces.formats.lines import find_paths
from traces.formats.parquet import parquet_names
from traces.formats.records import FIELDS, OTLP
from traces.formats.tables import DELIMITERS, split_header
from traces.source import MAX_HEAD_BYTES, Source

__all__ = ["FORMATS", "GENERIC_PARTS", "Found", "absent_columns", "find_format"]

_EXPORTS: Final = (OTLP, *EXPORTS)
FORMATS: Final = tuple(dict.fromkeys([x.name for x in (*LAYOUTS, *_EXPORTS)] + ["generic"]))
GENERIC_PARTS: Final = {"timestamp": "at", "input": "input", "output": "output", "hashes": "hashes",
                        "session": "session", "id": "row_id", "parent": "parent", "status": "status"}  # fmt: skip
_SERVEGEN: Final = re.compile(rb"\d+,[\d.eE+-]+,[\d.eE+-]+,(Gamma|Weibull)?,[\d.eE+-]+,[\d.eE+-]+\s*$")
_TWINS: Final = {"mooncake", "timed_trace"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A format with its columns in one file. `reader` is csv, lines, mapped, records or parquet."""

    name: str
    reader: str
    columns: Columns
    clock: Clock
    block_tokens: int
    header: list[str]
    delimiter: bytes = b","
    layout: Layout | None = None
    export: Export | None = None
    ends: bool = False  # the timestamp is the request's end
    filters: tuple[Filter, ...] = ()
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    kinds: dict[str, type] = field(default_factory=dict)  # of each column of `paths`, in the first record
    notes: tuple[str, ...] = ()  # what a reader of this file should know


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
        return _chosen(source, name, parquet_names(source), "parquet", block_tokens)
    if source.head.lstrip()[:1] in (b"{", b"["):
        return _json(source, name, block_tokens)
    if _SERVEGEN.match(source.head.partition(b"\n")[0]):
        raise source.fault(
            "a ServeGen rate table: it describes a generator and holds no requests",
            line=1,
            rows="0 requests",
            remedy="draw arrivals from it with traces.servegen",
        )
    delimiter = _delimiter(source, lambda names: bool(_candidates(name, names, "csv")))
    return _chosen(source, name, split_header(source, delimiter), "csv", block_tokens, delimiter=delimiter)


def _delimiter(source: Source, fits: Any) -> bytes:
    """The delimiter whose header fits, else the one that parts most."""
    headers = {mark: split_header(source, mark) for mark in DELIMITERS}
    return next((m for m, names in headers.items() if fits(names)), max(headers, key=lambda m: len(headers[m])))


def _candidates(name: str | None, names: list[str], reader: str) -> list[Layout]:
    container = {"csv": "table", "lines": "lines"}.get(reader)
    return [
        layout
        for layout in LAYOUTS
        if (container is None or container in layout.container)
        and (layout.name == name if name else layout.claims(names) and not layout.explicit)
    ]


def _chosen(
    source: Source,
    name: str | None,
    names: list[str],
    reader: str,
    block_tokens: int | None,
    *,
    delimiter: bytes = b",",
    head: Head | None = None,
) -> Found:
    candidates = _candidates(name, names, reader)
    notes: tuple[str, ...] = ()
    size = 0
    if name is None and {layout.name for layout in candidates} == _TWINS:
        candidates, size, notes = _decided(candidates, unit_of(head or Head(objects=[]), whole=source.whole))
    shown = ", ".join(printable(n, 30) for n in names[:12]) + (", …" if len(names) > 12 else "")
    if name is None and (totals := TOTALS.intersection(names)):
        raise source.fault(
            f"totals of many requests in a row (column {sorted(totals)[0]}), not requests",
            line=1,
            rows="nothing was read",
            remedy="export the single requests",
        )
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
    if (
        name in _TWINS
        and head is not None
        and MARK in head.objects[0]
        and (said := unit_of(head, whole=source.whole)) is not None
    ):
        if said.clock != layout.clock:
            raise source.fault(f"not in format {name}: {said.reason}", line=1, remedy="leave --format out")
        size = said.block_tokens
    own = next((n for n in names if layout.name == "loadgen" and re.fullmatch(OWN_HASHES + r"\d{1,6}", n)), "")
    if own:
        columns = replace(columns, hashes=own)
    clock, ends = layout.clock_of(columns.at)
    return Found(
        name=layout.name,
        reader=reader,
        layout=layout,
        columns=columns,
        clock=clock,
        block_tokens=int(own.removeprefix(OWN_HASHES)) if own else block_tokens or size or layout.block_tokens,
        header=names,
        delimiter=delimiter,
        ends=ends,
        filters=tuple(f for f in layout.filters if f.column in names),
        notes=(*layout.notes, *notes),
    )


def _decided(candidates: list[Layout], unit: Unit | None) -> tuple[list[Layout], int, tuple[str, ...]]:
    """The one of the twins that the content proves; both where it does not."""
    if unit is None:
        return candidates, 0, ()
    return [x for x in candidates if x.clock == unit.clock], unit.block_tokens, (unit.reason,)


def _json(source: Source, name: str | None, block_tokens: int | None) -> Found:
    head = head_objects(source)
    while True:
        forms = [x for x in _EXPORTS if (x.name == name if name else any(x.claims(record) for record in head.objects))]
        names = head.names()
        fitting = {layout.name for layout in _candidates(name, names, "lines")}
        open_unit = fitting == _TWINS and unit_of(head, whole=source.whole) is None
        if forms or (fitting and not open_unit) or len(source.head) >= MAX_HEAD_BYTES:
            break
        # lines of another kind may stand in front (health checks, start-up messages), or many of one instant
        if not source.look_further(8 * len(source.head)):
            break
        head = head_objects(source, limit=20_000)
    if forms:
        form = forms[0]
        return Found(
            name=form.name,
            reader="records",
            columns=replace(FIELDS, duration="duration") if form.ends else FIELDS,
            clock=form.clock,
            block_tokens=0,
            header=[],
            export=form,
            ends=form.ends,
            notes=form.notes,
        )
    if not head.objects:
        raise source.fault(
            "JSON, but neither lines of objects nor a known export",
            line=1,
            rows="nothing was read",
            remedy="write one object a line",
        )
    _refuse_kinds(source, head)
    reader = "lines" if one_a_line(source) else "mapped"
    found = _chosen(source, name, [n for n in names if n != MARK], "lines", block_tokens, head=head)
    wanted = [*found.columns.names(), *(f.column for f in found.filters)]
    return _with_paths(replace(found, reader=reader), {name: (name,) for name in wanted}, head)


def _with_paths(found: Found, paths: dict[str, tuple[str, ...]], head: Head) -> Found:
    return replace(found, paths=paths, kinds={name: head.kind(path) for name, path in paths.items()})


def _refuse_kinds(source: Source, head: Head) -> None:
    first = head.objects[0]
    if first.get("object") == "bucket" or (first.get("object") == "page" and "has_more" in first):
        raise source.fault(
            "totals of many requests in a bucket of time, not requests",
            line=1,
            rows="nothing was read",
            remedy="export the single requests",
        )
    if first.get("category") in ("RequestResponse", "Audit") and "resourceId" in {k[:10] for k in first}:
        raise source.fault(
            "Azure OpenAI's diagnostic log, which counts bytes and no tokens",
            line=1,
            rows="nothing was read",
            remedy="export ApiManagementGatewayLlmLog, which counts tokens",
        )


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
    found = Found(name="generic", reader="csv", columns=columns, clock=clock, block_tokens=block_tokens or 0, header=[])
    if source.container == "parquet":
        names = parquet_names(source)
        _refuse_absent(source, columns.names(), names)
        return replace(found, reader="parquet", header=names)
    if source.head.lstrip()[:1] in (b"{", b"["):
        head = head_objects(source)
        if not head.objects:
            raise source.fault("JSON without objects", line=1, rows="nothing was read", remedy="write objects")
        # a column may first be seen far down: whether it is there at all is known at the end
        reader = "lines" if one_a_line(source) else "mapped"
        found = replace(found, reader=reader, header=head.names())
        return _with_paths(found, find_paths(columns.names(), head), head)
    delimiter = _delimiter(source, lambda names: set(columns.names()) <= set(names))
    names = split_header(source, delimiter)
    _refuse_absent(source, columns.names(), names)
    return replace(found, header=names, delimiter=delimiter)


def _refuse_absent(source: Source, wanted: list[str], names: list[str]) -> None:
    if absent := [name for name in wanted if name not in names]:
        raise absent_columns(source.path, absent, names)


def absent_columns(path: object, absent: list[str], names: list[str]) -> TraceError:
    """The fault of a file that lacks mapped columns, to be raised by the caller."""
    return TraceError(
        f"no column {', '.join(printable(name) for name in absent)}",
        path=path,
        line=1,
        rows="nothing was read",
        remedy="the columns are " + ", ".join(printable(n, 30) for n in names[:12]),
    )
