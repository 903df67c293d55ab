"""The registered kinds of forges."""

from __future__ import annotations

from chargehand.core.registry import Registry
from chargehand.forges.contract import ForgeKind

FORGES: Registry[ForgeKind] = Registry("forges", "forge")
FORGES.register("local", "chargehand.forges.local:KIND", "a directory of this machine, for trials and tests")
FORGES.register("gitea", "chargehand.forges.gitea:KIND", "Gitea and Forgejo")
FORGES.register("github", "chargehand.forges.github:KIND", "GitHub and GitHub Enterprise")
FORGES.register("gitlab", "chargehand.forges.gitlab:KIND", "GitLab")
