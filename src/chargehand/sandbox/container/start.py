"""Becomes the client of a container engine; run as a program by the host's isolated interpreter.

Standard input is our end of the exec server's socket. podman passes it on as descriptor 3 (`--preserve-fds`); a
client of docker copies bytes between it and the container's standard input and output. As root, podman is started
in a new mount namespace, in which the workspace and the sized file systems are mounted first: a killed engine
leaves no mount. The request is one JSON document, the first argument. Standard library only.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import resource
import sys
import types
from pathlib import Path

SOCKET_FD = 3
_LAUNCHER = Path(__file__).parents[1] / "process/sandbox_launcher.py"


def main() -> None:
    """Make the requested mounts, place the socket, become the client; exit 125 with the reason on stderr."""
    request = json.loads(sys.argv[1])
    try:
        if request["mounts"]:
            # By its file: this interpreter is isolated and cannot import our packages.
            loader = importlib.machinery.SourceFileLoader("sandbox_launcher", str(_LAUNCHER))
            launcher = types.ModuleType(loader.name)
            loader.exec_module(launcher)
            launcher.enter_namespaces(os.geteuid(), os.getegid())
            launcher.stage(request["mounts"], request["staging"])
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        nothing = os.open(os.devnull, os.O_RDWR)
        if request["stdio"]:
            os.dup2(0, 1)
        else:
            os.dup2(0, SOCKET_FD)
            os.set_inheritable(SOCKET_FD, True)
            os.dup2(nothing, 0)
            os.dup2(nothing, 1)
        # The working directory of this process could not be unmounted or removed.
        os.chdir("/")
        os.execve(request["argv"][0], request["argv"], dict(os.environ))
    except OSError as error:
        os.write(2, f"launcher: {error}\n".encode())
    os._exit(125)


if __name__ == "__main__":
    main()
