"""Decoded rows become a trace: policies for unusable rows, counts of everything, order, sessions.

Theory of operation. `Collector.add` takes the batches of one file in order, decodes them, and gives every row one
reason or none. Rows without a reason are kept as compact column chunks. With `clip`, rows whose only faults are token
counts (none, zero, negative, too large) are kept with the nearest usable count. `finish` joins the chunks, sorts them
stably by instant, subtracts the minimum, and turns ids into row numbers. With `error`, the file is still read to its
end, so that the one message can say how many rows are concerned.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traces.account import EXPECTED, FIXABLE, NAMES, in_order, notes_of, refuse_by_policy
from traces.counts import decode_hashes, decode_tokens
from traces.decode import InstantDecoder, Reasons, code
from traces.errors import TraceError, printable
from traces.formats.batch import Batch
from traces.formats.detect import Found
from traces.formats.layout import Filter
from traces.report import ReadReport
from traces.sessions import Codes, link_turns
from traces.trace import MAX_TOKENS, NS, OUTCOMES, BlockHashes, Int64s, Trace

__all__ = ["Collector", "OnInvalid"]

OnInvalid = Literal["error", "drop", "clip"]

_MAX_SPAN_NS: Final = 2**62  # 146 years: differences of instants stay within int64


@dataclass(slots=True, kw_only=True)
class Collector:
    """The state of one read. `max_tokens` bounds input + output of a row, None: no bound."""

    path: str
    found: Found
    on_invalid: OnInvalid
    max_tokens: int | None = None
    decoder: InstantDecoder = field(init=False)
    rows: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    clipped: dict[str, int] = field(default_factory=dict)
    first_fault: tuple[str, int, str, str] | None = None  # path, line, reason, value
    seen: set[str] = field(default_factory=set)  # columns that had a value
    extents: list[tuple[int, int]] = field(default_factory=list)  # of each file, on its own clock
    more_notes: list[str] = field(default_factory=list)
    last_at: int | None = None
    inversions: int = 0
    step_back: tuple[int, int] = (0, 0)  # the largest one, ns, and its line
    ids: Codes = field(default_factory=Codes)
    sessions: Codes = field(default_factory=Codes)
    parts: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.decoder = InstantDecoder(clock=self.found.clock)
        self.extents.append((_MAX_SPAN_NS, -_MAX_SPAN_NS))

    def next_file(self, path: str, found: Found) -> None:
        """What follows is from another file of the same trace. Raises `TraceError` where that is another format."""
        said = [(x.name, x.clock, x.block_tokens, bool(x.columns.hashes)) for x in (self.found, found)]
        if said[0] != said[1]:
            raise TraceError(
                f"format {found.name}, and the files before it are {self.found.name}, or other in clock or block size",
                path=path,
                remedy="pass files of one kind together",
            )
        self.path, self.found = path, found
        self.extents.append((_MAX_SPAN_NS, -_MAX_SPAN_NS))

    def add(self, batch: Batch) -> None:
        """Take the next rows of the file."""
        c, columns, n = self.found.columns, batch.columns, batch.line.size
        if n == 0:
            return
        if self.found.paths:
            self.seen |= {name for name, values in columns.items() if name not in self.seen and _any_value(values)}
        at, time_reasons = self.decoder.decode(columns[c.at])
        if self.found.ends:
            duration, bad = InstantDecoder(clock="s").decode(columns[c.duration])
            at, time_reasons = at - duration, np.where(time_reasons == 0, bad, time_reasons)
        inputs, input_reasons = decode_tokens(columns[c.input], "input")
        outputs, output_reasons = decode_tokens(columns[c.output], "output")
        outcome = self._outcomes(columns.get(c.status), n)
        ids = counts = np.empty(0, dtype=np.int64)
        hash_reasons = np.zeros(n, dtype=np.int8)
        if c.hashes:
            ids, counts, hash_reasons = decode_hashes(columns[c.hashes], n)

        reasons = batch.reasons.copy()
        for one in self.found.filters:
            _apply(one, columns[one.column], reasons)
        _note_failures(reasons, time_reasons, input_reasons, output_reasons, outcome, self._zero_fails)
        for more in (time_reasons, input_reasons, output_reasons, hash_reasons):
            reasons = np.where(reasons == 0, more, reasons)
        if self.max_tokens is not None:
            reasons[(reasons == 0) & (inputs + outputs > self.max_tokens)] = code("over_long")
        keep = reasons == 0
        if self.on_invalid == "clip":
            left_out = np.isin(reasons, _LEFT_OUT)
            unfixable = (time_reasons != 0) | (hash_reasons != 0) | (batch.reasons != 0) | left_out
            inputs, outputs = inputs.copy(), outputs.copy()
            fixed = self._clip(reasons, ~unfixable, inputs, outputs, (input_reasons, output_reasons))
            keep |= fixed
        self._count(batch, reasons, keep)

        if not keep.all():
            at, line = at[keep], batch.line[keep]
        else:
            line = batch.line
        self._watch_order(at, line)
        if at.size:
            least, most = self.extents[-1]
            self.extents[-1] = (min(least, int(at.min())), max(most, int(at.max())))
        self._keep("at", at)
        self._keep("input", inputs[keep].astype(np.int32))
        self._keep("output", outputs[keep].astype(np.int32))
        self._keep("line", line.astype(np.int32))
        self._keep("outcome", outcome[keep])
        if c.hashes:
            self._keep("ids", ids[np.repeat(keep, counts)] if not keep.all() else ids)
            self._keep("counts", counts[keep])
        if c.session:
            self._keep("session", self.sessions.of(columns[c.session])[keep])
        if c.row_id and c.parent:
            self._keep("row_id", self.ids.of(columns[c.row_id])[keep])
            self._keep("parent", self.ids.of(columns[c.parent])[keep])

    def _watch_order(self, at: Int64s, line: Int64s) -> None:
        if not at.size:
            return
        # batch by batch: differences of a whole file would be as large as its largest column
        steps = np.diff(at, prepend=self.last_at if self.last_at is not None else at[0])
        self.last_at = int(at[-1])
        self.inversions += int(np.count_nonzero(steps < 0))
        worst = int(np.argmin(steps))
        if steps[worst] < -self.step_back[0]:
            self.step_back = (-int(steps[worst]), int(line[worst]))

    @property
    def _zero_fails(self) -> bool:
        return self.found.layout is not None and self.found.layout.zero_output_fails

    def _keep(self, name: str, values: npt.NDArray[Any]) -> None:
        self.parts.setdefault(name, []).append(values)

    def _outcomes(self, status: Any, n: int) -> npt.NDArray[np.int8]:
        if status is None:
            return np.zeros(n, dtype=np.int8)
        encoded = pc.dictionary_encode(pc.cast(status, pa.string()))
        ok = self.found.layout.ok_status if self.found.layout else frozenset({"success", "ok", "200", ""})
        table = [
            OUTCOMES.index("" if not v else "ok" if v.lower() in ok else "failed")
            for v in encoded.dictionary.to_pylist()
        ]
        numbers = np.asarray(pc.fill_null(encoded.indices, len(table)))
        coded: npt.NDArray[np.int8] = np.array([*table, 0], dtype=np.int8)[numbers]
        return coded

    def _clip(
        self,
        reasons: Reasons,
        whole: npt.NDArray[np.bool_],
        inputs: Int64s,
        outputs: Int64s,
        sides: tuple[Reasons, Reasons],
    ) -> npt.NDArray[np.bool_]:
        """Put fixable counts right in place; the rows so kept."""
        fixable = whole & _FIXABLE_OR_OK[sides[0]] & _FIXABLE_OR_OK[sides[1]]
        rows: npt.NDArray[np.bool_] = fixable & (reasons != 0)
        huge = {"input": code("huge_input"), "output": code("huge_output")}
        for tokens, side, name in ((inputs, sides[0], "input"), (outputs, sides[1], "output")):
            faulty = rows & (side != 0)
            tokens[faulty] = np.where(side[faulty] == huge[name], MAX_TOKENS, 1)
        if self.max_tokens is not None:
            long = rows & (inputs + outputs > self.max_tokens)
            inputs[long] = np.minimum(inputs[long], max(self.max_tokens - 1, 1))
            outputs[long] = np.maximum(self.max_tokens - inputs[long], 1)
        return rows

    def _count(self, batch: Batch, reasons: Reasons, keep: npt.NDArray[np.bool_]) -> None:
        self.rows += reasons.size
        for counts, rows in ((self.dropped, ~keep), (self.clipped, keep)):
            numbers = np.bincount(reasons[rows], minlength=len(NAMES))
            for reason in np.flatnonzero(numbers):
                if reason:
                    name = NAMES[reason]
                    counts[name] = counts.get(name, 0) + int(numbers[reason])
        if self.first_fault is not None:
            return
        for row in np.flatnonzero(reasons):
            name = NAMES[reasons[row]]
            if name not in EXPECTED:
                self.first_fault = (self.path, int(batch.line[row]), name, self._value(batch, int(row), name))
                return

    def _value(self, batch: Batch, row: int, reason: str) -> str:
        side = reason.rpartition("_")[2]
        c = self.found.columns
        column = {"input": c.input, "output": c.output, "hashes": c.hashes}.get(side, c.at)
        if reason in ("bad_row", "over_long") or reason.startswith("missing"):
            return ""
        values = batch.columns[column]
        try:
            return f" ({printable(values[row], 40)!r})"
        except (OverflowError, ValueError):  # an instant that Python has no date for
            kind = "value" if isinstance(values, list) else printable(values.type)
            return f" (a {kind} out of range)"

    def finish(self) -> tuple[Trace, ReadReport]:
        """The trace and its account. Raises `TraceError` by policy, or where nothing usable was read."""
        refuse_by_policy(self)
        at = self._joined("at")
        n = at.size
        order = np.argsort(at, kind="stable") if self.inversions else None
        notes = notes_of(self)
        origin = int(at.min())
        if int(at.max()) - origin > _MAX_SPAN_NS:
            what = f"instants {(int(at.max()) - origin) / NS / 31_557_600:.0f} years apart"
            raise TraceError(what, path=self.path, rows=f"{n} rows", remedy="look for a wrong unit or a wrong date")
        at -= origin

        def column(name: str) -> npt.NDArray[Any]:
            values = self._joined(name)
            return values if order is None else values[order]

        at = at if order is None else at[order]
        links = [column(name) if name in self.parts else None for name in ("session", "row_id", "parent")]
        session, parent, lost = link_turns(*links)
        if lost:
            notes.append(f"{lost} turns whose previous turn is missing or not earlier start anew")
        trace = Trace(
            at_ns=at,
            input_tokens=column("input"),
            output_tokens=column("output"),
            line=column("line"),
            outcome=column("outcome"),
            hashes=self._hashes(order),
            session=session,
            parent=parent,
        )
        if trace.hashes is not None:
            size, counts = trace.hashes.block_tokens, trace.hashes.counts
            other = int(np.count_nonzero((counts > 0) & (counts != -(-trace.input_tokens // size))))
            if other:
                notes.append(f"{other} rows have more or fewer block ids than blocks of {size} tokens in their input")
        clock: str = self.found.clock
        if self.decoder.typed:
            clock = f"{self.decoder.typed}, the column's own type"
        elif clock == "iso":
            clock += " with zone" if self.decoder.zoned else " without zone, taken as UTC"
        return trace, ReadReport(
            path=self.path if len(self.extents) == 1 else f"{len(self.extents)} files, the last {self.path}",
            format=self.found.name,
            clock=clock,
            rows=self.rows,
            kept=n,
            dropped=in_order(self.dropped),
            clipped=in_order(self.clipped),
            inversions=self.inversions,
            ties=int(np.count_nonzero(trace.at_ns[1:] == trace.at_ns[:-1])),
            span_s=trace.span_ns / NS,
            rate=trace.rate,
            resolution_ns=int(np.gcd.reduce(trace.at_ns)),
            origin_ns=origin,
            notes=tuple(notes),
        )

    def _joined(self, name: str) -> npt.NDArray[Any]:
        return np.concatenate(self.parts.pop(name))

    def _hashes(self, order: Int64s | None) -> BlockHashes | None:
        if "ids" not in self.parts:
            return None
        ids, counts = self._joined("ids"), self._joined("counts")
        if ids.size == 0:
            return None
        starts = np.concatenate(([0], np.cumsum(counts)))
        hashes = BlockHashes(ids=ids, starts=starts, block_tokens=self.found.block_tokens)
        return hashes if order is None else hashes.take(order)


_LEFT_OUT: Final = [code(name) for name in EXPECTED - {"failed"}]
_FIXABLE_OR_OK: Final = FIXABLE | (np.arange(len(NAMES)) == 0)


def _any_value(values: Any) -> bool:
    return any(v is not None for v in values) if isinstance(values, list) else values.null_count < len(values)


def _apply(left_out: Filter, values: Any, reasons: Reasons) -> None:
    """Give rows the filter's reason, before any fault of theirs is looked for."""
    encoded = pc.dictionary_encode(pc.cast(values, pa.string()))
    table = np.array([left_out.leaves_out(value) for value in encoded.dictionary.to_pylist()] + [False])
    rows = table[np.asarray(pc.fill_null(encoded.indices, len(table) - 1))]
    reasons[rows & (reasons == 0)] = code(left_out.reason)


def _note_failures(
    reasons: Reasons, times: Reasons, inputs: Reasons, outputs: Reasons, outcome: npt.NDArray[np.int8], zero_fails: bool
) -> None:
    """Recorded failures without usable counts are `failed`, not faults of the file."""
    failed = outcome == OUTCOMES.index("failed")
    if zero_fails:
        failed |= outputs == code("zero_output")
        outcome[failed] = OUTCOMES.index("failed")
    uncounted = FIXABLE[inputs] | FIXABLE[outputs]
    reasons[failed & uncounted & (times == 0) & (reasons == 0)] = code("failed")
