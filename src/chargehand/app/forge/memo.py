"""Which issues are being worked on, and how far repositories were looked at: a note in the store.

The log has each act; this note says only where to look, and is written with the claim of an issue.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.codec import decode_as
from chargehand.core.errors import StoreError
from chargehand.store.alerts import FollowerMemo, Followers

_NAME = "forges"
_TRIES = 20
_MOST_DELIVERIES = 2_000


class Story(Struct, frozen=True, kw_only=True):
    """An issue that is worked on by `mission`, the newest of its rounds; `request` is its request, 0 before.

    `login` is the account that claimed it, `begun` the commit whose delivery was begun last.
    """

    mission: str
    account: str
    repository: str
    number: int
    request: int = 0
    login: str = ""
    begun: str = ""

    @property
    def key(self) -> str:
        """The issue in words, unique."""
        return f"{self.account}:{self.repository}#{self.number}"


class ForgeMemo(Struct, frozen=True, kw_only=True):
    """The open stories by key; `looked` has, by account and repository, the latest update seen of an issue.

    That is a time (ISO 8601, UTC). `deliveries` are the ids of the last webhooks: a replayed one is refused.
    `hints` are the repositories that webhooks named since the last look, as ACCOUNT:OWNER/NAME, with "!" if only
    requests are concerned; `hooks` has the addresses of webhooks that were set up, by the names without it.
    """

    stories: dict[str, Story] = {}
    looked: dict[str, str] = {}
    deliveries: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    hooks: dict[str, str] = {}


class ForgeMemos:
    """Reads and changes the note; changes of several processes are made one after the other."""

    def __init__(self, followers: Followers) -> None:
        self._followers = followers

    def load(self) -> ForgeMemo:
        """Return the note. Raises `StoreError`."""
        return _decode(self._followers.load(_NAME).content)

    def change(self, make: Callable[[ForgeMemo], ForgeMemo]) -> ForgeMemo:
        """Write the note that `make` returns for the present one, and return it. Raises `StoreError`."""
        for _ in range(_TRIES):
            kept = self._followers.load(_NAME)
            before = _decode(kept.content)
            after = make(before)
            if after == before or self._followers.save(
                _NAME, FollowerMemo(kept.revision, msgspec.json.encode(after))
            ):
                return after
        raise StoreError("other processes change the note of forges all the time", hint="try again")

    def put(self, story: Story) -> None:
        """Add or replace a story."""
        self.change(lambda memo: replace(memo, stories={**memo.stories, story.key: story}))

    def remove(self, story: Story) -> None:
        """Remove a story, unless another mission has taken the issue since."""

        def without(memo: ForgeMemo) -> ForgeMemo:
            now = memo.stories.get(story.key)
            gone = now is not None and now.mission == story.mission
            return (
                replace(memo, stories={k: v for k, v in memo.stories.items() if k != story.key}) if gone else memo
            )

        self.change(without)

    def begin_delivery(self, mission: str, commit: str) -> bool:
        """Note that a delivery begins; return whether the commit was certainly never delivered before."""
        is_first = False

        def begun(memo: ForgeMemo) -> ForgeMemo:
            nonlocal is_first
            story = next((each for each in memo.stories.values() if each.mission == mission), None)
            is_first = story is not None and story.begun != commit
            if story is None or not is_first:
                return memo
            return replace(memo, stories={**memo.stories, story.key: replace(story, begun=commit)})

        self.change(begun)
        return is_first

    def put_hook(self, repository: str, address: str) -> None:
        """Note the address of a webhook; `repository` is ACCOUNT:OWNER/NAME."""
        self.change(lambda memo: replace(memo, hooks={**memo.hooks, repository: address}))

    def remove_hook(self, repository: str) -> None:
        """Forget the webhook of a repository."""
        self.change(lambda memo: replace(memo, hooks={k: v for k, v in memo.hooks.items() if k != repository}))

    def take_hints(self) -> tuple[str, ...]:
        """Return the hints, and forget them."""
        hints = self.load().hints
        if hints:
            self.change(lambda memo: replace(memo, hints=tuple(each for each in memo.hints if each not in hints)))
        return hints

    def is_new(self, delivery: str, hint: str) -> bool:
        """Note the id of a webhook and the repository it names; return whether the id was not noted before."""
        new = False

        def noted(memo: ForgeMemo) -> ForgeMemo:
            nonlocal new
            new = delivery not in memo.deliveries
            if not new:
                return memo
            hints = tuple(dict.fromkeys((*memo.hints, hint)))
            return replace(memo, deliveries=(*memo.deliveries, delivery)[-_MOST_DELIVERIES:], hints=hints)

        self.change(noted)
        return new


def _decode(content: bytes) -> ForgeMemo:
    try:
        return decode_as(content, ForgeMemo)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ForgeMemo()
