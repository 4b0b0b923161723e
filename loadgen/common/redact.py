"""What a server says, without the secrets we sent it: some servers repeat a key that they refuse."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["REDACTED", "redacted", "secrets_of"]

REDACTED: Final = "[redacted]"
_SHORTEST: Final = 6  # a shorter value is no secret, and would tear words that have nothing to do with it
_SCHEMES: Final = frozenset({"basic", "bearer", "digest", "negotiate"})  # a header's first word that is no secret
_CUT: Final = 4  # characters of a secret at the end of a text that was cut


def secrets_of(headers: Mapping[str, str]) -> tuple[str, ...]:
    """What must not come back: the headers' values without a scheme, and the words in them, the longest first."""
    found: set[str] = set()
    for value in headers.values():
        scheme, _, rest = value.partition(" ")
        secret = rest.strip() if scheme.lower() in _SCHEMES else value
        found |= {part for part in (secret, *secret.split()) if len(part) >= _SHORTEST}
    return tuple(sorted(found, key=lambda secret: (-len(secret), secret)))


def redacted(text: str, secrets: Iterable[str]) -> str:
    """The text with each secret replaced, also one of which only the beginning is left at the end of the text."""
    if not text:  # as of every good answer
        return text
    for secret in secrets:
        text = text.replace(secret, REDACTED)
        for length in range(len(secret) - 1, _CUT - 1, -1):
            if text.endswith(secret[:length]):
                text = text[:-length] + REDACTED
                break
    return text
