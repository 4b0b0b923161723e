from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
import uvloop

from loadgen.common import timer
from loadgen.send.clock import ClockHealth, LoopClock

MS = 1_000_000
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


async def fired(instants_ms: list[float], cancel: int | None = None) -> tuple[list[int], list[int]]:
    clock = LoopClock()
    clock.start()
    order: list[int] = []
    late_ns: list[int] = []
    done = asyncio.Event()

    def at(number: int, at_ns: int) -> Callable[[], None]:
        def callback() -> None:
            order.append(number)
            late_ns.append(clock.now_ns() - at_ns)
            if len(order) == len(instants_ms) - (cancel is not None):
                done.set()

        return callback

    timers = []
    for number, at_ms in enumerate(instants_ms):
        at_ns = round(at_ms * MS)
        timers.append(clock.call_at(at_ns, at(number, at_ns)))
    if cancel is not None:
        timers[cancel].cancel()
    await asyncio.wait_for(done.wait(), 5)
    clock.close()
    return order, late_ns


@pytest.mark.parametrize("loop_factory", LOOPS)
@pytest.mark.parametrize("kernel_timer", [True, False])
def test_callbacks_come_in_order_and_never_early(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], kernel_timer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel_timer:
        monkeypatch.setattr(timer, "timerfd", lambda: -1)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        order, late_ns = runner.run(fired([20, 3.3, -5, 3.3, 41.7, 20.2], cancel=0))
    assert order == [2, 1, 3, 5, 4]
    assert min(late_ns) >= 0


def test_a_callback_may_set_the_next_one() -> None:
    async def chain() -> list[int]:
        clock = LoopClock()
        clock.start()
        seen: list[int] = []
        done = asyncio.Event()

        def step() -> None:
            seen.append(clock.now_ns())
            if len(seen) == 5:
                done.set()
            else:
                clock.call_at(0, step)

        clock.call_at(0, step)
        await asyncio.wait_for(done.wait(), 5)
        clock.close()
        return seen

    seen = asyncio.run(chain())
    assert len(seen) == 5
    assert seen == sorted(seen)


def test_health_sees_a_suspend_a_steered_clock_and_a_wall_step() -> None:
    before = ClockHealth(monotonic_ns=0, raw_ns=0, boot_ns=0, wall_ns=0)
    s = 1_000_000_000
    assert before.suspended_s(ClockHealth(monotonic_ns=s, raw_ns=s, boot_ns=3 * s, wall_ns=s)) == 2
    later = ClockHealth(monotonic_ns=100 * s, raw_ns=101 * s, boot_ns=100 * s, wall_ns=95 * s)
    assert before.ratio_error(later) == pytest.approx(1 / 101)
    assert before.wall_step_s(later) == -5
    assert before.ratio_error(ClockHealth(monotonic_ns=s // 2, raw_ns=s // 4, boot_ns=0, wall_ns=0)) == 0


def test_health_of_this_machine_is_good() -> None:
    before = ClockHealth.read()
    time.sleep(0.01)
    after = ClockHealth.read()
    assert abs(before.suspended_s(after)) < 0.005
    assert after.monotonic_ns > before.monotonic_ns
