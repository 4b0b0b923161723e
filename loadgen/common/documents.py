"""JSON documents of frozen types: written, and read back with their version checked before anything else."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from loadgen.common.errors import ResultsError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["parse", "read", "to_json", "widened"]

T = TypeVar("T")
Document = TypeVar("Document", bound="DataclassInstance")
_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def to_json(value: object, *, indent: int | None = None) -> bytes:
    """The value of a frozen type as UTF-8 JSON; without `indent` on one line."""
    return _adapter(type(value)).dump_json(value, indent=indent, by_alias=True)


def read(path: Path, kind: type[Document]) -> Document:
    """The document in a file. Raises `ResultsError` in one line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ResultsError(f"{error.filename or path}: {error.strerror or error}") from None
    return parse(data, kind, str(path))


def parse(data: bytes, kind: type[Document], where: str) -> Document:
    """The document in `data`. Raises `ResultsError` where it is damaged or of another version (`format`)."""
    try:
        raw = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ResultsError(f"{where}: not valid JSON ({error}): restore the file") from None
    if not isinstance(raw, dict):
        raise ResultsError(f"{where}: holds no JSON object: restore the file")
    wanted, found = _version(kind), raw.get("format", 1)
    if found != wanted:
        raise ResultsError(
            f"{where}: written by another version of loadgen (format {str(found)[:20]}, this one reads {wanted}): "
            "measure again, or use the version that wrote it"
        )
    try:
        return _adapter(kind).validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ResultsError(f"{where}: {key}: {first['msg'][:100]}: restore the file") from None


def widened(value: DataclassInstance, kind: type[Document], **more: object) -> Document:
    """A value of a type that has all fields of another, and `more`."""
    return kind(**{field.name: getattr(value, field.name) for field in fields(value)}, **more)


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def _version(kind: type[DataclassInstance]) -> object:
    return next(field.default for field in fields(kind) if field.name == "format")
