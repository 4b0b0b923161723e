"""Has this process a processor to spare? Then every answer can be read promptly."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["Load"]

_LOOK_EVERY_NS: Final = 1_000_000_000
_LOW, _STAYS_LOW = 0.1, 0.4  # shares of a core; reading all promptly takes up to four times as much


class Load:
    """Whether this process has little to do, by its share of a core over the last second, with a hysteresis."""

    def __init__(self, cpu_ns: Callable[[], int] = time.process_time_ns) -> None:
        self._cpu_ns = cpu_ns
        self._since: tuple[int, int] | None = None  # instant, CPU
        self._low = False

    def low(self, now_ns: int) -> bool:
        """Looked at once a second; busy until that is known."""
        if self._since is None:
            self._since = now_ns, self._cpu_ns()
        elif now_ns - self._since[0] >= _LOOK_EVERY_NS:
            then_ns, cpu_ns = self._since
            self._since = now_ns, self._cpu_ns()
            share = (self._since[1] - cpu_ns) / (now_ns - then_ns)
            self._low = share < (_STAYS_LOW if self._low else _LOW)
        return self._low
