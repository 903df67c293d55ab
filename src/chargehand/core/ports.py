"""Seams between packages that must not import each other; `app` wires them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

# A registered name, as are those of tiers, agents and providers (`core.registry`).
DriverName = str


class Bind(Struct, frozen=True, kw_only=True):
    """A host path shown at `target` inside the sandbox."""

    source: Path
    target: str
    writable: bool = False


class MountPlan(Struct, frozen=True, kw_only=True):
    """A workspace as data: made by `workspace`, mounted by `sandbox` in its own private mount namespace.

    Either `lowers` (topmost first) with `upper` and `work` on one file system, mounted as an overlay at
    `target`, or `plain`, a directory bound writable at `target`. With `read_only` nothing inside can write there.
    `binds` come on top, in order. As root every directory belongs to `sandbox_ids()`, otherwise to the user that
    runs Chargehand.
    """

    target: str
    lowers: tuple[Path, ...] = ()
    upper: Path | None = None
    work: Path | None = None
    plain: Path | None = None
    binds: tuple[Bind, ...] = ()
    read_only: bool = False


class Ledger(Protocol):
    """The money of one attempt in USD: reserved before each call to a model, settled after it.

    Reserved money counts as spent for every limit until it is settled. Methods may block on the store.
    """

    def left(self, *, settled: bool = False) -> float | None:
        """Return how much may still be reserved: the minimum over all limits, `None` without limits.

        With `settled`, calls under way count as free of charge: a limit with money left then is not used up.
        """
        ...

    def reserve(self, call: str, usd: float) -> tuple[Spent, ...]:
        """Reserve money for a call; return the limits of which four fifths are used for the first time.

        A reserve outlives this process, and a power cut once `secure` has returned. Raises `ExhaustedError`
        (`budget`, or `budget_reserved` if the call may fit once calls under way are settled), which names the
        limit; then nothing is reserved.
        """
        ...

    # Apart from `reserve`: the provider works meanwhile, and one wait for the disk serves all callers.
    def secure(self) -> None:
        """Wait until all earlier reserves are on disk."""
        ...

    def settle(self, call: str, usd: float | None, *, most: float | None = None) -> None:
        """Book the cost of a call instead of its reserve.

        `None` (unknown) keeps the reserve, or books `most`, its highest possible cost, if that is less.
        """
        ...


class Spent(Struct, frozen=True, kw_only=True):
    """The used part of a limit (`attempt`, `task`, `mission`, `user` or `day`), in USD; reserves included."""

    limit: str
    limit_usd: float
    spent_usd: float


class KeySource(Protocol):
    """The source of the keys of model providers; keys never leave the host."""

    def get(self, name: str) -> str | None:
        """Return the secret with that name, `None` if missing."""
        ...


class KeyUse(Struct, frozen=True, kw_only=True):
    """The use of a secret, which its scope must admit: a project by its id and path, a role, a provider.

    `provider` is a registered provider at its own address, otherwise a host. Empty means none: an alert has no
    role. `None` means not decided yet, and is admitted: only to find out whether the secret exists.
    """

    projects: tuple[str, ...] | None = ()
    role: str | None = ""
    provider: str | None = ""


BY_NONE = KeyUse()
# To find out whether a secret exists, before its use is decided.
UNDECIDED = KeyUse(projects=None, role=None, provider=None)


class LiveKey(Protocol):
    """A key that its source may replace while a program runs."""

    def known(self) -> str | None:
        """Return the value if it is still valid, `None` if it has to be read; does not block."""
        ...

    def read(self, rejected: str | None = None) -> str | None:
        """Return the value, `None` if missing; not `rejected` if its source has another one.

        May block for seconds. Raises the errors of its source.
        """
        ...


class ArtifactSink(Protocol):
    """A store for large outputs; events carry their ids."""

    def put(self, content: bytes, *, kind: str, mission: str | None = None) -> str:
        """Store `content` and return its artifact id; equal content of one mission gets an equal id."""
        ...


class CodeMap(Protocol):
    """The repository map of a project, for agents. Methods may block for seconds; call them in a thread."""

    @property
    def has_library(self) -> bool:
        """Whether `search_library` can be answered: the person collected repositories."""
        ...

    def render(self, tree: str, request: str, /) -> str:
        """Return the files of a tree that a request is likely about, as text; "" if there is no map in time."""
        ...

    def answer(self, tree: str, question: str, words: Sequence[str], /, *, directory: str = "") -> str:
        """Return the answer to `search_code`, `who_calls`, `impact_of` or `tests_for` about a tree, as text.

        Paths are relative to `directory` of the tree or to its top, or absolute in the sandbox.
        `search_library` is about the collected repositories, whatever the tree.
        Raises `NotFoundError` (`symbol_not_found`), and `InfrastructureError` if the map cannot be made.
        """
        ...


class PendingSignIn(Struct, frozen=True, kw_only=True):
    """A sign-in that a browser began at a provider, which returns it to `callback` (a URL) with `state`.

    `verifier` is the secret of PKCE (RFC 7636); the provider is given its `challenge`.
    """

    state: str
    verifier: str
    callback: str

    @property
    def challenge(self) -> str:
        """The `code_challenge` of the method S256."""
        # Imported here: every command loads this module, and few servers have a provider.
        import base64
        import hashlib

        return base64.urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).decode().rstrip("=")

    @property
    def nonce(self) -> str:
        """The nonce that binds an ID token to this sign-in; it reveals nothing about the verifier."""
        import hashlib

        return hashlib.sha256(f"nonce {self.verifier}".encode()).hexdigest()


class ExternalSubject(Struct, frozen=True, kw_only=True):
    """A person that a provider identified: `subject` is unique at `issuer`, and never given to another person.

    `login` is a name for people, `mail` an address that the provider verified, `session` the provider's session of
    the sign-in; each is "" if unknown.
    """

    issuer: str
    subject: str
    login: str = ""
    mail: str = ""
    groups: tuple[str, ...] = ()
    session: str = ""


class SignInProvider(Protocol):
    """Signs people in elsewhere: a browser goes to the URL of `start`, and returns to the callback of the sign-in.

    The methods may block; the server calls them in threads. `title` names the provider on the login page, `issuer`
    is that of all its subjects.
    """

    title: str

    @property
    def issuer(self) -> str:
        """The issuer of all subjects."""
        ...

    def start(self, pending: PendingSignIn, /) -> str:
        """Return the URL for the browser, with state, callback, nonce and the challenge of the verifier."""
        ...

    def finish(self, parameters: Mapping[str, str], pending: PendingSignIn, /) -> ExternalSubject:
        """Return the subject that the callback's parameters prove; the state was checked before.

        Raises `RefusedError` (`login_failed`) if they prove none, `InfrastructureError` without an answer.
        """
        ...

    def end_session(self, return_to: str) -> str | None:
        """Return the provider's page that ends its own session and returns to a URL, `None` without one."""
        ...

    def read_logout(self, token: str) -> tuple[str, str]:
        """Return subject and session whose sign-ins a logout token of the provider ends; either may be "".

        Raises as `finish`.
        """
        ...


# The host user that owns bases and uppers when Chargehand runs as root: in a range that no distribution or service
# manager assigns (61000 is between systemd's unused 60578 and its dynamic users from 61184).
SANDBOX_UID = 61000


def sandbox_ids() -> tuple[int, int]:
    """Return the (uid, gid) that owns a sandbox's writable files: ours, or `SANDBOX_UID` when we are root."""
    uid = os.geteuid()
    return (SANDBOX_UID, SANDBOX_UID) if uid == 0 else (uid, os.getegid())
