"""What a user asks for: settings, checked before anything is sent."""

from loadgen.scenario.model import Scenario

__all__ = ["Scenario"]
