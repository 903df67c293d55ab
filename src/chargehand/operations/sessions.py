"""Routes of accounts: the caller's session and tokens, and for administrators those of others."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from chargehand.app.composition import App
from chargehand.core.errors import UsageError
from chargehand.identity import accounts, factors, sign_in, tokens
from chargehand.identity.accounts import Caller
from chargehand.identity.documents import (
    AccessLogDocument,
    CreatedTokenDocument,
    EnrolmentDocument,
    FactorListDocument,
    RecoveryCodesDocument,
    SessionDocument,
    TokenDocument,
    TokenListDocument,
    UserDocument,
    UserListDocument,
    UserRemovedDocument,
)
from chargehand.operations.operation import NoArguments, OperationTable, RestArguments, Short
from chargehand.policy.access import AccessScope
from chargehand.reports.reading import StateReader

OPERATIONS = OperationTable()
_Named = Annotated[str, Meta(min_length=1, max_length=500)]
_Password = Annotated[str, Meta(min_length=1, max_length=1024)]


class NewUser(RestArguments, frozen=True):
    """An account to create."""

    name: Short
    role: Short
    password: _Password | None = None


class OneUser(RestArguments, frozen=True):
    """An account, by its name."""

    user: Short


class UserChange(RestArguments, frozen=True):
    """The changes to an account: omitted fields stay unchanged."""

    user: Short
    role: Short | None = None
    password: _Password | None = None
    disabled: bool | None = None


class NewSubject(RestArguments, frozen=True):
    """A person at a provider to link to an account: the provider's issuer, and its id of the person."""

    user: Short
    issuer: _Named
    subject: _Named


class OneSubject(RestArguments, frozen=True):
    """A person at a provider: the provider's issuer, and its id of the person."""

    issuer: _Named
    subject: _Named


class FactorName(RestArguments, frozen=True):
    """A second factor, by its name."""

    name: Short


class FactorCode(RestArguments, frozen=True):
    """A code of a second factor, or a recovery code."""

    code: Short


class NamedCode(RestArguments, frozen=True):
    """The first code of a new factor, by its name."""

    name: Short
    code: Short


class OwnPassword(RestArguments, frozen=True):
    """The caller's current password, and the new one."""

    current: _Password
    password: _Password


class TokenQuery(RestArguments, frozen=True):
    """The tokens to list: the caller's own by default, with `everybody` all."""

    user: Short | None = None
    everybody: bool = False


class NewToken(RestArguments, frozen=True):
    """A token to create: its name, its scopes, and its validity in days."""

    name: Short
    scopes: Annotated[tuple[AccessScope, ...], Meta(min_length=1, max_length=4)]
    days: Annotated[int, Meta(ge=1, le=3650)] = 90
    user: Short | None = None


class OneToken(RestArguments, frozen=True):
    """A token, by its id."""

    token: Short


class AccessQuery(RestArguments, frozen=True):
    """The lines of the access log to read: at most `limit` before the line `before`."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    before: Annotated[int, Meta(ge=1, le=1 << 53)] | None = None


@OPERATIONS.add("GET", "/session", action="session.show")
def show_session(reader: StateReader, call: NoArguments, by: Caller) -> SessionDocument:
    """Show your account and your rights."""
    return accounts.session_document(reader, by)


@OPERATIONS.add("POST", "/session/password", action="password.own.set", commands=("user password",))
def change_own_password(app: App, call: OwnPassword, by: Caller) -> UserDocument:
    """Change your own password."""
    return accounts.change_own_password(app, call.current, call.password, by=by)


@OPERATIONS.add("GET", "/session/factors", action="factor.own.list")
def list_factors(reader: StateReader, call: NoArguments, by: Caller) -> FactorListDocument:
    """List your second factors."""
    return factors.list_factors(reader, by=by)


@OPERATIONS.add("POST", "/session/factors", action="factor.own.add", status=201, is_secret=True)
def start_enrolment(app: App, call: FactorName, by: Caller) -> EnrolmentDocument:
    """Begin to add a second factor: the secret for an authenticator app."""
    return factors.start_enrolment(app, call.name, by=by)


@OPERATIONS.add("POST", "/session/factors/{name}/confirm", action="factor.own.add", is_secret=True)
def confirm_enrolment(app: App, call: NamedCode, by: Caller) -> RecoveryCodesDocument:
    """Add a second factor by its first code; recovery codes come with the first factor."""
    return factors.confirm_enrolment(app, call.name, call.code, by=by)


@OPERATIONS.add("DELETE", "/session/factors/{name}", action="factor.own.remove")
def remove_factor(app: App, call: FactorName, by: Caller) -> FactorListDocument:
    """Remove one of your second factors."""
    return factors.remove_factor(app, call.name, by=by)


@OPERATIONS.add("POST", "/session/recovery-codes", action="factor.own.remove", is_secret=True)
def replace_recovery_codes(app: App, call: NoArguments, by: Caller) -> RecoveryCodesDocument:
    """Replace your recovery codes."""
    return factors.replace_recovery_codes(app, by=by)


@OPERATIONS.add("POST", "/session/proof", action="factor.own.list")
def prove_again(app: App, call: FactorCode, by: Caller) -> SessionDocument:
    """Show a code of your second factor, which opens dangerous operations for ten minutes."""
    return factors.prove_again(app, call.code, by=by)


@OPERATIONS.add("GET", "/users", action="user.list", commands=("user list",))
def list_users(reader: StateReader, call: NoArguments, by: Caller) -> UserListDocument:
    """List accounts."""
    return accounts.list_users(reader, by=by)


@OPERATIONS.add("POST", "/users", action="user.create", status=201, commands=("user add",))
def create_user(app: App, call: NewUser, by: Caller) -> UserDocument:
    """Create an account."""
    return accounts.create_user(app, call.name, role=call.role, password=call.password, by=by)


@OPERATIONS.add(
    "PATCH",
    "/users/{user}",
    action="user.role",
    commands=("user role", "user password", "user disable", "user enable"),
)
def change_user(app: App, call: UserChange, by: Caller) -> UserDocument:
    """Change an account."""
    # The role first: an administrator may need to withdraw it quickly.
    changed = None
    if call.role is not None:
        changed = accounts.set_user_role(app, call.user, call.role, by=by)
    if call.disabled is not None:
        changed = accounts.set_user_disabled(app, call.user, call.disabled, by=by)
    if call.password is not None:
        changed = accounts.set_user_password(app, call.user, call.password, by=by)
    if changed is None:
        raise UsageError(
            "nothing was given to change", code="arguments_invalid", hint="role, disabled or password"
        )
    return changed


@OPERATIONS.add("DELETE", "/users/{user}", action="user.remove", commands=("user remove",))
def remove_user(app: App, call: OneUser, by: Caller) -> UserRemovedDocument:
    """Remove an account."""
    return accounts.remove_user(app, call.user, by=by)


@OPERATIONS.add("POST", "/users/{user}/subjects", action="user.link", commands=("user link",))
def link_subject(app: App, call: NewSubject, by: Caller) -> UserDocument:
    """Let a person of a provider sign in to an account."""
    return sign_in.link_subject(app, call.user, issuer=call.issuer, subject=call.subject, by=by)


@OPERATIONS.add("POST", "/subjects/unlink", action="user.unlink", commands=("user unlink",))
def unlink_subject(app: App, call: OneSubject, by: Caller) -> UserDocument:
    """Let a person of a provider sign in no longer."""
    return sign_in.unlink_subject(app, issuer=call.issuer, subject=call.subject, by=by)


@OPERATIONS.add("GET", "/tokens", action="token.own.list", commands=("token list",))
def list_tokens(reader: StateReader, call: TokenQuery, by: Caller) -> TokenListDocument:
    """List tokens."""
    return tokens.list_tokens(reader, by=by, user=None if call.everybody else call.user or by.user)


@OPERATIONS.add(
    "POST", "/tokens", action="token.own.create", status=201, is_secret=True, commands=("token create",)
)
def create_token(app: App, call: NewToken, by: Caller) -> CreatedTokenDocument:
    """Create a token; its secret is shown once."""
    return tokens.create_token(app, call.name, scopes=call.scopes, days=call.days, user=call.user, by=by)


@OPERATIONS.add("DELETE", "/tokens/{token}", action="token.own.revoke", commands=("token revoke",))
def revoke_token(app: App, call: OneToken, by: Caller) -> TokenDocument:
    """Revoke a token."""
    return tokens.revoke_token(app, call.token, by=by)


@OPERATIONS.add("GET", "/access", action="access.list", commands=("user log",))
def list_access(reader: StateReader, call: AccessQuery, by: Caller) -> AccessLogDocument:
    """Read the log of logins, refusals and changes."""
    return accounts.list_access(reader, by=by, limit=call.limit, before=call.before)
