"""What a mission waits for a person, or the clock, to say."""

from __future__ import annotations

from msgspec import Struct

from chargehand.core.records import Reason


class Question(Struct, frozen=True, kw_only=True):
    """Something a person was asked, and the answer once there is one; `tree` is what it is bound to.

    With `until` it is no more than waiting for the quota of `provider`, and the clock answers then.
    """

    id: str
    text: str
    options: tuple[str, ...]
    tree: str
    attempt: str | None
    answer: str | None = None
    until: str = ""
    provider: str = ""
    identity: str = ""

    @property
    def reason(self) -> Reason:
        """Why the mission waits where it waits for quota."""
        return quota_reason(self.provider, self.until)


def quota_reason(provider: str, until: str) -> Reason:
    """Return why a mission waits for quota; `until` is ISO 8601 in UTC."""
    message = f"waiting for quota of {provider} until {until[:19].replace('T', ' ')} UTC"
    return Reason(code="quota_exhausted", message=message)
