"""From a scenario or a trace to the plan of each run."""

from loadgen.workload.workload import Workload

__all__ = ["Workload"]
