"""What a run's target did, gathered once when the run is over: the facts that the sender alone cannot know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from analysis.records import outcome_is
from analysis.server_metrics.crosscheck import cold_claim, explained_hits, foreign_requests
from analysis.server_metrics.types import ServerView
from analysis.verdict import TargetFacts
from loadgen.common.errors import ClientLimited, TargetUnreachable
from loadgen.experiment.preparation import Preparation
from loadgen.experiment.sut import Sut
from loadgen.plan.types import RunPlan
from loadgen.send.api import RunOutput

__all__ = ["BeforeRun", "target_facts"]

_LOST: Final = ("connection_lost", "connect_error", "stream_error", "truncated")
_UNANSWERED: Final = ("timeout", "censored")


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeRun:
    """The idle target just before the load of a run."""

    identity: Mapping[str, str]
    changed: str  # against the run before and the beginning of the experiment, in words; empty if nothing is
    disturbance: str  # what was odd about it, in words


async def target_facts(
    sut: Sut,
    ready: Preparation,
    output: RunOutput,
    plan: RunPlan,
    before: BeforeRun,
    server: ServerView | None,
    *,
    cold: bool,
) -> tuple[TargetFacts, Mapping[str, str]]:
    """The facts, and the target's identity after the run (that before it, where it could not be asked).

    The target died where requests were lost with it; gone without a loss, changed or disturbed makes the run INVALID.
    Where this machine gave no connection to ask by, that is said, and nothing of the target. `cold`: the run claims to
    have met a cold cache. `server` is what the target's metrics said during the run.
    """
    lost = outcome_is(output.requests, *_LOST)
    died, changed, odd, not_asked, identity = False, "", "", "", before.identity
    try:
        identity = dict(await sut.identity())
        odd = await sut.settled()
    except ClientLimited as error:
        identity, not_asked = before.identity, str(error)
    except TargetUnreachable as error:
        identity = before.identity
        # what was never answered was lost with it, too
        if output.facts.target_died or (lost | outcome_is(output.requests, *_UNANSWERED)).any():
            died = True
        else:
            changed = f"it no longer answers after the run, though none of its requests was lost ({error})"
    else:
        restarts = () if server is None else server.restarts
        during = _joined(sut.changed(before.identity, identity), *restarts)
        if during and lost.any():
            died, odd = True, ""
        else:
            changed = during
    facts = TargetFacts(
        died=died,
        changed=_joined(before.changed, changed),
        disturbance=_joined(before.disturbance, odd),
        foreign_requests=foreign_requests(output.requests, server),
        cold_claim_broken=_cold_claim(output, plan, server) if cold and not output.facts.simulated else "",
        survey_events_per_read=ready.terms.events_per_read,
        not_asked=not_asked,
    )
    return facts, identity


def _cold_claim(output: RunOutput, plan: RunPlan, server: ServerView | None) -> str:
    """What of the run's prompts was cached that no prefix shared within the run explains."""
    sent = output.requests["index"].to_numpy()
    shared = explained_hits(plan.input_tokens[sent], plan.prefix_tokens[sent], plan.prefix_group[sent])
    if plan.format.text is not None:  # template and opener begin every exact text, and are planned tokens of it
        shared += len(sent) * max(plan.format.text.overhead_tokens, plan.format.text.shared_overhead_tokens)
    return cold_claim(output.requests, server, shared)


def _joined(*texts: str) -> str:
    return "; ".join(text for text in texts if text)
