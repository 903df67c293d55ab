"""Heads of each mission's log, kept outside the database to detect a cut tail: last and signed ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from chargehand.core.clock import Clock
from chargehand.core.codec import decode_as
from chargehand.core.errors import NotFoundError, StoreError, UsageError
from chargehand.store.database.connection import Database, corrupt, hold_lock, typed_errors
from chargehand.store.database.files import sync_directory, write_whole
from chargehand.store.database.keys import KeyFiles, PublicKey

_SIGNED = re.compile(r"(?P<mission>[a-z0-9][a-z0-9-]{0,63})\.(?P<seq>[1-9][0-9]{0,17})\.signed")
_DOMAIN = "chargehand signed head v1"
_LONGEST = 4096  # bytes; ours have some 500
_SHOWN = 80
_Id = Annotated[str, Meta(pattern=r"\A[a-z0-9][a-z0-9-]{0,63}\Z")]
_Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_Seal = Annotated[str, Meta(pattern=r"\A[0-9a-f]{128}\Z")]
_Time = Annotated[str, Meta(pattern=r"\A[0-9T:.+-]{20,40}\Z")]


class LogHead(Struct, frozen=True, kw_only=True):
    """A line that was on disk: its number and its hash."""

    seq: int
    hash: str


class SignedFile(Struct, frozen=True, kw_only=True):
    """A file that should hold a signed head: the line that its name states, and its content."""

    mission: str
    seq: int
    content: bytes


class _Wire(Struct, frozen=True, tag_field="format", tag="chargehand-head-1", forbid_unknown_fields=True):
    mission: _Id
    seq: Annotated[int, Meta(ge=1)]
    hash: _Digest
    time: _Time
    key: _Digest
    signature: _Seal


class SignedHead(Struct, frozen=True, kw_only=True):
    """A signed hash of log line `seq` of a mission, with signer and time.

    `time` is ISO 8601 in UTC and claimed by the signer; `key` is the id of the public key, `signature` the Ed25519
    signature over `message`; `hash`, `key` and `signature` are lower-case hex.
    """

    mission: str
    seq: int
    hash: str
    time: str
    key: str
    signature: str

    @property
    def message(self) -> bytes:
        """The signed bytes: a line that names their meaning, then one line for each field."""
        fields = (_DOMAIN, self.mission, str(self.seq), self.hash, self.time, self.key)
        return "".join(f"{field}\n" for field in fields).encode()

    def signed_by(self, key: PublicKey) -> bool:
        """Return whether `key` is the named key and the signature is valid."""
        return key.id == self.key and key.verifies(bytes.fromhex(self.signature), self.message)

    def encode(self) -> bytes:
        """Return the head as one line of JSON, for a git note or a file."""
        return msgspec.json.encode(_Wire(**asdict(self)))

    @classmethod
    def decode(cls, content: bytes) -> SignedHead:
        """Read a head written by `encode`; its signature is not checked here.

        Raises `UsageError` (`head_malformed`).
        """
        try:
            if len(content) > _LONGEST:
                raise ValueError(f"it has {len(content)} bytes")
            wire = decode_as(content, _Wire)
        except ValueError as error:  # msgspec's own errors are ValueErrors too
            shown = content[:_SHOWN].decode(errors="replace")
            raise UsageError(
                f"{shown!r} is not a signed head: {error}",
                code="head_malformed",
                hint="`git notes --ref chargehand show COMMIT` prints the one of a promoted commit",
            ) from error
        return cls(**asdict(wire))


class Heads:
    """Files in `<home>/heads`: `<mission>` for its last durable head, `<mission>.<seq>.signed` for signed ones.

    Written only after a durable append, never before: a head that is ahead of the log means loss, so a power cut
    must not cause that. Each signed head has its own file: it exists whole or not at all, no write can tear
    another one, and it is never rewritten.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.directory = home / "heads"

    def put(self, mission: str, *, head: LogHead) -> None:
        """Write a head. Raises `OSError`."""
        write_whole(self.directory / mission, f"{head.seq} {head.hash}\n".encode(), durable=True)

    def get(self, mission: str) -> LogHead | None:
        """Return the kept head, or `None` if it is missing. Raises `ValueError` for a file that is not a head."""
        try:
            text = (self.directory / mission).read_bytes().decode()
        except FileNotFoundError:
            return None
        seq, digest = text.split()
        return LogHead(seq=int(seq), hash=digest)

    def put_signed(self, mission: str, seq: int, *, content: bytes) -> None:
        """Write a signed head; it is on disk when this returns. Raises `OSError`."""
        write_whole(self.directory / f"{mission}.{seq}.signed", content, durable=True)
        # The directory of the heads may have been created for this one.
        sync_directory(self.home)

    def get_signed(self, mission: str, seq: int) -> bytes | None:
        """Return the signed head of one line, or `None` if it is missing. Raises `OSError`."""
        try:
            return (self.directory / f"{mission}.{seq}.signed").read_bytes()
        except FileNotFoundError:
            return None

    def unsigned(self) -> frozenset[str]:
        """Return the ids of the missions with a kept head of their last durable line."""
        return frozenset(name for name in self._names() if not _SIGNED.fullmatch(name))

    def signed(self, mission: str | None = None) -> tuple[SignedFile, ...]:
        """Return the signed heads of one mission or of all, by mission and line. Raises `OSError`."""
        files = []
        for name in self._names():
            match = _SIGNED.fullmatch(name)
            if match and mission in (None, match["mission"]):
                content = (self.directory / name).read_bytes()
                files.append(SignedFile(mission=match["mission"], seq=int(match["seq"]), content=content))
        return tuple(sorted(files, key=lambda file: (file.mission, file.seq)))

    def missions(self) -> frozenset[str]:
        """Return the ids of the missions with a head of either kind."""
        matches = map(_SIGNED.fullmatch, self._names())
        return self.unsigned() | {match["mission"] for match in matches if match}

    def _names(self) -> list[str]:
        if not self.directory.is_dir():
            return []
        # Temporary files that a crash of `write_whole` left are not heads.
        return [path.name for path in self.directory.iterdir() if not path.name.startswith(".tmp-")]


def sign_head(database: Database, mission: str, *, clock: Clock) -> SignedHead:
    """Sign and keep the head of the last line of `mission` that is known to be on disk.

    Raises `NotFoundError` for an unknown mission, `StoreError`: `head_missing` if no durable append was made,
    `log_changed` if the log no longer has that line, `key_missing`, `key_damaged`, and those of the disk.
    """
    heads = Heads(database.home)
    # One lock for the key and all heads: two processes must not make two keys, or sign one line twice.
    with hold_lock(database.home, "signing.lock"), typed_errors(database.home):
        head = _find_durable_head(database, heads, mission)
        # Created only now: a mission that cannot be signed must not leave a key behind.
        key = KeyFiles(database.home).ensure()
        content = heads.get_signed(mission, head.seq)
        if content is not None:
            try:
                kept = SignedHead.decode(content)
            except UsageError as error:
                raise corrupt(database.home, error.message) from error
            if kept.hash != head.hash or not kept.signed_by(key.public):
                raise _log_changed(mission, head.seq, "was signed before with another hash or by another key")
            return kept
        now = clock.now().isoformat(timespec="microseconds")
        blank = SignedHead(
            mission=mission, seq=head.seq, hash=head.hash, time=now, key=key.public.id, signature=""
        )
        signed = replace(blank, signature=key.sign(blank.message).hex())
        heads.put_signed(mission, head.seq, content=signed.encode() + b"\n")
        return signed


def _find_durable_head(database: Database, heads: Heads, mission: str) -> LogHead:
    """Return the kept head of the last line on disk, after checking that the log agrees with it."""
    try:
        head = heads.get(mission)
    except ValueError as error:
        raise corrupt(database.home, f"the head of {mission!r} is not a head: {error}") from error
    with database.read() as connection:
        if connection.execute("SELECT 1 FROM missions WHERE id = ?", (mission,)).fetchone() is None:
            raise NotFoundError(f"there is no mission {mission!r}", hint="`chargehand mission list` shows them")
        if head is None:
            raise StoreError(
                f"no line of mission {mission!r} is known to be on the disk",
                code="head_missing",
                hint="its next durable line brings the head back; `chargehand audit verify` looks at the rest",
            )
        line = "SELECT hash FROM events WHERE mission = ? AND seq = ?"
        found = connection.execute(line, (mission, head.seq)).fetchone()
    if found is None or found[0] != head.hash:  # a signature would make a change of the log look like the truth
        raise _log_changed(mission, head.seq, "differs from the stored head")
    return head


def _log_changed(mission: str, seq: int, what: str) -> StoreError:
    return StoreError(
        f"line {seq} of mission {mission!r} {what}",
        code="log_changed",
        hint="`chargehand audit verify` names the changes",
    )
