"""The verdicts: PASS, FAIL or INVALID of one run, and of a rate over its runs (method, sections 5 and 6)."""

from analysis.indicator import misses_allowed
from analysis.judge.rate import judge_rate
from analysis.judge.run import SUMMARISED, fewest_errors, judge_run, mean_error

__all__ = ["SUMMARISED", "fewest_errors", "judge_rate", "judge_run", "mean_error", "misses_allowed"]
