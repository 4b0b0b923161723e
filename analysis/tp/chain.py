"""Why tensor parallelism does not pay here: six links in a fixed order, up to the first that explains it.

1 shapes, 2 path, 3 microbenchmark, 4 all-reduce in the server, 5 GEMMs, 6 tokens of a step, queue and replicas. A link
whose numbers are out of order *explains*; those after it are not looked at, since its repair changes their numbers. A
link without input is named, with the option that would give it. Thresholds are rules of thumb, printed beside
the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from analysis.tp import links
from analysis.tp.links import token_shares
from analysis.tp.types import Facts, Link, Load

__all__ = ["Facts", "Link", "Load", "explain", "token_shares", "verdict"]


def explain(facts: Facts) -> tuple[Link, ...]:
    """The links in order."""
    checks: tuple[tuple[str, Callable[[Facts], Link]], ...] = (
        ("shapes", links.shapes), ("path", links.path), ("microbenchmark", links.microbenchmark),
        ("all-reduce in the server", links.in_app), ("GEMMs", links.gemms), ("load", links.load),
    )  # fmt: skip
    answers: list[Link] = []
    for name, check in checks:
        if any(link.state == "explains" for link in answers):
            answers.append(Link(name=name, state="not reached", text="a link before explains it"))
        else:
            answers.append(check(facts))
    return tuple(answers)


def verdict(answers: Sequence[Link]) -> str:
    """One sentence."""
    for link in answers:
        if link.state == "explains":
            return f"The first link that explains it is {link.name}: {link.text}"
    missing = [link.name for link in answers if link.state == "not checked"]
    if missing:
        return f"No checked link explains it; not checked: {', '.join(missing)}"
    return "No link explains it: tensor parallelism works as the model says"
