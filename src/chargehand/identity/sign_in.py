"""Sign-in at an external provider: subjects of accounts, and the way of a browser to the provider and back.

The browser begins with a random state and a cookie. The provider returns it with the state, which is valid once,
for 10 minutes, and only together with the cookie. It then gets a code that its page exchanges for a session within
a minute: the session's secret is never in a URL. People without an account are refused, unless the rules of the
provider admit them: then an account is made. Accounts are found by issuer and subject, never by name or mail.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from datetime import timedelta

from msgspec import Struct

from chargehand.core.errors import RefusedError, UsageError
from chargehand.core.ports import ExternalSubject, PendingSignIn
from chargehand.identity._secrets import digest_secret, new_secret
from chargehand.identity.accounts import Caller, find_user, require_access
from chargehand.identity.documents import UserDocument
from chargehand.identity.providers import ConfiguredProvider
from chargehand.reports.reading import StateReader
from chargehand.store.access_log import Actor, as_moment
from chargehand.store.sign_ins import SubjectRow

SIGN_IN_LASTS = timedelta(minutes=10)
_CODE_LASTS = timedelta(minutes=1)
# A path of this server. Browsers read a backslash as a slash, and two slashes begin another host; a fragment would
# hide the code.
_RETURN = re.compile(r"/(?![/\\])[!-~]{0,499}")
# The longest name of a new account, which leaves room for a number.
_LONGEST_NAME = 56


class StartedSignIn(Struct, frozen=True, kw_only=True):
    """A sign-in that began: the provider's URL, and the secret that the browser keeps in a cookie."""

    url: str
    browser: str


def link_subject(reader: StateReader, user: str, *, issuer: str, subject: str, by: Caller) -> UserDocument:
    """Let a person of an external issuer sign in to an account.

    Raises `NotFoundError`, `UsageError` (`subject_taken`, `user_invalid`), `RefusedError` (`access_denied`).
    """
    require_access(reader, by, "user.link", user)
    for each in (issuer, subject):
        if not each or len(each) > 500 or not each.isprintable():
            raise UsageError(
                f"{each[:80]!r} names no external person", code="user_invalid", hint="give 1 to 500 characters"
            )
    actor = Actor(user=by.user, address=by.address)
    reader.store.subjects.add(user, issuer=issuer, subject=subject, actor=actor)
    return find_user(reader, user, by=by)


def list_subjects(reader: StateReader, *, by: Caller, user: str | None = None) -> tuple[SubjectRow, ...]:
    """Return the external subjects of all accounts or of one. Raises `RefusedError` (`access_denied`)."""
    require_access(reader, by, "user.list", user or "")
    return reader.store.subjects.list(user)


def unlink_subject(reader: StateReader, *, issuer: str, subject: str, by: Caller) -> UserDocument:
    """Let an external person sign in no longer; sessions that were opened so end.

    Raises `NotFoundError`, `RefusedError` (`access_denied`).
    """
    require_access(reader, by, "user.unlink", subject)
    actor = Actor(user=by.user, address=by.address)
    return find_user(reader, reader.store.subjects.remove(issuer=issuer, subject=subject, actor=actor), by=by)


def start_sign_in(
    reader: StateReader, entry: ConfiguredProvider, *, callback: str, return_to: str
) -> StartedSignIn:
    """Begin a sign-in whose browser comes back to the URL `callback`, and at the end to the path `return_to`.

    Raises `UsageError` (`arguments_invalid`) unless that is a path of this server, and the errors of the provider.
    """
    if not _RETURN.fullmatch(return_to) or "#" in return_to or "\\" in return_to:
        raise UsageError(
            f"{return_to[:80]!r} is not a path of this server", code="arguments_invalid", hint="such as /missions"
        )
    state, digest = new_secret()
    browser, browser_digest = new_secret()
    verifier, _ = new_secret()
    url = entry.provider.start(PendingSignIn(state=state, verifier=verifier, callback=callback))
    expires = as_moment(reader.clock.now() + SIGN_IN_LASTS)
    reader.store.sign_ins.begin(
        digest,
        provider=entry.name,
        browser=browser_digest,
        verifier=verifier,
        return_to=return_to,
        expires=expires,
    )
    return StartedSignIn(url=url, browser=browser)


def finish_sign_in(
    reader: StateReader,
    entry: ConfiguredProvider,
    parameters: Mapping[str, str],
    *,
    browser: str,
    callback: str,
    address: str = "",
) -> tuple[str, str]:
    """Return the path to return to, and a code for `accounts.redeem_sign_in` that is valid once, for a minute.

    `parameters` are those of the callback's query, `browser` is the secret of the cookie. Raises `RefusedError`
    (`login_failed`), `StoreError`, and the errors of the provider.
    """
    state = parameters.get("state", "")
    # By provider too: the answer of one must not end the sign-in that began at another (RFC 9700, section 4.4).
    taken = reader.store.sign_ins.take(digest_secret(state), provider=entry.name, browser=digest_secret(browser))
    if taken is None:
        raise RefusedError(
            "this sign-in was used, is older than 10 minutes, or began in another browser",
            code="login_failed",
            hint="begin it again on the login page",
        )
    verifier, return_to = taken
    found = entry.provider.finish(parameters, PendingSignIn(state=state, verifier=verifier, callback=callback))
    rules = entry.rules
    is_admitted = reader.store.subjects.admit(
        found.issuer,
        found.subject,
        name=_account_name(found) if rules.admits(found) else None,
        new_role=rules.role_of(found),
        role=rules.role_of(found) if rules.roles else None,
        actor=Actor(user="", address=address),
    )
    code, digest = new_secret()
    if not is_admitted or not reader.store.sign_ins.add_code(
        digest,
        browser=digest_secret(browser),
        issuer=found.issuer,
        subject=found.subject,
        session=found.session,
        expires=as_moment(reader.clock.now() + _CODE_LASTS),
    ):
        who = f"{found.subject[:200]} of {found.issuer[:200]}"
        reader.store.access_log.append(Actor(user="", address=address), "session.open", who, outcome="refused")
        raise RefusedError(
            "no account here belongs to this person",
            code="account_missing",
            hint="ask an administrator to link one",
        )
    return return_to, code


def end_sign_ins(reader: StateReader, entry: ConfiguredProvider, token: str, *, address: str = "") -> int:
    """Close the sessions that a provider's logout token names; return how many.

    Raises `RefusedError` (`login_failed`), `InfrastructureError` (`provider_failed`), `StoreError`.
    """
    subject, session = entry.provider.read_logout(token)
    actor = Actor(user=f"{entry.name} (provider)", address=address)
    return reader.store.subjects.end_sessions(entry.provider.issuer, subject=subject, session=session, actor=actor)


def _account_name(person: ExternalSubject) -> str:
    """Return a valid name for a new account, from the person's login name or mail address."""
    for told in (person.login, person.mail):
        plain = unicodedata.normalize("NFKD", told.partition("@")[0]).encode("ascii", "ignore").decode().lower()
        if name := re.sub(r"[^a-z0-9._-]+", "-", plain).lstrip("._-")[:_LONGEST_NAME].rstrip("-"):
            return name
    return "person"
