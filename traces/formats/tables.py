"""CSV with any of four delimiters: blocks through Arrow's parser, and line by line where Arrow will not take a block.

Token counts are parsed as integers at once where all of a block's are some, and kept as text otherwise.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from traces.decode import code
from traces.errors import printable
from traces.formats.batch import Batch
from traces.source import Block, Source

__all__ = ["DELIMITERS", "read_csv", "split_header"]

DELIMITERS: Final = (b",", b"\t", b";", b"|")


def split_header(source: Source, delimiter: bytes) -> list[str]:
    """The names in the first line. Raises `TraceError` if that line is not a table's header."""
    line, _, _ = source.head.partition(b"\n")
    try:
        names = next(csv.reader([line.decode("utf-8").rstrip("\r")], delimiter=delimiter.decode()), [])
    except (UnicodeDecodeError, csv.Error):
        raise source.fault(
            "the first line is neither a CSV header nor JSON", line=1, remedy="pass --format and --map"
        ) from None
    return [name.strip() for name in names]


def read_csv(
    source: Source, delimiter: bytes, header: list[str], wanted: list[str], counts: tuple[str, ...] = ()
) -> Iterator[Batch]:
    """Batches of the wanted columns: text, or integers for those in `counts`. Blank lines are not rows."""
    for name in wanted:
        if header.count(name) > 1:
            raise source.fault(f"column {printable(name)!r} twice", line=1, remedy="rename one of them")
    positions = [header.index(name) for name in wanted]
    # names for Arrow that cannot clash: every column by its position
    names = [f"c{i}" for i in range(len(header))]
    text = {names[i]: pa.string() for i in positions}
    numbers = text | {names[header.index(name)]: pa.int64() for name in counts}
    for block in source.blocks(quoted=delimiter):
        if block.first_line == 1:
            _, _, data = block.data.partition(b"\n")
            if not data:
                continue
            block = Block(data=data, first_line=2, lines=block.lines - 1)
        # Arrow would read 0x1F as 31; one letter is looked for first, since that is many times faster
        hexes = any(x in block.data and b"0" + x in block.data for x in (b"x", b"X"))
        batch = None if hexes else _fast(block, delimiter, names, numbers, positions, wanted)
        batch = batch or _fast(block, delimiter, names, text, positions, wanted)
        yield batch or _slow(block, delimiter, len(header), positions, wanted)


def _fast(
    block: Block,
    delimiter: bytes,
    names: list[str],
    types: dict[str, pa.DataType],
    positions: list[int],
    wanted: list[str],
) -> Batch | None:
    try:
        table = pacsv.read_csv(
            pa.BufferReader(block.data),
            read_options=pacsv.ReadOptions(column_names=names, block_size=1 << 21),
            parse_options=pacsv.ParseOptions(
                delimiter=delimiter.decode(), newlines_in_values=False, ignore_empty_lines=False
            ),
            convert_options=pacsv.ConvertOptions(
                include_columns=[names[i] for i in positions],
                column_types=types,
                strings_can_be_null=False,
                null_values=[""],
            ),
        )
    except pa.ArrowInvalid:
        return None
    if len(table) != block.lines:
        return None
    columns = {name: table[names[i]].combine_chunks() for name, i in zip(wanted, positions, strict=True)}
    line = np.arange(block.first_line, block.first_line + block.lines, dtype=np.int64)
    blank = np.ones(block.lines, dtype=bool)
    for column in columns.values():
        blank &= np.asarray(pc.equal(column, "") if pa.types.is_string(column.type) else pc.is_null(column))
        if not blank.any():
            break
    else:
        # a row that has only other columns is a row
        texts = block.data.split(b"\n")
        for row in np.flatnonzero(blank):
            blank[row] = not texts[row].strip(b' \t\r"' + delimiter)
    if blank.any():
        kept = pa.array(~blank)
        columns = {name: column.filter(kept) for name, column in columns.items()}
        line = line[~blank]
    return Batch(columns=columns, line=line, reasons=np.zeros(line.size, dtype=np.int8))


def _slow(block: Block, delimiter: bytes, width: int, positions: list[int], wanted: list[str]) -> Batch:
    reader = csv.reader(
        io.StringIO(block.data.decode("utf-8", errors="replace"), newline=""), delimiter=delimiter.decode()
    )
    values: list[list[str | None]] = [[] for _ in wanted]
    line: list[int] = []
    reasons: list[int] = []
    before = block.first_line - 1
    start = block.first_line
    csv.field_size_limit(1 << 26)
    for row in reader:
        at, start = start, before + reader.line_num + 1
        if not any(value.strip() for value in row):
            continue
        whole = len(row) == width
        line.append(at)
        reasons.append(0 if whole else code("bad_row"))
        for column, position in zip(values, positions, strict=True):
            column.append(row[position] if whole else None)
    columns = {name: pa.array(column, pa.string()) for name, column in zip(wanted, values, strict=True)}
    return Batch(columns=columns, line=np.array(line, dtype=np.int64), reasons=np.array(reasons, dtype=np.int8))
