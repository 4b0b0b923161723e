"""What a server can do, as text for the user and fields for the program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.plan.types import RequestFormat
from loadgen.target.salt import SaltSupport

__all__ = ["Capabilities", "Finding", "weakest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One feature: what was found, what is used instead of what is missing, and the effect on the result."""

    feature: str
    found: str
    instead: str = ""
    cost: str = ""
    surprise: bool = True  # the user did not ask for it to be so

    @property
    def note(self) -> str:
        """A sentence for the experiment's notes; empty if nothing is missing."""
        if not self.cost:
            return ""
        return f"{self.feature}: {self.found}; " + (f"{self.instead}; " if self.instead else "") + self.cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a handful of requests showed of how a server takes requests.

    `format` is the asked one, less what the server refuses and can safely do without. `needs` says, in sentences that
    name the option, what the user must choose first: it would change the work that is measured. `unfit` says what
    cannot be measured on it at all, `events_per_read` how many token events one read of the stream brought. `requests`
    were sent.
    """

    format: RequestFormat
    salt: SaltSupport
    findings: tuple[Finding, ...]
    needs: tuple[str, ...] = ()
    unfit: tuple[str, ...] = ()
    requests: int = 0
    events_per_read: float | None = None  # token events in a socket read of a lone stream; None: no stream was seen

    @property
    def notes(self) -> list[str]:
        """What every result of this server has to say beyond what its user asked for."""
        return [finding.note for finding in self.findings if finding.note and finding.surprise]


def weakest(servers: Sequence[Capabilities]) -> Capabilities:
    """Of several servers behind one target; each was asked with the format of the one before it."""
    return Capabilities(
        format=servers[-1].format,
        salt=min((one.salt for one in servers), key=lambda salt: (salt.accepted, salt.proved)),
        findings=tuple(dict.fromkeys(finding for one in servers for finding in one.findings)),
        needs=tuple(dict.fromkeys(need for one in servers for need in one.needs)),
        unfit=tuple(dict.fromkeys(fault for one in servers for fault in one.unfit)),
        requests=sum(one.requests for one in servers),
        events_per_read=max((one.events_per_read for one in servers if one.events_per_read is not None), default=None),
    )
