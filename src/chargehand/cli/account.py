"""`chargehand user` and `chargehand token`: accounts of the server, and tokens for programs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from chargehand.cli.terminal.options import CommandGroup, json_option

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output
    from chargehand.identity.documents import UserDocument

# More bytes than a password may have: the password rules refuse a longer one, which is never truncated.
_LARGEST_BYTES = 64 * 1024
_password_option = click.option("--password-stdin", is_flag=True, help="Read the password from stdin, one line.")


@click.group(cls=CommandGroup)
def user() -> None:
    """Manage the accounts of the server.

    On this machine you need no account: `chargehand up` prints a link that logs you in.
    """


@user.command()
@click.argument("name")
@click.option("--role", default="viewer", metavar="ROLE", help="viewer (the default), operator or admin.")
@click.option("--no-password", is_flag=True, help="Let them in by tokens alone, as for a program.")
@_password_option
@json_option
def add(name: str, role: str, no_password: bool, password_stdin: bool, out: Output) -> None:
    """Add an account.

    A viewer reads; an operator also starts, steers and promotes missions; an admin also manages users, tokens and
    configuration. The password is asked for, and never an argument, since other users can see those.

    \b
    Examples:
      chargehand user add ann --role operator
      chargehand user add ci --role operator --no-password
      chargehand user add bob --password-stdin < password.txt
    """
    from chargehand.identity.accounts import create_user, owner
    from chargehand.reports.reading import StateReader

    if no_password and password_stdin:
        raise click.UsageError("--no-password and --password-stdin were both given")
    with StateReader.open() as reader:
        password = None if no_password else read_password(name, from_stdin=password_stdin)
        added = create_user(reader, name, role=role, password=password, by=owner(reader))
    _show_user(out, added, f"{name} is added as {added.role}")


@user.command("list")
@json_option
def list_(out: Output) -> None:
    """List all accounts."""
    from chargehand.cli.terminal.output import local_time
    from chargehand.identity.accounts import list_users, owner
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        listed = list_users(reader, by=owner(reader))
    out.document(listed)
    if not listed.users:
        out.text("There are no accounts. To add one: chargehand user add NAME")
        return
    rows = []
    for each in listed.users:
        locked = f"locked until {local_time(each.locked_until)}" if each.locked_until else ""
        issuers = sorted({subject.issuer for subject in each.subjects})
        signs_in = f"signs in at {', '.join(issuers)}" if issuers else ""
        without = "" if each.has_password or issuers else "no password"
        notes = ("disabled" if each.disabled else "", locked, without, signs_in)
        rows.append((each.name, each.role, local_time(each.created), ", ".join(filter(None, notes))))
    out.table(("NAME", "ROLE", "CREATED", "NOTES"), rows)


@user.command()
@click.argument("name")
@click.argument("role")
@json_option
def role(name: str, role: str, out: Output) -> None:
    """Give an account another role; it applies at once, also to open sessions and tokens.

    \b
    Example:
      chargehand user role ann admin
    """
    from chargehand.identity.accounts import owner, set_user_role
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        changed = set_user_role(reader, name, role, by=owner(reader))
    _show_user(out, changed, f"{name} is {changed.role} now")


@user.command()
@click.argument("name")
@_password_option
@json_option
def password(name: str, password_stdin: bool, out: Output) -> None:
    """Set a new password, end all sessions of the account, and lift its lock.

    \b
    Examples:
      chargehand user password ann
      chargehand user password ann --password-stdin < password.txt
    """
    from chargehand.identity.accounts import find_user, owner, set_user_password
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        find_user(reader, name, by=owner(reader))  # report an unknown account before a person types
        new = read_password(name, from_stdin=password_stdin)
        changed = set_user_password(reader, name, new, by=owner(reader))
    _show_user(out, changed, f"{name} has a new password and is logged out everywhere")


@user.command()
@click.argument("name")
@json_option
def disable(name: str, out: Output) -> None:
    """Disable an account: its sessions end now, and its tokens are invalid until it is enabled again."""
    _set_disabled(name, True, out)


@user.command()
@click.argument("name")
@json_option
def enable(name: str, out: Output) -> None:
    """Enable a disabled account again, or lift its lock; ended sessions stay ended."""
    _set_disabled(name, False, out)


@user.command()
@click.argument("name")
@json_option
def remove(name: str, out: Output) -> None:
    """Remove an account with its sessions and tokens. Its entries in the logs stay."""
    from chargehand.identity.accounts import owner, remove_user
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        removed = remove_user(reader, name, by=owner(reader))
    out.document(removed)
    out.text(f"{name} is removed")


@user.command("reset-factors")
@click.argument("name")
@json_option
def reset_factors(name: str, out: Output) -> None:
    """Remove the second factors of an account whose person lost them, and end its sessions.

    They log in with their password alone, and add a factor again.
    """
    from chargehand.identity.accounts import owner
    from chargehand.identity.factors import reset_factors
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        changed = reset_factors(reader, name, by=owner(reader))
    _show_user(out, changed, f"{name} has no second factor any more and is logged out everywhere")


@user.command()
@click.argument("name")
@click.argument("issuer")
@click.argument("subject")
@json_option
def link(name: str, issuer: str, subject: str, out: Output) -> None:
    """Let a person of a provider in [sign_in] sign in to an account.

    SUBJECT is the provider's id of the person; `chargehand user log` has both after a sign-in that was refused.

    \b
    Example:
      chargehand user link ann https://login.example.org 00u1a2b3c4
    """
    from chargehand.identity.accounts import owner
    from chargehand.identity.sign_in import link_subject
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        linked = link_subject(reader, name, issuer=issuer, subject=subject, by=owner(reader))
    _show_user(out, linked, f"{subject} of {issuer} signs in to {name}")


@user.command()
@click.argument("issuer")
@click.argument("subject")
@json_option
def unlink(issuer: str, subject: str, out: Output) -> None:
    """Let a person of a provider sign in no longer, and end the sessions that were opened so."""
    from chargehand.identity.accounts import owner
    from chargehand.identity.sign_in import unlink_subject
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        changed = unlink_subject(reader, issuer=issuer, subject=subject, by=owner(reader))
    _show_user(out, changed, f"{subject} of {issuer} does not sign in to {changed.name} any more")


@user.command()
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, metavar="N", help="How many lines (100).")
@json_option
def log(limit: int, out: Output) -> None:
    """Show who logged in, was refused, or changed users and tokens, the newest last."""
    from chargehand.cli.terminal.output import local_time
    from chargehand.identity.accounts import list_access, owner
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        listed = list_access(reader, by=owner(reader), limit=limit)
    out.document(listed)
    rows = [
        (
            local_time(each.time, seconds=True),
            each.actor or "-",
            each.action,
            each.subject or "-",
            each.address or "-",
            each.outcome,
        )
        for each in reversed(listed.entries)
    ]
    if not rows:
        out.text("Nothing is logged yet.")
        return
    out.table(("TIME", "BY", "ACTION", "SUBJECT", "FROM", "OUTCOME"), rows)


@click.group(cls=CommandGroup)
def token() -> None:
    """Manage tokens, with which programs use the server's API."""


@token.command()
@click.argument("name")
@click.option(
    "--scope", "scopes", multiple=True, metavar="SCOPE",
    help="read (the default), steer, decide or administer; may be given several times.",
)  # fmt: skip
@click.option("--user", metavar="NAME", help="The token's user (default: you).")
@click.option("--days", type=int, default=90, metavar="N", help="How long it counts (90 days).")
@json_option
def create(name: str, scopes: tuple[str, ...], user: str | None, days: int, out: Output) -> None:
    """Create a token and show its secret, only this once.

    NAME describes its purpose. A token may do what its scopes and its user's role both allow: `read` reads,
    `steer` starts and steers missions, `decide` approves, promotes, discards and rolls back, `administer` does the
    rest.

    \b
    Examples:
      chargehand token create dashboard
      chargehand token create ci --user ci --scope read --scope steer --days 30
    """
    from chargehand.cli.terminal.output import local_time
    from chargehand.identity.accounts import owner
    from chargehand.identity.tokens import create_token
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        made = create_token(reader, name, scopes=scopes or ("read",), user=user, days=days, by=owner(reader))
    out.document(made)
    out.notice(f"Token {made.token.id} of {made.token.user} counts until {local_time(made.token.expires)}.")
    out.notice("Keep its secret now: it is not shown again.")
    out.text(made.secret)


@token.command("list")
@click.option("--user", metavar="NAME", help="Only those of this user.")
@json_option
def list_tokens_(user: str | None, out: Output) -> None:
    """List tokens, never their secrets."""
    from chargehand.cli.terminal.output import local_time
    from chargehand.identity.accounts import owner
    from chargehand.identity.tokens import list_tokens
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        listed = list_tokens(reader, by=owner(reader), user=user)
    out.document(listed)
    if not listed.tokens:
        out.text("There are no tokens. To make one: chargehand token create NAME")
        return
    rows = [
        (
            each.id,
            each.user,
            each.name,
            " ".join(each.scopes),
            "revoked" if each.revoked is not None else local_time(each.expires),
            local_time(each.last_used) if each.last_used else "never",
        )
        for each in listed.tokens
    ]
    out.table(("ID", "USER", "NAME", "SCOPES", "UNTIL", "LAST USED"), rows)


@token.command()
@click.argument("token_id", metavar="ID")
@json_option
def revoke(token_id: str, out: Output) -> None:
    """Revoke a token: it is invalid from now on.

    \b
    Example:
      chargehand token revoke t-01jd5x2k9q7h3a
    """
    from chargehand.identity.accounts import owner
    from chargehand.identity.tokens import revoke_token
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        revoked = revoke_token(reader, token_id, by=owner(reader))
    out.document(revoked)
    out.text(f"{token_id} ({revoked.name}) is revoked")


def _set_disabled(name: str, disabled: bool, out: Output) -> None:
    from chargehand.identity.accounts import owner, set_user_disabled
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        changed = set_user_disabled(reader, name, disabled, by=owner(reader))
    _show_user(out, changed, f"{name} is {'disabled' if disabled else 'enabled'}")


def _show_user(out: Output, document: UserDocument, told: str) -> None:
    out.document(document)
    out.text(told)


def read_password(name: str, *, from_stdin: bool) -> str:
    """Read an account's new password from the terminal or stdin. Raises `UsageError`."""
    from chargehand.core.errors import UsageError

    if not from_stdin:
        if not sys.stdin.isatty():
            raise UsageError(
                "this is not a terminal, so you cannot be asked for a password",
                code="password_unasked",
                hint="pipe it in: --password-stdin",
            )
        return str(click.prompt(f"password of {name}", hide_input=True, confirmation_prompt=True, err=True))
    content = sys.stdin.buffer.read(_LARGEST_BYTES)
    try:
        return content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        # Not chained: the decoding error contains the bytes, and a traceback would show them.
        raise UsageError(
            "the password is not UTF-8", code="password_weak", hint="give one line of text on stdin"
        ) from None
