"""Pins the exact schedule, workload and bytes: a change here makes old results incomparable with new ones.

If a new numpy fails these, its distributions changed: state it in the changelog and pin anew. If a change of ours to
prompts or bodies fails them, raise CONTENT_VERSION with it.
"""

from __future__ import annotations

import hashlib

import pytest

from loadgen.common.members import JsonMembers
from loadgen.plan.arrivals import Arrivals
from loadgen.plan.bodies import Bodies
from loadgen.plan.lengths import Lengths, parse_law
from loadgen.plan.plan import make_plan
from loadgen.plan.seeds import derive, salt
from loadgen.plan.types import NS, PlanRequest, RequestFormat, RunPlan, Window

POISSON = Arrivals(kind="poisson")


def make(arrivals: Arrivals = POISSON, form: RequestFormat | None = None) -> RunPlan:
    return make_plan(
        PlanRequest(rate=6.0, root_seed=101, window=Window(warmup_ns=20 * NS, window_ns=120 * NS, tail_ns=60 * NS)),
        arrivals=arrivals,
        lengths=Lengths(
            input=parse_law("lognormal:300,0.8,20..4000"),
            output=parse_law("normal:100,40,1..256"),
            shared_prefix=64,
            prefix_groups=5,
        ),
        format=form or RequestFormat(),
    )


@pytest.mark.parametrize(
    ("arrivals", "count", "sha256"),
    [
        (POISSON, 1252, "a053bed5da6af2da480465a1f84d011fc3de43a39a683df2b0eecc29c6170233"),
        (Arrivals.gamma(shape=0.25), 1260, "cf5ba85899f554c93d0160fdd29e8da087d4db825e04c26b907b3417e86562db"),
        (Arrivals.gamma(shape=4), 1197, "034519d25d7fcf0656405d7a1770d0b9260b4160334f02550230e10916f41b05"),
        (Arrivals(kind="constant"), 1199, "65f0efd6957edb6ec002869975ca2752fe3e370a9e4b0584174062f3f1e86a1a"),
    ],
)
def test_schedule(arrivals: Arrivals, count: int, sha256: str) -> None:
    schedule = make(arrivals).schedule
    assert (len(schedule), schedule.sha256) == (count, sha256)


FORMS = {
    "ids": RequestFormat(),
    "text": RequestFormat(prompt="text", stop="natural", temperature=0.7),
    "chat": RequestFormat(endpoint="chat", prompt="text", stream=False),
}


@pytest.mark.parametrize(
    ("form", "workload_sha256", "bodies_sha256"),
    [
        (
            "ids",
            "9763d01412f791a78c45a9723cfa4b29ef5577c1446f82c089db05b9bb3e13f2",
            "20774b374f7294b7d19947d19e5838c915ae528cb4659866aa2efee13d00d45b",
        ),
        (
            "text",
            "1496830e8a1b004a9b50a2747fd0021e8259832b712ff5fc5a07f92cc03ba3cf",
            "6b982762584c6f1e899b44cdc561845bc7f0aff852e7edaba84792904e4079a4",
        ),
        (
            "chat",
            "a615c78a2e9bf9f3e5b66a26023b16b05c4db38d1d392b6b38406a1acf74bb97",
            "3b4e4f7214f0d29c15e2e7e79994c0620689e645e011fe41f51ed14fde0a3e58",
        ),
    ],
)
def test_workload_and_bytes(form: str, workload_sha256: str, bodies_sha256: str) -> None:
    plan = make(form=FORMS[form])
    bodies = Bodies(plan, JsonMembers.of(model="m"))
    digest = hashlib.sha256(b"".join(bodies.encode(i) for i in range(len(plan)))).hexdigest()
    assert (plan.workload_sha256, digest) == (workload_sha256, bodies_sha256)


def test_seeds_and_salt() -> None:
    assert derive(1, "roots", 3) == (32413117241635, 208508075363090, 15630074062600)
    assert salt("demo", "default", 6.0, 2, 0) == "2ecaa50cfc1259ef"
