"""Routes of accounts: one's own session and tokens, and those of others for who may administer."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from chargehand.app.accounts import (
    AccessLogDocument,
    Caller,
    CreatedTokenDocument,
    SessionDocument,
    TokenDocument,
    TokenListDocument,
    UserDocument,
    UserListDocument,
    UserRemovedDocument,
    change_own_password,
    create_token,
    create_user,
    list_access,
    list_tokens,
    list_users,
    remove_user,
    revoke_token,
    session_document,
    set_user_disabled,
    set_user_password,
    set_user_role,
)
from chargehand.app.composition import App
from chargehand.app.reading import StateReader
from chargehand.core.errors import UsageError
from chargehand.policy.access import AccessScope
from chargehand.server._routes import NoArguments, RestArguments, Route, Short

_Password = Annotated[str, Meta(min_length=1, max_length=1024)]


class NewUser(RestArguments, frozen=True):
    """An account to make."""

    name: Short
    role: Short
    password: _Password | None = None


class OneUser(RestArguments, frozen=True):
    """An account, by its name."""

    user: Short


class UserChange(RestArguments, frozen=True):
    """What is changed of an account: what is left out stays as it is."""

    user: Short
    role: Short | None = None
    password: _Password | None = None
    disabled: bool | None = None


class OwnPassword(RestArguments, frozen=True):
    """The caller's password, and the one from now on."""

    current: _Password
    password: _Password


class TokenQuery(RestArguments, frozen=True):
    """Whose tokens are listed: the caller's own by default, with `everybody` all."""

    user: Short | None = None
    everybody: bool = False


class NewToken(RestArguments, frozen=True):
    """A token to make: what it is for, what it may do, and for how many days."""

    name: Short
    scopes: Annotated[tuple[AccessScope, ...], Meta(min_length=1, max_length=4)]
    days: Annotated[int, Meta(ge=1, le=3650)] = 90
    user: Short | None = None


class OneToken(RestArguments, frozen=True):
    """A token, by its id."""

    token: Short


class AccessQuery(RestArguments, frozen=True):
    """Which lines of the access log are read: at most `limit` that came before the line `before`."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    before: Annotated[int, Meta(ge=1, le=1 << 53)] | None = None


def _change_user(app: App, call: UserChange, by: Caller) -> UserDocument:
    # The role first: it is what an administrator takes away in a hurry.
    changed = None
    if call.role is not None:
        changed = set_user_role(app, call.user, call.role, by=by)
    if call.disabled is not None:
        changed = set_user_disabled(app, call.user, call.disabled, by=by)
    if call.password is not None:
        changed = set_user_password(app, call.user, call.password, by=by)
    if changed is None:
        raise UsageError(
            "nothing was given to change", code="arguments_invalid", hint="role, disabled or password"
        )
    return changed


def _list_tokens(reader: StateReader, call: TokenQuery, by: Caller) -> TokenListDocument:
    return list_tokens(reader, by=by, user=None if call.everybody else call.user or by.user)


ROUTES = (
    Route(
        method="GET", path="/session", action="session.show",
        summary="Show who you are, and what you may do.",
        gives=SessionDocument, takes=NoArguments, call=lambda reader, call, by: session_document(reader, by),
    ),
    Route(
        method="POST", path="/session/password", action="password.own.set",
        summary="Change your own password.",
        takes=OwnPassword, gives=UserDocument, commands=("user password",),
        call=lambda app, call, by: change_own_password(app, call.current, call.password, by=by),
    ),
    Route(
        method="GET", path="/users", action="user.list",
        summary="List accounts.", gives=UserListDocument,
        call=lambda reader, call, by: list_users(reader, by=by), commands=("user list",),
    ),
    Route(
        method="POST", path="/users", action="user.create", summary="Make an account.", status=201,
        takes=NewUser, gives=UserDocument, commands=("user add",),
        call=lambda app, call, by: create_user(app, call.name, role=call.role, password=call.password, by=by),
    ),
    Route(
        method="PATCH", path="/users/{user}", action="user.role", summary="Change an account.",
        takes=UserChange, gives=UserDocument, call=_change_user,
        commands=("user role", "user password", "user disable", "user enable"),
    ),
    Route(
        method="DELETE", path="/users/{user}", action="user.remove", summary="Remove an account.",
        takes=OneUser, gives=UserRemovedDocument, commands=("user remove",),
        call=lambda app, call, by: remove_user(app, call.user, by=by),
    ),
    Route(
        method="GET", path="/tokens", action="token.own.list", summary="List tokens.",
        takes=TokenQuery, gives=TokenListDocument, call=_list_tokens, commands=("token list",),
    ),
    Route(
        method="POST", path="/tokens", action="token.own.create",
        summary="Make a token; its secret is shown once.",
        takes=NewToken, gives=CreatedTokenDocument, status=201, is_secret=True, commands=("token create",),
        call=lambda app, call, by: create_token(
            app, call.name, scopes=call.scopes, days=call.days, user=call.user, by=by
        ),
    ),
    Route(
        method="DELETE", path="/tokens/{token}", action="token.own.revoke",
        summary="Let a token count no more.",
        takes=OneToken, gives=TokenDocument, commands=("token revoke",),
        call=lambda app, call, by: revoke_token(app, call.token, by=by),
    ),
    Route(
        method="GET", path="/access", action="access.list",
        summary="Read the log of logins, refusals and changes.",
        takes=AccessQuery, gives=AccessLogDocument, commands=("user log",),
        call=lambda reader, call, by: list_access(reader, by=by, limit=call.limit, before=call.before),
    ),
)  # fmt: skip
