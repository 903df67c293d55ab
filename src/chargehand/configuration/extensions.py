"""Extensions: implementations that installed distributions offer as entry points, off until enabled."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from chargehand.core.registry import Registered, use_extensions


def enable_extensions(distributions: Sequence[str] | None) -> None:
    """Let the registries of this process use the entry points of these distributions only.

    `None` enables nothing and disables nothing: the configuration is resolved without the user's file.
    """
    use_extensions(InstalledExtensions(distributions or ()), replace=distributions is not None)


class InstalledExtensions:
    """The entry points `chargehand.KIND`, read when first asked for; a `core.registry.Extensions`.

    Nothing is read while no distribution is enabled and no unknown name is asked about.
    """

    def __init__(self, distributions: Sequence[str]) -> None:
        self._enabled = distributions
        self._wanted = {_normal_name(each) for each in distributions}
        self._offers: dict[str, tuple[Registered, ...]] = {}

    def enabled(self, group: str) -> Sequence[Registered]:
        """Return the offers of the enabled distributions."""
        if not self._wanted:
            return ()
        return [each for each in self._all(group) if _normal_name(each.distribution) in self._wanted]

    def explain(self, group: str, name: str) -> str:
        """Return the line of configuration that enables a name; "" if no installed distribution offers it."""
        offers = [each.distribution for each in self._all(group) if each.name == name]
        if not offers:
            return ""
        enabled = json.dumps([*self._enabled, offers[0]])
        return f"the installed {offers[0]!r} offers it: add `enabled = {enabled}` to [extensions] in your own file"

    def _all(self, group: str) -> tuple[Registered, ...]:
        if group not in self._offers:
            # At the point of use: most commands never need it.
            from importlib.metadata import entry_points

            self._offers[group] = tuple(
                Registered(each.name, each.value, f"of {each.dist.name}", each.dist.name)
                for each in entry_points(group=f"chargehand.{group}")
                if each.dist is not None
            )
        return self._offers[group]


def _normal_name(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()
