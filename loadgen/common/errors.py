"""The exceptions of loadgen; each class says whose fault it is and which exit code it ends with.

    LoadgenError                    70  a bug of ours, unless a subclass says otherwise
     ├── UsageError                  2  the command line, a scenario or an input file is wrong
     │    ├── ScenarioError          2  a scenario key or value, named
     │    └── ResultsError           2  a results directory that cannot be used (another experiment, unwritable, full)
     ├── TargetError                 3  the server is at fault
     │    ├── TargetUnreachable      3  nothing answers there, or not in time
     │    └── TargetUnfit            3  it answers, but not as an OpenAI-compatible server of that model
     ├── ClientLimited               4  this machine cannot offer the load: no verdict
     └── Aborted                     5  the user stopped it; what was measured is kept

The message of a `LoadgenError` is one line for a person: what was wrong, where, what to do.
"""

from __future__ import annotations

__all__ = [
    "Aborted",
    "ClientLimited",
    "LoadgenError",
    "ResultsError",
    "ScenarioError",
    "TargetError",
    "TargetUnfit",
    "TargetUnreachable",
    "UsageError",
]


class LoadgenError(Exception):
    """Base of everything loadgen raises on purpose."""

    exit_code = 70


class UsageError(LoadgenError):
    """The command line or an input file is wrong."""

    exit_code = 2


class ScenarioError(UsageError):
    """A scenario holds an unknown key, an impossible value or a contradiction."""


class ResultsError(UsageError):
    """A results directory cannot be used."""


class TargetError(LoadgenError):
    """The server under test is at fault."""

    exit_code = 3


class TargetUnreachable(TargetError):
    """Nothing answers at the target's address, or not in time."""


class TargetUnfit(TargetError):
    """The target answers, but not as an OpenAI-compatible server of the asked model."""


class ClientLimited(LoadgenError):
    """This machine cannot offer the asked load, so there is no verdict."""

    exit_code = 4


class Aborted(LoadgenError):
    """The user stopped the work; partial results are kept."""

    exit_code = 5
