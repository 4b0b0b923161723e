"""What the coordinator and its sending processes say to each other, and the channel they say it on.

A channel is one end of a socket pair that the other end inherited, so nobody else can write to it. A message is its
length in eight bytes and its pickle. A process whose channel ends has lost its other end.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from loadgen.common.members import JsonMembers
from loadgen.plan.types import RunPlan
from loadgen.send.api import Endpoint, LiveCounts, RunOutput, SendOptions, Standing

__all__ = ["Channel", "Done", "Failed", "Order", "Ready", "Start", "StopAt", "Tally", "ToCoordinator", "ToWorker"]

_LENGTH: Final = struct.Struct("!Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Send the requests of `plan` whose index is `worker` modulo `workers`, once told to start."""

    plan: RunPlan
    slot: JsonMembers  # at the front of each body
    endpoint: Endpoint
    options: SendOptions
    worker: int
    workers: int
    journal: Path | None


@dataclass(frozen=True, slots=True)
class Start:
    """Begin the load at this instant of CLOCK_MONOTONIC, which is one clock for all processes of a machine."""

    t0_ns: int


@dataclass(frozen=True, slots=True)
class StopAt:
    """End the load so many ns after t0."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Names are resolved, the first bodies are ready: it can start."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How far a process is."""

    counts: LiveCounts
    standing: Standing
    journal_failure: OSError | None


@dataclass(frozen=True, slots=True)
class Done:
    """Its part of the run, whole."""

    output: RunOutput


@dataclass(frozen=True, slots=True)
class Failed:
    """It could not do its part."""

    error: Exception


ToWorker = Order | Start | StopAt
ToCoordinator = Ready | Tally | Done | Failed


class Channel:
    """One end of a connection between two processes of this program; to be iterated over by one task."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def of(cls, end: socket.socket) -> Self:
        """Take over a connected socket."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, message: ToWorker | ToCoordinator) -> None:
        """Send without waiting; what the other end has no more ears for is lost."""
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        if not self._writer.is_closing():
            self._writer.write(_LENGTH.pack(len(data)))
            self._writer.write(data)

    async def __aiter__(self) -> AsyncIterator[ToWorker | ToCoordinator]:
        """Messages until the other end is gone."""
        try:
            while True:
                (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                yield pickle.loads(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, OSError):
            return

    def close(self) -> None:
        """End the connection, which ends the other process."""
        self._writer.close()
