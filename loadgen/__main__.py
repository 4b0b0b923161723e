"""`loadgen` and `python -m loadgen`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it in good order while it is still being loaded, too."""
    if sys.platform == "win32":
        sys.exit("loadgen: Windows is not supported: run loadgen on Linux, for example in WSL")
    from loadgen.common.interrupts import end, interruptible

    with interruptible():
        try:
            from loadgen.cli import main as command_line
        except KeyboardInterrupt:
            end()
        command_line()


if __name__ == "__main__":
    main()
