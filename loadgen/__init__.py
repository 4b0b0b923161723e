"""Open-loop load generator and SLO capacity finder for OpenAI-compatible LLM servers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def _companions() -> None:
    """In the repository `analysis` and `traces` lie beside this package: take those, not others of the same name.

    A folder `analysis/` where `python -m loadgen` is run, or another distribution's `traces`, may come first on the
    path. An installed package has them inside, under names of its own, and nothing is done here. Raises `ImportError`
    where another one was imported before.
    """
    here = Path(__file__).resolve().parent
    if (here / "analysis").is_dir():
        return
    for name in ("analysis", "traces"):
        wanted = here.parent / name / "__init__.py"
        other = sys.modules.get(name)
        if other is not None:
            if other.__file__ is None or Path(other.__file__).resolve() != wanted:
                where = other.__file__ or list(other.__path__)
                raise ImportError(f"loadgen needs its own package {name!r} ({wanted.parent}), not that of {where}")
            continue
        spec = importlib.util.spec_from_file_location(name, wanted, submodule_search_locations=[str(wanted.parent)])
        if spec is None or spec.loader is None or not wanted.is_file():
            raise ImportError(f"loadgen is not whole: {wanted.parent} is missing beside it; install it again")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


_companions()
