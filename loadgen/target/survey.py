"""All that can be found out about a target before it is loaded: for a person who asks what this server can do.

Reads only, unless `allow_reset`. The requests that generate are the probe's (ten at most); the others are GETs of small
pages, one HEAD to see whether the cache can be reset, and one tokenization.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Final

from analysis.text import bounded
from loadgen.common.members import JsonMembers
from loadgen.plan.types import RequestFormat
from loadgen.target.answers import reset_succeeded, server_version, token_count
from loadgen.target.capabilities import FeatureFinding
from loadgen.target.findings import IDS, Adaptable
from loadgen.target.http import Http, Unreachable
from loadgen.target.idle import IdleWatch
from loadgen.target.metrics import scrape
from loadgen.target.probe import NoEndpoint
from loadgen.target.target import Target

__all__ = ["Survey", "survey"]

_CLOCK_RESOLUTION_S: Final = 2.0  # a Date is in whole seconds, and may be renewed once a second only
_TEXT: Final = "The quick brown fox jumps over the lazy dog."


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The table's rows, and what to do about them. `options` must be set for this server before it is loaded.

    `unfit` says what cannot be measured on it with any of them.
    """

    findings: tuple[FeatureFinding, ...]
    options: tuple[str, ...]
    unfit: tuple[str, ...]
    format: RequestFormat
    generating: int  # requests that generate
    others: int

    def with_connections(self, watches: Sequence[IdleWatch]) -> Survey:
        """With a row for each connection that was watched meanwhile."""
        return replace(self, findings=(*self.findings, *map(_connection, watches)), others=self.others + len(watches))


async def survey(
    target: Target,
    form: RequestFormat,
    *,
    extras: JsonMembers | None = None,
    may_chat: bool = True,
    allow_reset: bool = False,
) -> Survey:
    """Ask everything once. `may_chat`: chat is tried where the server has no completions.

    Raises `TargetUnfit` where no option would make the server usable, and `TargetUnreachable`.
    """
    ask, spent, options = Adaptable(continuous=True), 0, []
    try:
        found = await target.capabilities(form, extras=extras, ask=ask)
    except NoEndpoint as missing:
        if form.endpoint == "chat" or not may_chat:
            raise
        spent, options = 1, [f"{missing}: set --endpoint chat"]
        found = await target.capabilities(replace(form, endpoint="chat", prompt="text"), extras=extras, ask=ask)
    rows = [_model(target)]
    texts = [await _tokenization(http, target.model) for http in target.https]
    for row in found.findings:  # texts are of exact length where the server counts them
        exact = row.feature == IDS and row.instead and not any(one.cost for one in texts)
        rows.append(replace(row, instead="text prompts, counted by /tokenize", cost="") if exact else row)
    for http, counting in zip(target.https, texts, strict=True):
        where = f" ({http.base})" if len(target.https) > 1 else ""
        for row in (
            *await _server(http),
            counting,
            await _metrics(http),
            await _reset(http, allow=allow_reset),
        ):
            rows.append(replace(row, feature=row.feature + where))
    generating = found.requests + spent
    return Survey(
        findings=tuple(rows),
        options=(*options, *found.needs),
        unfit=found.unfit,
        format=found.format,
        generating=generating,
        others=sum(http.sent for http in target.https),
    )


def _model(target: Target) -> FeatureFinding:
    found = f"{bounded(target.model, 80)}, context length {target.max_model_len or 'unknown'}"
    cost = "" if target.max_model_len else "prompts beyond the context are noticed only by what comes back"
    return FeatureFinding(feature="model", found=found, cost=cost)


async def _tokenization(http: Http, model: str) -> FeatureFinding:
    feature = "tokenization"
    try:
        answer = await http.post("/tokenize", JsonMembers.of(model=model, prompt=_TEXT))
    except Unreachable as error:
        return FeatureFinding(feature=feature, found=str(error))
    count = token_count(answer) if answer.status == 200 else None
    if count is not None:
        return FeatureFinding(feature=feature, found=f"/tokenize: {count} tokens for {len(_TEXT.split())} words")
    return FeatureFinding(
        feature=feature,
        found=f"no /tokenize ({answer.status})",
        instead="a word counts as a token in text prompts",
        cost="text prompts are only roughly as long as planned",
    )


async def _metrics(http: Http) -> FeatureFinding:
    reading = await scrape(http)
    if reading is None:
        return FeatureFinding(
            feature="metrics",
            found="no /metrics",
            instead="the client's records alone",
            cost="a queue, a warm cache, a restart and other users' load cannot be seen",
        )
    missing = [
        name
        for name, value in (
            ("requests running and waiting", reading.outstanding),
            ("prefix-cache hits", reading.prefix_hits),
            ("start time", reading.started),
        )
        if value is None
    ]
    found = f"yes: {len(reading.samples)} series"
    if not missing:
        return FeatureFinding(feature="metrics", found=found)
    return FeatureFinding(
        feature="metrics", found=f"{found}, without {', '.join(missing)}", cost="these cannot be checked"
    )


async def _reset(http: Http, *, allow: bool) -> FeatureFinding:
    feature, path = "cache reset", "/reset_prefix_cache"
    missing = FeatureFinding(
        feature=feature,
        found=f"no {path}",
        instead="--cache salt (default) or keep",
        cost="without a proved salt, runs may find each other's prompts in the cache",
    )
    try:
        if not allow:
            there = (await http.head(path)).status == 405  # it is for POST alone
            return FeatureFinding(feature=feature, found="there, not tried (--allow-reset)") if there else missing
        answer = await http.post(path)
    except Unreachable as error:
        return FeatureFinding(feature=feature, found=str(error))
    if answer.status in (400, 409, 429, 503):
        found = f"there, and busy now ({answer.status}: {answer.excerpt or 'nothing'})"
        return FeatureFinding(feature=feature, found=found, instead="tried again for a minute before each run")
    if answer.status != 200:
        return missing
    if reset_succeeded(answer):
        return FeatureFinding(feature=feature, found="yes: success")
    return FeatureFinding(
        feature=feature, found=f"answers without success ({answer.excerpt or 'nothing'})", cost=missing.cost
    )


async def _server(http: Http) -> tuple[FeatureFinding, FeatureFinding]:
    """The version, and the server's Date against our clock, to within what a Date can tell and the answer's time."""
    before_s = time.time()
    try:
        answer = await http.get("/version")
    except Unreachable as error:
        return FeatureFinding(feature="version", found=str(error)), FeatureFinding(feature="clocks", found="not seen")
    after_s = time.time()
    version = server_version(answer) if answer.status == 200 else None
    known = FeatureFinding(feature="version", found=bounded(str(version), 80))
    if version is None:
        known = FeatureFinding(
            feature="version", found="unknown", cost="another version behind the same URL goes unnoticed"
        )
    try:
        there_s = parsedate_to_datetime(answer.date).timestamp()
    except (ValueError, TypeError):
        return known, FeatureFinding(
            feature="clocks", found="the server sends no Date header", instead="this machine's clock alone"
        )
    early_s, late_s = there_s - after_s, there_s + _CLOCK_RESOLUTION_S - before_s
    if early_s <= 0 <= late_s:
        return known, FeatureFinding(feature="clocks", found="in step within 2 s (Date header)")
    off_s = early_s if early_s > 0 else late_s
    found = f"the server's is {abs(off_s):.0f} s {'ahead' if off_s > 0 else 'behind'}"
    cost = "its logs do not line up with ours; latencies are not concerned"
    return known, FeatureFinding(feature="clocks", found=found, cost=cost)


def _connection(watch: IdleWatch) -> FeatureFinding:
    if watch.connect_s is None or watch.answer_s is None:
        return FeatureFinding(feature="connection", found="not seen")
    found = (
        f"connect {1e3 * watch.connect_s:.1f} ms, small answer {1e3 * watch.answer_s:.1f} ms, idle limit {watch.text}"
    )
    return FeatureFinding(feature="connection", found=found, instead=f"reused for up to {watch.keepalive_s():.1f} s")
