"""The event loop of a command."""

from __future__ import annotations

import asyncio

import pytest

from loadgen.common.loop import run_loop


def test_ctrl_c_before_the_loop_is_there_is_no_complaint_about_a_coroutine(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio, "run", interrupted)
    monkeypatch.setattr(asyncio, "Runner", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_loop(asyncio.sleep(0))
    assert [str(warning.message) for warning in recwarn] == []
