"""Who the server is: the facts that must not change while it is measured, and their difference in words.

An identity is a flat dict of strings, its keys `N.name` for the N-th URL, so that it can be stored, hashed and compared
as it is. Only listed settings are taken from /server_info: the rest of that page may hold secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from loadgen.target.http import Http, Unreachable, shown
from loadgen.target.metrics import scrape

__all__ = ["changed", "identify"]

_SETTINGS: Final[dict[str, tuple[str, ...]]] = {
    "model_config": ("dtype", "quantization", "enforce_eager", "max_model_len"),
    "parallel_config": ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
                        "enable_expert_parallel"),
    "scheduler_config": ("max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill", "max_num_queued_reqs",
                         "policy", "async_scheduling", "stream_interval"),
}  # fmt: skip
_STARTED: Final = "started"


async def identify(http: Http, model: str) -> dict[str, str]:
    """The facts of one server, without the URL's number; what it does not tell is left out."""
    facts = {"url": http.base, "model": model}
    card = next((card for card in await _cards(http) if card.get("id") == model), {})
    for name in ("root", "max_model_len"):
        if card.get(name) is not None:
            facts[name] = shown(str(card[name]))
    version = await _json(http, "/version")
    if version.get("version") is not None:
        facts["version"] = shown(str(version["version"]))
    reading = await scrape(http)
    if reading is not None:
        if reading.started is not None:
            facts[_STARTED] = f"{reading.started:.2f}"
        for name, value in sorted(reading.labels("vllm:cache_config_info").items()):
            facts[f"cache.{name}"] = shown(value)
    config = (await _json(http, "/server_info?config_format=json")).get("vllm_config")
    for section, names in _SETTINGS.items():
        held = config.get(section) if isinstance(config, dict) else None
        for name in names:
            if isinstance(held, dict) and name in held:
                facts[f"{section.removesuffix('_config')}.{name}"] = shown(str(held[name]))
    return facts


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """What differs between two identities, in words; empty if nothing does."""
    said: list[str] = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        number, name = key.split(".", 1)
        where = before.get(f"{number}.url", after.get(f"{number}.url", f"target {number}"))
        if old is None or new is None:
            said.append(f"{where}: {name} {'appeared' if old is None else 'is no longer told'} ({new or old})")
        elif name == _STARTED:
            said.append(f"{where}: the server restarted (its process started {float(new) - float(old):+.0f} s apart)")
        else:
            said.append(f"{where}: {name} was {old}, is {new}")
    return "; ".join(said)


async def _json(http: Http, path: str) -> dict[str, Any]:
    """The JSON object at a path, or an empty one."""
    try:
        answer = await http.get(path)
    except Unreachable:
        return {}
    parsed = answer.json() if answer.status == 200 else None
    return parsed if isinstance(parsed, dict) else {}


async def _cards(http: Http) -> list[dict[str, Any]]:
    data = (await _json(http, "/v1/models")).get("data")
    return [card for card in data if isinstance(card, dict)] if isinstance(data, list) else []
