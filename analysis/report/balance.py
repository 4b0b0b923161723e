"""How a run's load fell on the URLs of its target, as a table."""

from __future__ import annotations

from analysis.report.tables import Table, ms, percent
from analysis.verdict import Balance

__all__ = ["balance_table"]


def balance_table(balance: Balance) -> Table:
    """One row a URL: cohort requests, attainment, errors, in flight over the window, p95 of ok requests in ms."""
    bound = "≤ " if balance.attainment_is_bound else ""
    rows = []
    for row in balance.replicas:
        kept = "–" if row.attainment is None else f"{bound}{percent(row.attainment)}%"
        late = (ms(found.get("p95")) for found in (row.ttft_s, row.tpot_s, row.e2e_s))
        in_flight = f"{row.in_flight_mean:.3g} / {row.in_flight_max}"
        rows.append((row.url, str(row.requests), f"{row.share:.0%}", kept, str(row.errors), in_flight, *late))
    return Table(
        title=f"Replicas (routing {balance.routing}); in flight: mean / max; p95 in ms",
        columns=("replica", "requests", "share", "attainment", "errors", "in flight", "TTFT", "TPOT", "E2E"),
        rows=tuple(rows),
        left=frozenset({"replica"}),
    )
