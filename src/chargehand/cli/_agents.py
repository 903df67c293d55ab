"""`chargehand agent …`."""

from __future__ import annotations

import shlex
from pathlib import Path

from chargehand.app import App
from chargehand.cli._configuration import configuration_here
from chargehand.cli._output import Output


def list_agents(out: Output, *, repo: Path | None) -> int:
    """Write the configured agents and where each comes from."""
    with App.open() as app:
        resolved = configuration_here(app, repo)
    agents = [
        {
            "name": name,
            "kind": agent.kind,
            "command": agent.command,
            "origin": resolved.origins.get(f"agents.{name}.command", ""),
        }
        for name, agent in sorted(resolved.config.agents.items())
    ]
    out.document({"agents": agents})
    if not agents:
        out.text("no agent is configured")
        out.text('keep one with  chargehand config set agents.NAME.command \'["PROGRAM", "ARG"]\'')
        out.text('or name one for a run with  --agent "command:PROGRAM ARG"')
        return 0
    rows = [
        (name, agent.kind, shlex.join(agent.command), resolved.origins.get(f"agents.{name}.command", ""))
        for name, agent in sorted(resolved.config.agents.items())
    ]
    out.table(("NAME", "KIND", "COMMAND", "FROM"), rows)
    return 0
