"""Configuration of `up`, `mcp` and other long-running programs; read from the user's own file alone."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from chargehand.core.limits import KeySpec


# `chargehand mcp` reads it from the user's file alone: a client may choose the environment it is started with, and
# trusting a repository says nothing about clients.
class ServerConfig(Struct, frozen=True, kw_only=True):
    """[server]: permissions of clients of `chargehand mcp`."""

    may_decide: Annotated[
        bool,
        KeySpec(
            "whether a client may decide as you do: promote, discard, close waiting "
            "missions, give permission; only your own file counts"
        ),
    ] = False
    second_factor: Annotated[
        Literal["none", "viewer", "operator", "admin"],
        KeySpec("lowest role whose accounts need a second factor to log in with a password"),
    ] = "none"
    passwords: Annotated[
        bool,
        KeySpec("whether people may log in by name and password; false: by [sign_in] and links alone"),
    ] = True


class SignInConfig(Struct, frozen=True, kw_only=True):
    """[sign_in.NAME]: a provider at which people sign in to `chargehand up`."""

    kind: Annotated[
        Literal["oidc", "github", "gitlab", "gitea"],
        KeySpec("OpenID Connect, found by its issuer; or a forge of that kind"),
    ] = "oidc"
    url: Annotated[
        str | None, KeySpec("the issuer, or the forge's address; absent: github.com or gitlab.com", form="http")
    ] = None
    title: Annotated[str | None, KeySpec("name on the login page; absent: NAME", form="label")] = None
    client: Annotated[str | None, KeySpec("client id that the provider gave to this server", form="login")] = None
    secret: Annotated[
        str | None,
        KeySpec("name of the secret with the client secret; absent: a public client", form="secret"),
    ] = None
    scopes: Annotated[tuple[str, ...], KeySpec("requested scopes; absent: what the rules need", form="login")] = ()
    groups_claim: Annotated[str, KeySpec("oidc: the claim that lists a person's groups", form="login")] = "groups"
    domains: Annotated[
        tuple[str, ...],
        KeySpec(
            "domains of verified mail addresses whose owners get an account at their first sign-in", form="domain"
        ),
    ] = ()
    groups: Annotated[
        tuple[str, ...], KeySpec("groups whose members get an account at their first sign-in", form="label")
    ] = ()
    roles: Annotated[
        tuple[str, ...],
        KeySpec("roles of groups, as GROUP=ROLE; the highest is set at each sign-in", form="group role"),
    ] = ()
    role: Annotated[
        Literal["viewer", "operator", "admin"],
        KeySpec("role of a new account and, with roles, of people in none of their groups"),
    ] = "viewer"
    end_session: Annotated[bool, KeySpec("oidc: whether logging out here logs out at the provider too")] = True


# Read from the user's own configuration alone: `chargehand up` watches over all projects.
class AlertsConfig(Struct, frozen=True, kw_only=True):
    """[alerts]: when `chargehand up` sends alerts, and how."""

    checkpoint: Annotated[float, KeySpec("time of a checkpoint that raises an alert", form="seconds")] = 1.0
    # Not a whole validation: a suite that takes minutes is not our fault.
    validation: Annotated[
        float,
        KeySpec(
            "time of a validation, without the project's commands, above which an alert is raised",
            form="seconds",
        ),
    ] = 2.0
    failed_percent: Annotated[
        int,
        KeySpec(
            "share of the missions settled in a window that failed by the engine, above which an alert is raised",
            form="percent",
        ),
    ] = 10
    failed_window: Annotated[float, KeySpec("length of that window", form="seconds")] = 3600.0
    disk_percent: Annotated[
        int, KeySpec("free disk space of the state directory below which an alert is raised", form="percent")
    ] = 5
    memory_percent: Annotated[int, KeySpec("free memory below which an alert is raised", form="percent")] = 5
    budget_percent: Annotated[
        int, KeySpec("spent or reserved share of limits.day_usd from which an alert is raised", form="percent")
    ] = 80
    calm: Annotated[float, KeySpec("time without a breach after which an alert ends", form="seconds")] = 300.0
    repeat: Annotated[float, KeySpec("least time between two notices of an alert", form="seconds")] = 3600.0
    bell: Annotated[bool, KeySpec("whether `run` rings when a mission of over 30 s waits or ends")] = True
    desktop: Annotated[bool, KeySpec("whether alerts and, as with bell, missions show popups")] = True
    webhook: Annotated[str | None, KeySpec("address that notices are posted to as JSON", form="http")] = None
    webhook_secret: Annotated[
        str | None, KeySpec("name of the secret that signs them; absent: they are not signed", form="secret")
    ] = None
    mail_to: Annotated[tuple[str, ...], KeySpec("addresses that notices are mailed to", form="mail")] = ()
    mail_from: Annotated[
        str | None, KeySpec("address that they come from; absent: the first of mail_to", form="mail")
    ] = None
    mail_server: Annotated[
        str | None, KeySpec("mail server; port 587 by default, with 465 TLS from the beginning", form="server")
    ] = None
    mail_user: Annotated[str | None, KeySpec("name to log in with; absent: no login", form="login")] = None
    mail_password: Annotated[str | None, KeySpec("name of the secret that holds its password", form="secret")] = (
        None
    )


class TracesConfig(Struct, frozen=True, kw_only=True):
    """[traces]: where `chargehand up` sends the spans of missions, by OTLP over HTTP."""

    endpoint: Annotated[str | None, KeySpec("a collector, such as http://127.0.0.1:4318", form="http")] = None
    secret: Annotated[
        str | None, KeySpec("name of the secret that is sent along as the value of header", form="secret")
    ] = None
    header: Annotated[str, KeySpec("name of that header", form="name")] = "Authorization"


class LogConfig(Struct, frozen=True, kw_only=True):
    """[log]: log lines that `worker`, `up`, `mcp` and `gateway` write to stderr."""

    format: Annotated[Literal["text", "json"], KeySpec("lines for people, or JSON")] = "text"
    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        KeySpec("lowest written level; info has a line for each request to the server"),
    ] = "warning"
