"""What is known of a key of the configuration."""

from __future__ import annotations

from msgspec import Struct


class KeySpec(Struct, frozen=True):
    """The documentation, format and merge rule of one configuration key; read from `Annotated`.

    `meet` says how the repository's value is merged: `min` (numbers), `intersect` or `union` (lists), `repo` (the
    repository may set it freely), `user` (only the user's file, the environment or the command line may; the
    repository's value needs trust) or `file` (only the user's file may). `form` is the format of a text or number:
    `command`, `setup` (a command or empty), `argv`, `area`, `path`, `host`, `url`, `http`, `name`, `secret` (the
    name of a secret), `variable` (NAME=value), `model`, `agent` (as after --agent), `mail`, `server` (HOST or
    HOST:PORT), `login`, `seconds`, `percent`, `share` (between 0 and 1), `tokens`, `money` (0 is free) or `budget`
    (more than 0). `empty` says what an empty list of an `intersect` key allows: `all` or `none`. `host` marks a
    program that runs on the host if there is no sandbox: the repository's value then needs trust. `names` is the
    kind of registered names that a text must be one of, followed by further accepted words.
    """

    doc: str
    meet: str = "user"
    form: str = ""
    empty: str = "none"
    host: bool = False
    names: str = ""
