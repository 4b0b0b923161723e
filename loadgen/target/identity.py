"""The server's identity: facts that must not change during the measurement, and their differences in words.

An identity is a flat dict of strings, its keys `N.name` for the N-th URL, so that it can be stored, hashed and compared
as it is. Only listed settings are taken from /server_info: the rest of that page may hold secrets.

Behind one URL there may be a load balancer, so the version and the process are asked for over several new connections.
Servers of different versions are a target that changes, whenever one looks. Several of the same version are not, but
whether one of them restarted cannot be seen from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from analysis.text import bounded
from loadgen.target.answers import ServerInfo, listed_models, server_info, server_version
from loadgen.target.http import Http
from loadgen.target.metrics import Scrape, scrape

__all__ = ["changed", "environment", "identify", "version"]

_INFO_TIMEOUT_S: Final = 60.0  # the first answer of vLLM's page waits for other programs that it asks
_STARTED, _VERSION, _MIXED, _SEVERAL = "started", "version", "mixed", "several"
_BLOCKS, _BLOCKS_OFF = "cache.num_gpu_blocks", 0.02  # what memory profiling finds differs from start to start
_VIEWS: Final = 3  # new connections: round robin shows two servers for certain, chance in three cases of four


async def identify(http: Http, model: str) -> dict[str, str]:
    """The facts of one server, without the URL's number; what it does not tell is left out.

    Raises `Unreachable` where it does not answer: a server that is gone must not pass for one that tells nothing.
    """
    facts = {"url": http.base, "model": model}
    answer = await http.get("/v1/models")
    listed = listed_models(answer) if answer.status == 200 else None
    facts |= next((dict(card.facts) for card in listed or () if card.name == model), {})
    views = [await _view(http) for _ in range(_VIEWS)]
    versions = sorted({reported for reported, _ in views if reported})
    if versions:
        facts[_VERSION] = " and ".join(versions)
    if len(versions) > 1:
        facts[_MIXED] = f"servers of different versions answer behind one URL ({facts[_VERSION]})"
    starts = {reading.started for _, reading in views if reading is not None and reading.started is not None}
    if len(starts) == 1:
        facts[_STARTED] = f"{starts.pop():.2f}"
    elif starts:
        facts[_SEVERAL] = "several servers answer behind one URL: a restart of one of them cannot be seen"
    reading = views[0][1]
    if reading is not None:
        for name, value in sorted(reading.labels("vllm:cache_config_info").items()):
            facts[f"cache.{name}"] = bounded(value)
    return facts | dict((await _info(http)).settings)


async def version(http: Http) -> str:
    """The server's version; empty if it does not tell. Raises `Unreachable`."""
    answer = await http.optional("/version")
    reported = server_version(answer) if answer is not None and answer.status == 200 else None
    return "" if reported is None else bounded(reported)


async def environment(http: Http) -> dict[str, str]:
    """The server's machine and libraries as it tells of them itself, `env.` before each name; empty if it does not.

    Raises `Unreachable`.
    """
    return dict((await _info(http)).environment)


def changed(before: Mapping[str, str], after: Mapping[str, str], *, restarted: bool = False) -> str:
    """What differs between two identities, in words; empty if nothing does.

    With `restarted` another process is not a difference, nor is a cache that came out a little larger or smaller. A URL
    never is: it is where the user said, or where an emulator of our own happens to listen. Different versions behind
    one URL are one, even if both identities tell of the same.
    """
    said: list[str] = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        number, name = key.split(".", 1)
        mixed = after.get(f"{number}.{_MIXED}", before.get(f"{number}.{_MIXED}"))
        where = before.get(f"{number}.url", after.get(f"{number}.url", f"target {number}"))
        if name == _MIXED:
            said.append(f"{where}: {mixed}")
        elif old == new or name in ("url", _SEVERAL) or (name == _VERSION and mixed is not None):
            continue
        elif name == _STARTED:
            several = f"{number}.{_SEVERAL}" in before.keys() | after.keys()
            if not restarted and not several:
                said.append(f"{where}: {_restart(old, new)}")
        elif restarted and name == _BLOCKS and _near(old, new):
            continue
        elif old is None or new is None:
            said.append(f"{where}: {name} {'appeared' if old is None else 'disappeared'} ({new or old})")
        else:
            said.append(f"{where}: {name} was {old}, is {new}")
    return "; ".join(said)


def _near(old: str | None, new: str | None) -> bool:
    try:
        before, after = float(old or ""), float(new or "")
    except ValueError:
        return False
    return abs(after - before) <= _BLOCKS_OFF * before


def _restart(old: str | None, new: str | None) -> str:
    if old is None or new is None:
        return f"its start time {'appeared' if old is None else 'disappeared'}"
    apart_s = float(new) - float(old)
    if apart_s < 0:
        return f"another server answers than before (its process is {-apart_s:.0f} s older)"
    return f"the server restarted (its process started {apart_s:+.0f} s apart)"


async def _view(http: Http) -> tuple[str, Scrape | None]:
    """Version and metrics of whoever answers a new connection."""
    async with replace(http, _client=None) as fresh:
        return await version(fresh), await scrape(fresh)


async def _info(http: Http) -> ServerInfo:
    answer = await http.optional("/server_info?config_format=json", timeout_s=_INFO_TIMEOUT_S)
    return server_info(answer) if answer is not None and answer.status == 200 else ServerInfo()
