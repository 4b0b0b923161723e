"""Find the capacity of a simulated server, print what happens meanwhile, and write the results to a directory.

    python examples/find_capacity.py results/from-python

For a server of your own put its URL in place of `virtual:llama8b-80gb`.
"""

from __future__ import annotations

import asyncio
import sys

import loadgen


async def main(directory: str) -> None:
    scenario = loadgen.Scenario(
        target="virtual:llama8b-80gb",
        rate="2..18",
        slo=("ttft:800ms", "tpot:50ms"),
        window="2m",
        runs=2,
        width="10%",
    )
    sweep = loadgen.sweep(scenario, directory)
    async for event in sweep:
        match event:
            case loadgen.Note(text=text):
                print(text)
            case loadgen.RunSealed(run=run, verdict=verdict):
                print(f"{run.title}: {verdict.status}, {verdict.attainment:.1%} of {verdict.cohort} requests in time")
    answer = (await sweep).answer
    print(f"{answer['outcome']}: {answer['capacity'] or 0:.3g} requests/s, {', '.join(answer['notes'])}")


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1]))
    except loadgen.LoadgenError as error:
        sys.exit(f"find_capacity: {error}")
