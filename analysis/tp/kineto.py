"""What a Kineto trace holds of steps, collectives and GEMMs, gathered event by event into columns.

Kept are 56 bytes a device kernel, 16 a launch and 40 a GEMM operator; names and shapes are kept once. On a trace
without devices (gloo), what threads compute stands for kernels: the outermost `aten::` operators.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Final

from analysis.tp.chrome import Event, EventStream, Malformed
from analysis.tp.names import ELEMENT_BYTES, Named, collective_kernel, collective_kind, is_gemm_kernel, is_gemm_op

__all__ = ["GEMM", "ON_THREAD", "OTHER", "Call", "Columns", "Operator", "Recorded", "read_kineto"]

_STEP_NAMES: Final = ("execute_", "ProfilerStep#")
_DEVICE: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCH: Final = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime"})
_MAX_NAMES: Final = 200_000
OTHER: Final = 0
GEMM: Final = 1  # a device kernel that seems to be one
ON_THREAD: Final = 2  # no kernel: an operator of a trace without devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator's name, element type and first dimensions, as recorded with `record_shapes`."""

    name: str
    element: str
    dims: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What Kineto writes with a collective; -1 and "" where it does not."""

    named: Named
    elements: int = -1
    element: str = ""
    ranks: int = 0


@dataclass(slots=True, kw_only=True)
class Columns:
    """Intervals, µs, on a device's stream or on a thread (`lane`), and what each was (`what`, an index)."""

    at_us: array[float] = field(default_factory=lambda: array("d"))
    took_us: array[float] = field(default_factory=lambda: array("d"))
    lane: array[int] = field(default_factory=lambda: array("q"))
    what: array[int] = field(default_factory=lambda: array("q"))
    external: array[int] = field(default_factory=lambda: array("q"))
    correlation: array[int] = field(default_factory=lambda: array("q"))

    def add(self, event: Event, lane: int, what: int, arguments: Event) -> None:
        """Keep one interval."""
        self.at_us.append(float(event["ts"]))
        self.took_us.append(float(event.get("dur", 0)))
        self.lane.append(lane)
        self.what.append(what)
        self.external.append(_whole(arguments.get("External id")))
        self.correlation.append(_whole(arguments.get("correlation")))

    def __len__(self) -> int:
        return len(self.at_us)


@dataclass(slots=True, kw_only=True)
class Recorded:
    """A trace in columns. `calls`, `operators`: what the `what` of collectives and of operators points to."""

    rank: int | None = None
    ranks: int | None = None
    devices: int = 0
    events: int = 0
    steps: list[tuple[str, float, float, bool]] = field(default_factory=list)  # name, µs, µs, on the device's clock
    compute: Columns = field(default_factory=Columns)  # what: GEMM, OTHER or ON_THREAD
    collectives: Columns = field(default_factory=Columns)
    calls: list[Call] = field(default_factory=list)
    gemms: Columns = field(default_factory=Columns)
    wrappers: Columns = field(default_factory=Columns)  # operators around a collective, for its payload
    operators: list[Operator] = field(default_factory=list)
    launched_at_us: array[float] = field(default_factory=lambda: array("d"))
    launched: array[int] = field(default_factory=lambda: array("q"))  # correlation


class _Reader:
    def __init__(self, header: Event) -> None:
        self.out = Recorded()
        group = header.get("distributedInfo")
        if isinstance(group, dict):
            self.out.rank, self.out.ranks = _known(group.get("rank")), _known(group.get("world_size"))
        devices = header.get("deviceProperties")
        self.out.devices = len(devices) if isinstance(devices, list) else 0
        self._lanes: dict[tuple[object, object], int] = {}
        self._kernels: dict[str, Named | None] = {}
        self._operators: dict[Operator, int] = {}
        self._calls: dict[Call, int] = {}
        self._until: dict[int, float] = {}  # end of each thread's outermost operator

    def take(self, event: Event) -> None:
        """Keep what matters of one event."""
        self.out.events += 1
        if event.get("ph") != "X" or not isinstance(event.get("ts"), int | float):
            return
        kind, name, arguments = event.get("cat"), event.get("name"), event.get("args")
        if not isinstance(kind, str) or not isinstance(name, str):
            return
        if not isinstance(event.get("dur", 0), int | float):
            return
        if not isinstance(arguments, dict):
            arguments = {}
        if kind in _DEVICE:
            self._device(event, kind, name, arguments)
        elif kind in _LAUNCH:
            if "aunch" in name and "correlation" in arguments:
                self.out.launched_at_us.append(float(event["ts"]))
                self.out.launched.append(_whole(arguments["correlation"]))
        elif kind in ("user_annotation", "gpu_user_annotation"):
            if name.startswith(_STEP_NAMES):
                at_us = float(event["ts"])
                self.out.steps.append((name[:200], at_us, at_us + event.get("dur", 0), kind == "gpu_user_annotation"))
            elif name.startswith("gloo:"):
                self._gloo(event, name, arguments)
        elif kind == "cpu_op":
            self._operator(event, name, arguments)

    def _device(self, event: Event, kind: str, name: str, arguments: Event) -> None:
        lane = self._lane(event)
        named = None
        if kind == "kernel":
            if name not in self._kernels and len(self._kernels) < _MAX_NAMES:
                self._kernels[name] = collective_kernel(name)
            named = self._kernels.get(name)
        if named is None:
            self.out.compute.add(event, lane, GEMM if kind == "kernel" and is_gemm_kernel(name) else OTHER, arguments)
            return
        said = str(arguments.get("Collective name", ""))
        if named.kind == "unknown" and (found := collective_kind(said)):
            named = Named(kind=found, by=named.by, element=named.element, ranks=named.ranks)
        side = "Out msg nelems" if named.kind == "all_gather" else "In msg nelems"
        call = Call(
            named=named, elements=_whole(arguments.get(side)), element=_element(arguments.get("dtype")),
            ranks=max(0, _whole(arguments.get("Group size"))),
        )  # fmt: skip
        self.out.collectives.add(event, lane, self._call(call), arguments)

    def _gloo(self, event: Event, name: str, arguments: Event) -> None:
        operator = self._described(name, arguments)
        elements = prod(operator.dims[0]) if operator.dims else -1
        named = Named(kind=collective_kind(name) or "unknown", by="gloo")
        call = Call(named=named, elements=elements, element=operator.element)
        self.out.collectives.add(event, self._lane(event), self._call(call), arguments)

    def _operator(self, event: Event, name: str, arguments: Event) -> None:
        if self.out.devices == 0 and name.startswith("aten::"):
            lane, end = self._lane(event), float(event["ts"]) + event.get("dur", 0)
            if end > self._until.get(lane, -1.0):
                self._until[lane] = end
                self.out.compute.add(event, lane, ON_THREAD, arguments)
        if is_gemm_op(name):
            self.out.gemms.add(event, self._lane(event), self._number(self._described(name, arguments)), arguments)
        elif collective_kind(name):
            self.out.wrappers.add(event, self._lane(event), self._number(self._described(name, arguments)), arguments)

    def _described(self, name: str, arguments: Event) -> Operator:
        dims, types = arguments.get("Input Dims"), arguments.get("Input type")
        flat: list[tuple[int, ...]] = []
        for one in dims if isinstance(dims, list) else ():
            nested = one if isinstance(one, list) and one and isinstance(one[0], list) else [one]  # a TensorList
            flat += [
                tuple(sizes) for sizes in nested
                if isinstance(sizes, list) and sizes and all(isinstance(size, int) for size in sizes)
            ]  # fmt: skip
        element = next((_element(one) for one in types if _element(one)), "") if isinstance(types, list) else ""
        return Operator(name=name[:200], element=element, dims=tuple(flat[:6]))

    def _number(self, operator: Operator) -> int:
        number = self._operators.setdefault(operator, len(self._operators))
        if number == len(self.out.operators):
            self.out.operators.append(operator)
        return number

    def _call(self, call: Call) -> int:
        number = self._calls.setdefault(call, len(self._calls))
        if number == len(self.out.calls):
            self.out.calls.append(call)
        return number

    def _lane(self, event: Event) -> int:
        key = (str(event.get("pid")), str(event.get("tid")))
        return self._lanes.setdefault(key, len(self._lanes))


def read_kineto(pieces: Iterable[bytes]) -> Recorded:
    """The trace whose text comes in these pieces. Raises `Malformed` where it is none."""
    events = EventStream(pieces)
    reader = _Reader(events.header)
    for event in events:
        reader.take(event)
    if not reader.out.events:
        raise Malformed("the list traceEvents is empty: profile while the server computes")
    return reader.out


def _whole(value: object) -> int:
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else -1


def _known(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 1 << 20 else None


def _element(value: object) -> str:
    name = value.removeprefix("c10::").lower() if isinstance(value, str) else ""
    return name if name in ELEMENT_BYTES else ""
