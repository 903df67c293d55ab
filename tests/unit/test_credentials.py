"""Secrets: their sources and their storage; no output shows one."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples

from chargehand.core.errors import ChargehandError, ConfigError, NotFoundError, UsageError
from chargehand.core.ports import KeySource
from chargehand.credentials.credentials import Credentials, SecretName, SecretsFile, open_credentials

NAME = "OPENAI_API_KEY"
VALUE = "sk-0123456789abcdef"
keyring = pytest.importorskip("keyring")


@pytest.fixture(autouse=True)
def _no_keyring() -> Iterator[None]:
    """Run every test as on a machine without a desktop."""
    before = keyring.core._keyring_backend
    keyring.set_keyring(keyring.backends.fail.Keyring())
    yield
    keyring.core._keyring_backend = before


@pytest.fixture
def ring() -> Keyring:
    made = Keyring()
    keyring.set_keyring(made)
    return made


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "config" / "chargehand"


class Keyring(keyring.backend.KeyringBackend):
    """A lockable keyring in memory."""

    priority = 1

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[tuple[str, str], str] = {}
        self.locked: Exception | None = None

    def _open(self) -> None:
        if self.locked is not None:
            raise self.locked

    def get_password(self, service: str, username: str) -> str | None:
        self._open()
        return self.held.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self._open()
        self.held[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        self._open()
        if (service, username) not in self.held:
            raise keyring.errors.PasswordDeleteError("there is none")
        del self.held[service, username]


def shown(error: BaseException) -> str:
    """Return all text of an error that a person or a log could see."""
    hint = error.hint if isinstance(error, ChargehandError) else ""
    return "".join(traceback.format_exception(error)) + str(error) + hint


def fails(kind: type[ChargehandError], code: str, work: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        work()
    assert caught.value.code == code
    assert caught.value.hint
    assert VALUE not in shown(caught.value)
    return caught.value.message + " " + caught.value.hint


def test_reading_missing_secrets_returns_no_values_and_creates_no_files(directory: Path) -> None:
    source: KeySource = open_credentials({}, directory)
    assert source.get(NAME) is None
    kept = open_credentials({}, directory)
    assert (kept.describe(NAME), kept.names()) == (None, ())
    assert not directory.exists()


def test_secrets_in_the_file_are_read_changed_and_removed(directory: Path) -> None:
    one = open_credentials({}, directory)
    assert one.set(NAME, VALUE + "\n") == f"the file {directory / 'secrets.json'}"
    one.set("OTHER_KEY", "é" * 100)
    two = open_credentials({}, directory)
    assert (two.get(NAME), two.describe(NAME)) == (VALUE, "file")
    assert two.names() == (SecretName(NAME, "file"), SecretName("OTHER_KEY", "file"))
    two.set(NAME, "another")
    assert one.get(NAME) == "another"
    one.remove(NAME)
    assert two.get(NAME) is None
    assert two.get("OTHER_KEY") == "é" * 100


def test_the_file_is_private_and_no_temporary_files_are_left(directory: Path) -> None:
    before = os.umask(0)
    try:
        open_credentials({}, directory).set(NAME, VALUE)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes == {"secrets.json": 0o600, "secrets.lock": 0o600}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_the_environment_precedes_the_keyring_and_the_keyring_the_file(directory: Path, ring: Keyring) -> None:
    environ: dict[str, str] = {}
    kept = open_credentials(environ, directory)
    ring.locked = keyring.errors.KeyringLocked("locked")
    kept.set(NAME, "of-the-file")
    assert (kept.get(NAME), kept.describe(NAME)) == ("of-the-file", "file")
    ring.locked = None
    ring.held["chargehand", NAME] = "of-the-keyring"
    assert (kept.get(NAME), kept.describe(NAME)) == ("of-the-keyring", "keyring")
    environ[NAME] = "of-the-environment"
    assert (kept.get(NAME), kept.describe(NAME)) == ("of-the-environment", "environment")
    assert kept.names() == ((NAME, "environment"),)
    environ[NAME] = ""
    assert kept.get(NAME) == "of-the-keyring"


def test_a_keyring_that_works_holds_the_value_and_the_file_only_the_name(directory: Path, ring: Keyring) -> None:
    kept = open_credentials({}, directory)
    where = kept.set(NAME, VALUE)
    assert where.startswith("the system's keyring (")
    assert ring.held == {("chargehand", NAME): VALUE}
    assert json.loads((directory / "secrets.json").read_text()) == {"secrets": {}, "keyring": [NAME]}
    assert kept.names() == ((NAME, "keyring"),)
    kept.remove(NAME)
    assert ring.held == {}
    assert kept.names() == ()


@pytest.mark.parametrize("has_keyring", [True, False])
def test_a_secret_is_replaced_only_if_it_is_the_expected_one(
    request: pytest.FixtureRequest, directory: Path, has_keyring: bool
) -> None:
    if has_keyring:
        request.getfixturevalue("ring")
    kept, other = open_credentials({}, directory), open_credentials({}, directory)
    assert not kept.replace(NAME, VALUE, "new")
    assert kept.get(NAME) is None
    other.set(NAME, VALUE)
    assert not kept.replace(NAME, "another", "new")
    assert kept.get(NAME) == VALUE
    assert kept.replace(NAME, VALUE, "new")
    assert other.get(NAME) == "new"
    other.remove(NAME)
    assert not kept.replace(NAME, "new", "newer")
    assert other.names() == ()


def test_a_changed_secret_moves_from_the_file_to_an_available_keyring(directory: Path) -> None:
    open_credentials({}, directory).set(NAME, VALUE)
    ring = Keyring()
    keyring.set_keyring(ring)
    open_credentials({}, directory).set(NAME, "newer")
    assert "newer" not in (text := (directory / "secrets.json").read_text())
    assert VALUE not in text
    assert ring.held == {("chargehand", NAME): "newer"}


@pytest.mark.parametrize(
    "locked",
    [keyring.errors.KeyringLocked("no"), RuntimeError("no"), OSError("no"), keyring.errors.InitError("no")],
)
def test_a_locked_keyring_is_ignored_except_for_its_secrets(
    directory: Path, ring: Keyring, locked: Exception
) -> None:
    kept = open_credentials({}, directory)
    kept.set(NAME, VALUE)
    ring.locked = locked
    assert kept.get(NAME) is None
    assert kept.names() == ((NAME, None),)
    # Otherwise an older value would return with the keyring, and hide the new one.
    assert NAME in fails(ConfigError, "secret_keyring", lambda: kept.set(NAME, VALUE + "2"))
    fails(ConfigError, "secret_keyring", lambda: kept.remove(NAME))
    assert kept.set("OTHER_KEY", VALUE).startswith("the file ")
    ring.locked = None
    assert kept.names() == ((NAME, "keyring"), ("OTHER_KEY", "file"))


def test_secrets_of_a_missing_keyring_cannot_be_set_or_removed(directory: Path, ring: Keyring) -> None:
    open_credentials({}, directory).set(NAME, VALUE)
    keyring.set_keyring(keyring.backends.fail.Keyring())
    kept = open_credentials({}, directory)
    fails(ConfigError, "secret_keyring", lambda: kept.set(NAME, VALUE))
    fails(ConfigError, "secret_keyring", lambda: kept.remove(NAME))


@pytest.mark.parametrize("priority", [-1, 0, 0.5])
def test_a_keyring_backend_with_a_low_priority_is_ignored(directory: Path, ring: Keyring, priority: float) -> None:
    ring.priority = priority
    assert open_credentials({}, directory).set(NAME, VALUE).startswith("the file ")
    assert ring.held == {}


@pytest.mark.parametrize(
    "backend", ["no.such.module.Keyring", "json.NoSuch", "keyring.backends.Windows.WinVaultKeyring"]
)
def test_a_keyring_that_is_set_up_wrongly_is_passed_over(
    directory: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyring.core, "_keyring_backend", None)
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", backend)
    assert open_credentials({}, directory).set(NAME, VALUE).startswith("the file ")


def test_without_the_package_the_file_does(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.split(".")[0] == "keyring"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "keyring", None)
    kept = open_credentials({}, directory)
    assert kept.set(NAME, VALUE).startswith("the file ")
    assert kept.get(NAME) == VALUE
    kept.remove(NAME)
    assert kept.get(NAME) is None


def test_the_keyring_package_is_not_imported_for_environment_secrets(directory: Path) -> None:
    script = f"""
import sys, pathlib
from chargehand.credentials.credentials import open_credentials
kept = open_credentials({{"{NAME}": "x"}}, pathlib.Path(sys.argv[1]))
assert kept.get("{NAME}") == "x"
assert "keyring" not in sys.modules
"""
    ran = subprocess.run([sys.executable, "-c", script, directory], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o644, 0o666])
def test_a_file_that_is_open_to_others_is_refused_with_the_way_out(directory: Path, mode: int) -> None:
    kept = open_credentials({}, directory)
    kept.set(NAME, VALUE)
    path = directory / "secrets.json"
    path.chmod(mode)
    for work in (lambda: kept.get(NAME), kept.names, lambda: kept.set(NAME, VALUE), lambda: kept.remove(NAME)):
        assert f"chmod 600 {path}" in fails(ConfigError, "secrets_file", work)
    path.chmod(0o400)
    assert kept.get(NAME) == VALUE


def test_a_secrets_file_that_is_not_regular_is_refused(directory: Path, tmp_path: Path) -> None:
    kept = open_credentials({}, directory)
    kept.set(NAME, VALUE)
    path = directory / "secrets.json"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert "is a symbolic link" in fails(ConfigError, "secrets_file", lambda: kept.get(NAME))
    assert "is a symbolic link" in fails(ConfigError, "secrets_file", lambda: kept.set(NAME, VALUE))
    assert json.loads((tmp_path / "elsewhere").read_text())["secrets"] == {NAME: VALUE}
    path.unlink()
    os.mkfifo(path, 0o600)
    assert "is not a regular file" in fails(ConfigError, "secrets_file", lambda: kept.get(NAME))
    path.unlink()
    path.mkdir(mode=0o700)
    assert "is not a regular file" in fails(ConfigError, "secrets_file", lambda: kept.get(NAME))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        VALUE.encode(),
        b'"%s"' % VALUE.encode(),
        b'{"OPENAI_API_KEY": "%s"}' % VALUE.encode(),
        b'{"secrets": {"OPENAI_API_KEY": ["%s"]}}' % VALUE.encode(),
        b'{"secrets": {"OPENAI_API_KEY": "%s\xff"}}' % VALUE.encode(),
        b"[" * 100_000,
        b" " * (4 * 1024 * 1024 + 1),
    ],
)
def test_a_damaged_file_is_refused_without_showing_its_content(directory: Path, content: bytes) -> None:
    directory.mkdir(parents=True)
    path = directory / "secrets.json"
    path.write_bytes(content)
    path.chmod(0o600)
    kept = open_credentials({}, directory)
    fails(ConfigError, "secrets_file", lambda: kept.get(NAME))
    fails(ConfigError, "secrets_file", lambda: kept.set(NAME, "x"))
    assert path.read_bytes() == content


def test_secrets_edited_in_the_file_are_validated(directory: Path) -> None:
    directory.mkdir(parents=True)
    path = directory / "secrets.json"
    path.touch(0o600)
    kept = open_credentials({}, directory)
    path.write_text(json.dumps({"secrets": {NAME: f"{VALUE}\nx"}}))
    assert NAME in fails(UsageError, "secret_invalid", lambda: kept.get("OTHER_KEY"))
    path.write_text(json.dumps({"secrets": {NAME: VALUE}}))
    assert kept.get(NAME) == VALUE


def test_a_place_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    kept = open_credentials({}, tmp_path / "file")
    assert kept.get(NAME) is None
    fails(ConfigError, "secrets_file", lambda: kept.set(NAME, VALUE))


@pytest.mark.parametrize("name", ["", "A", "openai", "1KEY", "_KEY", "A-B", "A B", "É_KEY", "A" * 65, "KEY\n"])
def test_an_invalid_name_is_refused(directory: Path, name: str) -> None:
    kept = open_credentials({name: VALUE}, directory)
    for work in (
        lambda: kept.get(name),
        lambda: kept.describe(name),
        lambda: kept.set(name, VALUE),
        lambda: kept.remove(name),
    ):
        fails(UsageError, "secret_invalid", work)
    with pytest.raises(UsageError):
        kept.get("x")
    assert kept.set("A" * 64, VALUE)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "\n",
        "  ",
        f"{VALUE}\n\n",
        f"{VALUE}\nsecond",
        f"{VALUE}\r\nX-Header: 1",
        f"{VALUE}\0",
        f"{VALUE}\x1b[2J",
        f"{VALUE}\x85",
        f"{VALUE}\udc80",
        VALUE * 1000,
    ],
)
def test_an_invalid_value_is_refused_and_not_stored(directory: Path, value: str, ring: Keyring) -> None:
    kept = open_credentials({}, directory)
    assert NAME in fails(UsageError, "secret_invalid", lambda: kept.set(NAME, value))
    assert not directory.exists()
    assert ring.held == {}
    if value:
        environment = open_credentials({NAME: value + "x" if value == "\n" else value}, directory)
        fails(UsageError, "secret_invalid", lambda: environment.get(NAME))


@settings(max_examples=examples(40), deadline=None)
@given(value=st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1).filter(str.strip))
def test_any_valid_value_is_returned_unchanged(tmp_path_factory: pytest.TempPathFactory, value: str) -> None:
    directory = tmp_path_factory.getbasetemp() / "any-value"
    open_credentials({}, directory).set(NAME, value + "\r\n")
    assert open_credentials({}, directory).get(NAME) == value


def test_no_representation_shows_a_value(directory: Path, ring: Keyring) -> None:
    kept = open_credentials({NAME: VALUE}, directory)
    kept.set("OTHER_KEY", VALUE)
    loaded = SecretsFile(directory / "secrets.json").load()
    ring.locked = keyring.errors.KeyringLocked(VALUE)
    kept.set("THIRD_KEY", VALUE)
    third = SecretsFile(directory / "secrets.json").load()
    assert third.secrets == {"THIRD_KEY": VALUE}
    for each in (kept, loaded, third, kept.names(), kept._file, kept._keyring):
        assert VALUE not in f"{each!r} {each}"
    fails(ConfigError, "secret_keyring", lambda: kept.set("OTHER_KEY", VALUE))


def test_removing_a_secret_that_is_not_stored_is_an_error(directory: Path) -> None:
    kept = open_credentials({"IN_ENVIRONMENT": VALUE}, directory)
    kept.set(NAME, VALUE)
    assert NAME in fails(NotFoundError, "not_found", lambda: kept.remove("OTHER_KEY"))
    assert "unset" in fails(NotFoundError, "not_found", lambda: kept.remove("IN_ENVIRONMENT"))
    assert kept.get(NAME) == VALUE


def test_concurrent_writes_keep_all_secrets(directory: Path) -> None:
    def work(number: int) -> None:
        kept = open_credentials({}, directory)
        for turn in range(5):
            kept.set(f"KEY_{number}_{turn}", f"{number}-{turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept: Credentials = open_credentials({}, directory)
    assert {each.name: kept.get(each.name) for each in kept.names()} == {
        f"KEY_{number}_{turn}": f"{number}-{turn}" for number in range(4) for turn in range(5)
    }


def test_a_failed_write_leaves_the_file_unchanged(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = open_credentials({}, directory)
    kept.set(NAME, VALUE)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space" in fails(ConfigError, "secrets_file", lambda: kept.set(NAME, "newer"))
    monkeypatch.undo()
    assert kept.get(NAME) == VALUE
    assert {path.name for path in directory.iterdir()} == {"secrets.json", "secrets.lock"}
