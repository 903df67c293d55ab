"""Sources of secrets in the user's order, their scopes, commands, mounted and encrypted files."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chargehand.configuration.locations import UserFile
from chargehand.configuration.records import RepositoryFile
from chargehand.configuration.resolve import resolve
from chargehand.core.clock import SteppedClock
from chargehand.core.errors import ChargehandError, ConfigError, RefusedError, UsageError
from chargehand.core.own_config import SecretKeyConfig, SecretsConfig, SecretSourceConfig
from chargehand.core.ports import UNDECIDED, KeyUse
from chargehand.credentials.credentials import Credentials, StoreFailedError, open_credentials
from chargehand.credentials.scoped import ScopedKeys
from chargehand.reports.reading import StateReader

NAME = "OPENAI_API_KEY"
VALUE = "sk-0123456789abcdef"
FILE = Path("/home/me/config.toml")


def opened(
    place: Path,
    keys: dict[str, SecretKeyConfig],
    clock: SteppedClock | None = None,
    order: tuple[str, ...] = (),
    environ: dict[str, str] | None = None,
    **sources: SecretSourceConfig,
) -> Credentials:
    settings = SecretsConfig(order=order, sources=sources, keys=keys)
    return open_credentials({} if environ is None else environ, place, lambda: settings, clock)


def program(*words: str, **more: Any) -> SecretSourceConfig:
    return SecretSourceConfig(kind="command", command=words, **more)


def fails(kind: type[ChargehandError], code: str, work: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        work()
    assert caught.value.code == code
    assert caught.value.hint
    shown = "".join(traceback.format_exception(caught.value)) + caught.value.hint
    assert VALUE not in shown
    return shown


def test_sources_are_asked_in_the_order_of_the_user_or_of_the_entry(tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / NAME).write_text("of-the-mounted-file\n")
    (mounted / NAME).chmod(0o444)
    files = SecretSourceConfig(kind="files", path=str(mounted))
    environ = {NAME: "of-the-environment"}
    plain = opened(tmp_path, {}, environ=environ, files=files)
    assert plain.get(NAME) == "of-the-environment"
    first = opened(tmp_path, {}, order=("files", "environment"), environ=environ, files=files)
    assert (first.get(NAME), first.describe(NAME)) == ("of-the-mounted-file", "files")
    entry = {NAME: SecretKeyConfig(sources=("environment", "files"))}
    own = opened(tmp_path, entry, order=("files",), environ=environ, files=files)
    assert own.get(NAME) == "of-the-environment"
    del environ[NAME]
    assert own.get(NAME) == "of-the-mounted-file"
    assert first.get("OTHER_KEY") is None


def test_one_name_can_have_another_source_for_each_project_role_and_provider(tmp_path: Path) -> None:
    keys = {
        "web": SecretKeyConfig(name=NAME, sources=("say",), path="of-the-web", projects=("p-1", "/srv/web/")),
        "review": SecretKeyConfig(name=NAME, sources=("say",), path="of-reviews", roles=("reviewer",)),
        "host": SecretKeyConfig(name=NAME, sources=("say",), path="of-a-host", providers=("models.example",)),
    }
    made = opened(tmp_path, keys, say=program("printf", "%s", "{path}"))

    def given(**use: Any) -> str:
        found = made.find(NAME, KeyUse(**use))
        assert found is not None
        return found.value

    assert given(projects=("p-1",), role="reviewer", provider="openai") == "of-the-web"
    assert given(projects=("p-9", "/srv/web")) == "of-the-web"
    assert given(projects=("p-2",), role="reviewer") == "of-reviews"
    assert given(projects=("p-2",), role="developer", provider="models.example") == "of-a-host"


@pytest.mark.parametrize(
    ("scope", "use"),
    [
        ({"projects": ("p-1",)}, KeyUse(projects=("p-2", "/srv/p-1"))),
        ({"projects": ("p-1",)}, KeyUse()),
        ({"roles": ("reviewer",)}, KeyUse(projects=("p-1",), role="developer")),
        ({"providers": ("openai",)}, KeyUse(provider="evil.example")),
        ({"providers": ("openai",), "projects": ("p-1",)}, KeyUse(projects=("p-1",), provider="openai.example")),
    ],
)
def test_a_use_outside_of_the_scope_is_refused_and_logged_and_no_source_is_asked(
    scope: dict[str, Any], use: KeyUse, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = tmp_path / "asked"
    say = program("sh", "-c", f"touch {asked}; printf {VALUE}")
    made = opened(tmp_path, {NAME: SecretKeyConfig(sources=("say",), **scope)}, environ={NAME: VALUE}, say=say)
    keys = ScopedKeys(made, use)
    with caplog.at_level(logging.WARNING):
        said = fails(RefusedError, "secret_scope", lambda: keys.get(NAME))
    assert f"{NAME} may not be used by" in said
    assert f"secret {NAME} refused" in caplog.text
    assert keys.accesses[NAME].refused == "secret_scope"
    assert keys.values == {}
    assert not asked.exists()
    # Whether it exists may be found out before the use is decided.
    found = made.find(NAME, UNDECIDED)
    assert found is not None
    assert found.value == VALUE


@pytest.mark.parametrize(
    ("script", "kind", "code", "said"),
    [
        (f"echo {VALUE} >&2; exit 3", StoreFailedError, "secret_store", "exit code 3"),
        (f"printf {VALUE}; kill -9 $$", StoreFailedError, "secret_store", "exit code -9"),
        (f"printf {VALUE}; exec sleep 60", StoreFailedError, "secret_store", "did not end within 0.3 s"),
        (f"printf {VALUE}; exec >&-; exec sleep 60", StoreFailedError, "secret_store", "did not end within"),
        (f"while :; do echo {VALUE}; done", ConfigError, "secret_source", "more than 256 kB"),
        (f"printf '{VALUE}\\377'", ConfigError, "secret_source", "not UTF-8"),
        (f"printf '{VALUE}\\n{VALUE}'", UsageError, "secret_invalid", "several lines"),
    ],
    ids=["exit", "killed", "slow", "closed", "endless", "bytes", "lines"],
)
def test_a_command_that_fails_gives_no_value_and_none_of_its_words(
    script: str, kind: type[ChargehandError], code: str, said: str, tmp_path: Path
) -> None:
    seconds = 0.3 if "sleep" in script else 10.0
    say = program("sh", "-c", script, timeout=seconds)
    made = opened(tmp_path, {NAME: SecretKeyConfig(sources=("say",))}, environ=dict(os.environ), say=say)
    assert said in fails(kind, code, lambda: made.get(NAME))


def test_a_command_that_is_ended_takes_its_children_with_it(tmp_path: Path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    # The child holds the pipe open until it ends.
    say = program("sh", "-c", f"sleep 60 > {held} & wait", timeout=0.3)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    try:
        made = opened(tmp_path, {NAME: SecretKeyConfig(sources=("say",))}, environ=dict(os.environ), say=say)
        fails(StoreFailedError, "secret_store", lambda: made.get(NAME))
        os.set_blocking(reader, True)
        assert os.read(reader, 1) == b"", "every writer has ended"
    finally:
        os.close(reader)


def test_a_command_can_print_a_document_or_nothing(tmp_path: Path) -> None:
    say = program("printf", "%s", json.dumps({"key": VALUE, "n": 1}))
    made = opened(
        tmp_path, {NAME: SecretKeyConfig(sources=("say",), field="key")}, environ=dict(os.environ), say=say
    )
    assert made.get(NAME) == VALUE
    for field, problem in (("n", "no text"), ("missing", "")):
        key = {NAME: SecretKeyConfig(sources=("say", "environment"), field=field)}
        other = opened(tmp_path, key, environ={**os.environ, NAME: "next-in-order"}, say=say)
        if problem:
            assert problem in fails(ConfigError, "secret_source", lambda other=other: other.get(NAME))
        else:
            assert other.get(NAME) == "next-in-order"
    silent = opened(tmp_path, {NAME: SecretKeyConfig(sources=("say",))}, say=program("true"))
    assert silent.get(NAME) is None
    gone = opened(tmp_path, {NAME: SecretKeyConfig(sources=("say",))}, say=program("/no/such/program"))
    assert "cannot start" in fails(ConfigError, "secret_source", lambda: gone.get(NAME))


def test_mounted_files_follow_links_and_refuse_what_is_no_private_file(tmp_path: Path) -> None:
    place = tmp_path / "mounted"
    (place / "..2026").mkdir(parents=True)
    (place / "..data").symlink_to("..2026")
    (place / "key").symlink_to("..data/key")
    (place / "..2026" / "key").write_text(f"{VALUE}\r\n")
    (place / "..2026" / "key").chmod(0o644)
    files = SecretSourceConfig(kind="files", path=str(place))
    made = opened(tmp_path, {NAME: SecretKeyConfig(sources=("files",), path="key")}, files=files)
    assert made.get(NAME) == VALUE
    # Kubernetes replaces the directory behind the link.
    (place / "..2027").mkdir()
    (place / "..2027" / "key").write_text("the-next-value")
    (place / "..2027" / "key").chmod(0o600)
    (place / "fresh").symlink_to("..2027")
    (place / "fresh").rename(place / "..data")
    assert made.get(NAME) == "the-next-value"
    (place / "..2027" / "key").chmod(0o666)
    assert "changed by others" in fails(ConfigError, "secret_source", lambda: made.get(NAME))
    (place / "key").unlink()
    assert made.get(NAME) is None
    os.mkfifo(place / "key")
    assert "no regular file" in fails(ConfigError, "secret_source", lambda: made.get(NAME))


def encrypted(place: Path, environ: dict[str, str], **more: Any) -> Credentials:
    box = SecretSourceConfig(kind="encrypted", **more)
    return opened(place, {NAME: SecretKeyConfig(sources=("box",))}, environ=environ, box=box)


@pytest.mark.parametrize("by", ["passphrase", "key_file"])
def test_an_encrypted_file_holds_no_plain_value_and_notices_every_change(by: str, tmp_path: Path) -> None:
    place, file = tmp_path / "config", tmp_path / "config" / "secrets.encrypted"
    key = tmp_path / "key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    more: dict[str, Any] = {"secret": "BOX_PASSPHRASE"} if by == "passphrase" else {"key_file": str(key)}
    environ = {"BOX_PASSPHRASE": "correct horse battery"}
    made = encrypted(place, environ, **more)
    assert made.get(NAME) is None
    assert made.set(NAME, VALUE, "box") == f"the encrypted file {file}"
    assert encrypted(place, environ, **more).get(NAME) == VALUE
    content = file.read_bytes()
    assert (VALUE.encode() in content, NAME.encode() in content, file.stat().st_mode & 0o777) == (
        False,
        False,
        0o600,
    )
    made.set("OTHER_KEY", "another-value", "box")
    assert (made.get(NAME), made.get("OTHER_KEY")) == (VALUE, None), "the order does not name the file"
    document = json.loads(file.read_bytes())
    # Another salt costs a slow derivation.
    for field in ("nonce", "content", "derivation", "format", *(["salt"] if by == "key_file" else [])):
        text = document[field]
        changed = {"derivation": "hkdf" if text == "scrypt" else "scrypt", "format": "x"}.get(field)
        first = "A" if text[0] != "A" else "B"
        file.write_text(json.dumps({**document, field: changed or first + text[1:]}))
        with pytest.raises(ConfigError):
            made.get(NAME)
    file.write_text(json.dumps(document))
    assert made.get(NAME) == VALUE
    environ["BOX_PASSPHRASE"] = "another"
    key.write_bytes(os.urandom(32))
    assert "another passphrase" in fails(ConfigError, "secret_source", lambda: made.get(NAME))
    key.chmod(0o644)
    del environ["BOX_PASSPHRASE"]
    hint = "BOX_PASSPHRASE is not set" if by == "passphrase" else "only you can read"
    assert hint in fails(ConfigError, "secret_source", lambda: made.get(NAME))


def test_other_sources_are_not_written(tmp_path: Path) -> None:
    made = opened(tmp_path, {}, say=program("true"))
    assert "only read" in fails(UsageError, "secret_read_only", lambda: made.set(NAME, VALUE, "say"))
    assert "unknown source" in fails(ChargehandError, "not_found", lambda: made.set(NAME, VALUE, "nowhere"))


def test_a_live_key_is_read_again_when_its_time_is_over_when_forced_and_when_it_was_rejected(
    tmp_path: Path,
) -> None:
    clock = SteppedClock()
    store = tmp_path / "store"
    store.write_text("first-value")
    keys = {NAME: SecretKeyConfig(sources=("say",), ttl=60.0)}
    made = opened(tmp_path / "config", keys, clock, environ=dict(os.environ), say=program("cat", str(store)))
    scoped = ScopedKeys(made, KeyUse())
    key = scoped.live(NAME)
    assert key.known() is None
    assert (key.read(), key.known()) == ("first-value", "first-value")
    store.write_text("second-value")
    assert key.read() == "first-value", "kept for its time"
    clock.advance(61)
    assert (key.known(), key.read()) == (None, "second-value")
    store.write_text("third-value")
    assert key.read(rejected="second-value") == "third-value"
    store.write_text("fourth-value")
    opened(tmp_path / "config", {}).rotate(NAME)  # of another process
    assert (key.known(), key.read()) == (None, "fourth-value")
    assert list(scoped.values.values()) == ["first-value", "second-value", "third-value", "fourth-value"]
    assert list(scoped.accesses) == [NAME]
    assert set(made.every(NAME)) >= set(scoped.values.values()), "all are left out of logs"


SOURCE = '[secrets.sources.corp]\nkind = "vault"\naddress = "https://vault.example"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SOURCE.replace("vault.example", "user:pw@vault.example"), "not a plain http address"),
        ('[secrets]\norder = ["corp"]\n', "no source of secrets named 'corp'"),
        ('[secrets.keys.OPENAI_API_KEY]\nsources = ["crp"]\n' + SOURCE, "did you mean 'corp'"),
        ('[secrets.keys.web]\nprojects = ["x"]\n', "names no secret"),
        ('[secrets.sources.corp]\nkind = "vault"\n', "has no address"),
        ('[secrets.sources.corp]\nkind = "command"\n', "has no command"),
        ('[secrets.sources.corp]\nkind = "vaul"\n', "did you mean 'vault'"),
        ('[secrets.sources.environment]\nkind = "files"\n', "name of a built-in source"),
        ('[secrets.sources.corp]\nkind = "keyring"\n', "needs no entry"),
        ('[secrets]\norder = ["vault"]\n', "no source of secrets named 'vault'"),
        ("[secrets.sources]\ncorp = 3\n", "is a table, not 3"),
        ("[secrets]\nkeys = 3\n", "is a table of tables"),
        ('[secrets.keys.OPENAI_API_KEY]\nttl = "soon"\n', "must be a duration"),
        ("[secrets]\nodrer = []\n", "did you mean 'order'"),
    ],
)
def test_a_wrong_table_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(user=UserFile(path=FILE, text=text))
    assert said in f"{caught.value.message} {caught.value.hint}"
    assert str(FILE) in caught.value.message


def test_the_table_is_read_with_its_entries_and_their_places() -> None:
    text = f'[secrets]\norder = ["corp", "environment"]\n{SOURCE}[secrets.keys.OPENAI_API_KEY]\nttl = "1m"\n'
    found = resolve(user=UserFile(path=FILE, text=text))
    assert found.config.secrets == SecretsConfig(
        order=("corp", "environment"),
        sources={"corp": SecretSourceConfig(kind="vault", address="https://vault.example")},
        keys={NAME: SecretKeyConfig(ttl=60.0)},
    )
    assert found.origins["secrets.keys.OPENAI_API_KEY.ttl"] == str(FILE)


@pytest.mark.parametrize(
    "text", [SOURCE, '[secrets]\norder = ["file"]\n', '[secrets.keys.OPENAI_API_KEY]\nroles = ["x"]\n']
)
def test_a_repository_and_the_environment_name_no_source_and_no_scope(text: str) -> None:
    theirs = RepositoryFile(content=text.encode(), directory=Path("/r"), commit="c")
    with pytest.raises(
        ConfigError, match="counts only in your own configuration file: it decides who gets your keys"
    ):
        resolve(repository=theirs, is_trusted=lambda digest: True)
    with pytest.raises(ConfigError):
        resolve(environ={"CHARGEHAND_SECRETS_ORDER": "file"})
    with pytest.raises(ConfigError):
        resolve(environ={"CHARGEHAND_SECRETS_KEYS_X_ROLES": "any"}, user=UserFile(path=FILE, text=SOURCE))


def test_the_examples_of_the_page_are_valid() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/secrets.md").read_text()
    text = "\n".join(re.findall(r"```toml\n(.*?)```", page, re.DOTALL))
    found = resolve(user=UserFile(path=FILE, text=text)).config.secrets
    assert {each.kind for each in found.sources.values()} == {"vault", "encrypted"}
    assert sorted(found.keys) == ["ANTHROPIC_API_KEY", "reviews", "web"]


def test_the_users_file_counts_as_it_is_at_each_moment(tmp_path: Path) -> None:
    place = tmp_path / "chargehand"
    place.mkdir()
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "CHARGEHAND_HOME": str(tmp_path / "home"), NAME: VALUE}
    keys = StateReader(environ=environ, cwd=tmp_path).credentials
    assert keys.get(NAME) == VALUE
    (place / "config.toml").write_text('[secrets.keys.OPENAI_API_KEY]\nroles = ["reviewer"]\n')
    fails(RefusedError, "secret_scope", lambda: keys.get(NAME))
    (place / "config.toml").write_text("wrong = = wrong\n")
    assert keys.get(NAME) == VALUE, "without the table the rest of the file does not matter"
    (place / "config.toml").write_text('[secrets.keys.OPENAI_API_KEY]\nrolls = ["reviewer"]\n')
    fails(ConfigError, "config_invalid", lambda: keys.get(NAME))


def test_a_process_that_read_a_secret_leaves_no_core_dump_and_is_closed_to_other_processes(tmp_path: Path) -> None:
    script = (
        "import ctypes, os, pathlib, resource, signal, sys\n"
        "from chargehand.credentials.credentials import open_credentials\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        f"assert open_credentials({{'{NAME}': '{VALUE}'}}, pathlib.Path('.')).get('{NAME}')\n"
        "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), resource.getrlimit(resource.RLIMIT_CORE)[0], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGQUIT)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("0 0\n", -signal.SIGQUIT)
    assert [path.name for path in tmp_path.iterdir()] == []
