"""The emulator behind other doors, as a process of its own: a Unix socket, mutual TLS, a proxy.

`python -m tests.fakes.relay DIRECTORY` reads server.pem, server.key and ca.pem from it, writes the heads of requests to
`heads` and prints the doors; it ends when its stdin does.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from loadgen.target.emulated import launch

HIDDEN = "http://hidden.invalid"  # a name that only the proxy knows


@dataclass(frozen=True)
class Doors:
    """Where the emulator is found."""

    unix: str
    tls: str
    proxy: str
    directory: str

    def take_heads(self) -> list[bytes]:
        """Heads of the requests that came through since the last call, in lower case."""
        log = Path(self.directory) / "heads"
        heads = log.read_bytes().split(b"\n\n") if log.exists() else []
        log.write_bytes(b"")
        return heads


@contextmanager
def doors(directory: Path) -> Iterator[Doors]:
    command = [sys.executable, "-m", "tests.fakes.relay", str(directory)]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield Doors(**json.loads(process.stdout.readline()))
        finally:
            process.stdin.close()


async def serve(directory: Path) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(directory / "ca.pem"))
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain(directory / "server.pem", directory / "server.key")
    async with launch("fcfs-fast") as emulator:
        port = int(emulator.url.rsplit(":", 1)[1])

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, asking: bool) -> None:
            with suppress(ConnectionError, ssl.SSLError):
                while data := await reader.read(65536):
                    if asking:
                        with (directory / "heads").open("ab") as log:
                            log.write(data.split(b"\r\n\r\n")[0].lower() + b"\n\n")
                        data = data.replace(b" " + HIDDEN.encode() + b"/", b" /", 1)
                    writer.write(data)
                    await writer.drain()
            writer.close()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(pump(reader, back, asking=True), pump(there, writer, asking=False))

        await asyncio.start_unix_server(handle, directory / "s")
        secure = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
        plain = await asyncio.start_server(handle, "127.0.0.1", 0)
        found = Doors(
            unix=f"unix:{directory / 's'}",
            tls=f"https://localhost:{secure.sockets[0].getsockname()[1]}",
            proxy=f"http://127.0.0.1:{plain.sockets[0].getsockname()[1]}",
            directory=str(directory),
        )
        sys.stdout.write(json.dumps(asdict(found)) + "\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
