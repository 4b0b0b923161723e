"""Processes that a test's command starts, found by a word in their command lines."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def running(marker: str) -> list[int]:
    """The processes whose command line has this word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@contextmanager
def marked(patience_s: float = 0.0) -> Iterator[str]:
    """A word for command lines; at the end no process has it, after `patience_s` at the latest."""
    word = f"marker-{uuid.uuid4().hex}"
    yield word
    deadline = time.monotonic() + patience_s
    while (left := running(word)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
