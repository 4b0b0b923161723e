"""Cross-checks of the client's records against the server's metrics of the same run.

Three questions. Do the server's own means agree with the client's? They count from the request's arrival at the server
to the token's leaving its engine, so the client's are longer by the network and by what HTTP costs both sides. Did the
server do the client's requests only? And was the run as cold as claimed: what was found in the prefix cache must be
explained by prefixes that requests of the same run share (method, sections 4 and 7).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.records import NS_PER_S, Ints, numbers, outcome_is
from analysis.server_metrics.types import ServerView
from analysis.verdict import Finding

__all__ = ["cold_claim", "explained_hits", "foreign_requests", "server_findings"]

MEANS_OFF_SHARE = 0.05  # of the server's mean that the client's may differ by, or by
MEANS_OFF_S = {"ttft": 0.020, "itl": 0.002, "e2e": 0.050}
COUNTS_OFF = 0.02  # beyond which the two did not count the same requests
COUNTED_LATE = 1  # requests
COLD_SLACK = 0.001  # of the looked-up tokens: what random prompts may have in common by chance


def server_findings(requests: pd.DataFrame, server: ServerView) -> Iterator[Finding]:
    """What the two sides say of one run. `requests` is its whole derived table."""
    yield from _means(requests, server)
    yield from _speculation(server)
    for source in server.sources:
        if source.scrapes and source.failures:
            yield _finding(
                "readings", "info", source.failures, None,
                f"{source.failures} of {source.failures + source.scrapes} readings of {source.name} failed; the last: "
                f"{source.why}",
            )  # fmt: skip


def explained_hits(input_tokens: Ints, prefix_tokens: Ints, prefix_group: Ints) -> int:
    """Prompt tokens that requests of one run, shapes (n,), may find cached because earlier ones had them too.

    Of a group all but one have its prefix from another; a recorded workload (group -1) says of each request what
    earlier ones had.
    """
    shared = np.minimum(prefix_tokens, input_tokens)
    explained = int(shared[prefix_group < 0].sum())
    for group in np.unique(prefix_group[prefix_group >= 0]):
        own = shared[prefix_group == group]
        explained += int(own.sum() - own.min())
    return explained


def cold_claim(requests: pd.DataFrame, server: ServerView | None, explained: int) -> str:
    """Why a run was not as cold as claimed, in words; empty if it was, or if hits are unknown.

    Hits are the server's counters, or the cached tokens of the answers where these say more. `explained` is what
    `explained_hits` says of the requests sent; a chat template, which is in every prompt, comes on top of it.
    A preempted request may meet its own tokens again, so each preemption explains one whole request more.
    """
    cached = numbers(requests, "cached_tokens")
    told = int(cached[cached > 0].sum())
    counted = queried = preempted = 0.0
    if server is not None:
        counted = (server.value("prefix_hits", "n") or 0.0) + (server.value("external_prefix_hits", "n") or 0.0)
        queried = server.value("prefix_queries", "n") or 0.0
        preempted = server.value("preemptions", "n") or 0.0
    hits = max(told, counted)
    planned, given = numbers(requests, "input_tokens_planned"), numbers(requests, "input_tokens")
    queried = max(queried, float(np.maximum(planned, given).sum()))
    template = float(np.maximum(given - planned, 0)[planned > 0].sum())
    longest = float((planned + numbers(requests, "output_tokens_planned")).max()) if len(requests) else 0.0
    allowed = explained + template + preempted * longest + COLD_SLACK * queried
    if hits <= allowed:
        return ""
    return (
        f"{hits:.0f} of {queried:.0f} prompt tokens were found in the prefix cache, prefixes shared within the run "
        f"explain {explained}: the cache held these prompts before, or others use this server"
    )


def foreign_requests(requests: pd.DataFrame, server: ServerView | None) -> int:
    """Requests that the server finished meanwhile beyond those sent to it; 0 where it does not count them.

    One of ours that ended just before the run may be counted in it.
    """
    finished = None if server is None else server.value("finished", "n")
    if finished is None:
        return 0
    beyond = round(finished) - int((numbers(requests, "sent_ns") >= 0).sum())
    return beyond if beyond > COUNTED_LATE else 0


def _means(requests: pd.DataFrame, server: ServerView) -> Iterator[Finding]:
    first, last = numbers(requests, "first_token_ns"), numbers(requests, "last_token_ns")
    sent, events = numbers(requests, "sent_ns"), numbers(requests, "token_events")
    ok = outcome_is(requests, "ok")
    begun = (first >= 0) & (sent >= 0)
    sides = {
        "ttft": (first - sent)[begun].sum(), "itl": (last - first)[begun].sum(), "e2e": (last - sent)[ok].sum(),
    }  # fmt: skip
    counts = {"ttft": begun.sum(), "itl": np.maximum(events - 1, 0)[begun].sum(), "e2e": ok.sum()}
    said, off = [], []
    for name, count in counts.items():
        theirs, of = server.value(f"{name}_s", "mean"), server.value(f"{name}_s", "n")
        if theirs is None or not of or not count:
            continue
        ours = float(sides[name]) / float(count) / NS_PER_S
        said.append(f"{name.upper()} {_ms(theirs)} there (n {of:.0f}), {_ms(ours)} here (n {count})")
        same = abs(of - float(count)) <= COUNTS_OFF * float(count)
        if same and abs(ours - theirs) > max(MEANS_OFF_SHARE * theirs, MEANS_OFF_S[name]):
            off.append(name.upper())
    if said:
        verdict = f"; {', '.join(off)} differ by more than the way between explains" if off else ""
        yield _finding(
            "server_means", "warning" if off else "info", None, None,
            f"means by the server's clock and ours: {'; '.join(said)}{verdict}",
        )  # fmt: skip


def _speculation(server: ServerView) -> Iterator[Finding]:
    rate, drafts = server.value("accept_rate", "mean"), server.value("drafts", "n")
    accepted = server.value("accepted_tokens", "n")
    if rate is None:
        return
    step = f", {1 + accepted / drafts:.2f} tokens a step" if drafts and accepted is not None else ""
    yield _finding(
        "speculation", "info", rate, None,
        f"speculative decoding: {rate:.1%} of drafted tokens accepted{step}; gaps between events (ITL) are not TPOT",
    )  # fmt: skip


def _finding(check: str, severity: str, value: float | None, limit: float | None, text: str) -> Finding:
    return Finding(
        check=check, blame="target", severity="warning" if severity == "warning" else "info", value=value, limit=limit,
        text=text,
    )  # fmt: skip


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"
