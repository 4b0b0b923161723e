"""What `truth` prints: numbers beside their targets, and at the end which targets were missed."""

from __future__ import annotations

from collections.abc import Sequence


class Board:
    """Prints as it goes; knows what was missed."""

    def __init__(self) -> None:
        self.held = 0
        self.missed: list[str] = []

    def head(self, title: str) -> None:
        print(f"\n## {title}\n", flush=True)

    def say(self, text: str) -> None:
        print(text, flush=True)

    def hold(self, what: str, measured: str, target: str, met: bool) -> None:
        """One measured number against its target."""
        self.held += 1
        if not met:
            self.missed.append(what)
        print(f"- {what}: {measured} (target {target}: {'met' if met else 'MISSED'})", flush=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table in Markdown."""
        lines = [list(columns), ["---"] * len(columns), *[list(row) for row in rows]]
        print("\n".join(f"| {' | '.join(line)} |" for line in lines), flush=True)

    def close(self, *, quick: bool) -> int:
        """The last line, and the exit code."""
        self.head("Targets")
        self.say(f"{self.held - len(self.missed)} of {self.held} met.")
        for what in self.missed:
            self.say(f"- MISSED: {what}")
        if quick:
            self.say("A quick round: too few samples to conclude anything from.")
        return 1 if self.missed and not quick else 0
