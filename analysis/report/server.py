"""The server's metrics of one run as a table, next to the client's."""

from __future__ import annotations

from analysis.report.tables import Table
from analysis.verdict import RunVerdict

__all__ = ["server_table"]

_TIMES = {
    "queue_s": ("queue", ""), "prefill_s": ("prefill", ""), "decode_s": ("decode", ""),
    "ttft_s": ("TTFT", "ttft_from_sent_s"), "itl_s": ("ITL; client: TPOT", "tpot_s"), "e2e_s": ("E2E", "e2e_s"),
}  # fmt: skip


def server_table(run: RunVerdict) -> Table | None:
    """One row a quantity: gauges over the window, times and counts over the run; `None` if nothing was measured.

    The client's column has its means over ok requests of the cohort (TTFT from the send, E2E from the schedule).
    """
    rows: list[tuple[str, str, str, str]] = []
    for name, label, form in (("waiting", "waiting", "{:.3g}"), ("running", "running", "{:.3g}"),
                              ("kv_usage", "KV cache", "{:.1%}"), ("gpu_busy", "GPU busy", "{:.0%}"),
                              ("dram_active", "GPU memory bandwidth", "{:.0%}")):  # fmt: skip
        if (measured := run.server.get(name)) is not None and "mean" in measured:
            rows.append((label, form.format(measured["mean"]), form.format(measured["max"]), ""))
    for name, (label, ours) in _TIMES.items():
        if "mean" in (measured := run.server.get(name, {})):
            client = run.summary.get(ours, {}).get("mean")
            rows.append(
                (f"{label}, ms", f"{measured['mean'] * 1e3:.1f}", "", "" if client is None else f"{client * 1e3:.1f}")
            )
    if "mean" in (measured := run.server.get("iteration_tokens", {})):
        rows.append(
            (
                "tokens a step",
                f"{measured['mean']:.1f}",
                ", ".join(f"{name} ≤ {measured[name]:.0f}" for name in ("p50", "p99") if name in measured),
                "",
            )
        )
    for name, label in (("preemptions", "preemptions"), ("rejections", "rejections"),
                        ("prefix_queries", "prompt tokens looked up"), ("prefix_hits", "of them cached")):  # fmt: skip
        if (measured := run.server.get(name)) is not None:
            rows.append((label, f"{measured['n']:.0f}", "", ""))
    if not any(name in run.server for name in ("waiting", "running", "ttft_s", "e2e_s")):
        return None
    return Table(
        title="Server: gauges over the window, times and counts over the run",
        columns=("quantity", "mean or count", "max", "client mean"),
        rows=tuple(rows),
        left=frozenset({"quantity"}),
    )
