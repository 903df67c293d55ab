"""AWS Secrets Manager by moto's own server, a process on loopback."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

CREDENTIALS = {
    "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_ACCESS_KEY_ID": "AKIATEST",
    "AWS_SECRET_ACCESS_KEY": "of-the-account",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextlib.contextmanager
def open_aws() -> Iterator[str]:
    """Start moto's program while the block runs, and return its address."""
    program = Path(sys.executable).with_name("moto_server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(program), "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
        assert server.stderr is not None
        # Its lines about requests must not fill the pipe.
        drain = threading.Thread(target=server.stderr.read)
        try:
            assert any("Running on" in line for line in server.stderr)
            drain.start()
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(20)
            if drain.ident:
                drain.join()
