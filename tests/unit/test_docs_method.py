"""The method's page has the sections that code and messages refer to by number."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/method.md").read_text()


def test_the_sections_are_numbered_one_to_thirteen() -> None:
    assert [int(number) for number in re.findall(r"^## (\d+)\. ", PAGE, re.MULTILINE)] == list(range(1, 14))


def test_every_section_that_is_referred_to_is_there() -> None:
    files = [path for package in ("loadgen", "analysis", "traces") for path in (ROOT / package).rglob("*.py")]
    text = "".join(path.read_text() for path in files) + PAGE
    lists = re.findall(r"sections? (\d+(?:(?:, | and )\d+)*)", text)
    referred = {int(number) for found in lists for number in re.findall(r"\d+", found)}
    assert referred
    assert referred <= set(range(1, 14))


def test_modules_and_pages_it_names_exist() -> None:
    for name in re.findall(r"`((?:loadgen|analysis|traces)/[\w/]+\.py)`", PAGE):
        assert (ROOT / name).exists(), name
    for link in re.findall(r"\]\(([\w.]+\.md)[)#]", PAGE):
        assert (ROOT / "docs" / link).exists(), link
