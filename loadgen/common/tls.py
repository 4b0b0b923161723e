"""How https is spoken: one context for the load and for all else that is asked of a server."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from loadgen.common.errors import UsageError

__all__ = ["Tls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How https is spoken: files in PEM format, and whether certificates are checked at all."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    insecure: bool = False

    def context(self) -> ssl.SSLContext:
        """The client context. Raises `UsageError` naming the file that cannot be used."""
        for name, file in (("CA", self.ca_file), ("certificate", self.cert_file), ("key", self.key_file)):
            if file is not None and not Path(file).is_file():
                raise UsageError(f"TLS: {name} file {file} does not exist")
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except (ssl.SSLError, OSError):
            files = ", ".join(file for file in (self.ca_file, self.cert_file, self.key_file) if file)
            raise UsageError(f"TLS: {files}: not usable as PEM certificates and key") from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
