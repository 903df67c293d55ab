"""Sections that count in the user's own file alone: secrets, the server, sign-in, alerts, traces, logs."""

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
        KeySpec("roles of groups, as GROUP=ROLE; the highest is set at each sign-in", form="mapping"),
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


# Read from the user's own file alone: a source is a program or server that acts with the user's rights.
class SecretSourceConfig(Struct, frozen=True, kw_only=True):
    """[secrets.sources.NAME]: a store of secrets; only your own file counts."""

    kind: Annotated[
        str,
        KeySpec(
            "kind of store: vault (also OpenBao), aws, command, files (mounted ones) or encrypted",
            meet="file",
            names="key_sources",
        ),
    ] = "vault"
    address: Annotated[
        str | None,
        KeySpec("of vault: its address; of aws: an address other than the usual one", meet="file", form="http"),
    ] = None
    authority: Annotated[
        str | None, KeySpec("of vault: file of certificates to trust in addition", meet="file", form="path")
    ] = None
    namespace: Annotated[str, KeySpec("of vault: the namespace; '': none", meet="file", form="label")] = ""
    mount: Annotated[str, KeySpec("of vault: mount of its KV engine, version 2", meet="file", form="name")] = (
        "secret"
    )
    path: Annotated[
        str | None,
        KeySpec(
            "of vault and aws: the secret of names without a path; of files: the directory, else /run/secrets; of "
            "encrypted: the file, else secrets.encrypted beside your file",
            meet="file",
            form="place",
        ),
    ] = None
    login: Annotated[
        Literal["token", "approle", "kubernetes"], KeySpec("of vault: how to log in", meet="file")
    ] = "token"
    login_mount: Annotated[
        str | None,
        KeySpec("of vault: mount of the login; absent: approle or kubernetes", meet="file", form="name"),
    ] = None
    role: Annotated[
        str | None, KeySpec("of vault: role id of approle, or role of kubernetes", meet="file", form="login")
    ] = None
    secret: Annotated[
        str | None,
        KeySpec(
            "name of the secret with the token or secret id of vault, or the passphrase of encrypted",
            meet="file",
            form="secret",
        ),
    ] = None
    key_file: Annotated[
        str | None,
        KeySpec(
            "instead of secret: of vault a file with the token, or the account's token of kubernetes; of encrypted"
            " a file with at least 32 random bytes, mode 0600",
            meet="file",
            form="path",
        ),
    ] = None
    region: Annotated[
        str | None, KeySpec("of aws: the region; absent: as boto3 finds it", meet="file", form="name")
    ] = None
    profile: Annotated[
        str | None, KeySpec("of aws: the profile; absent: as boto3 finds it", meet="file", form="name")
    ] = None
    command: Annotated[
        tuple[str, ...],
        KeySpec(
            "of command: program and arguments, with {name}, {path} and {field} replaced; it prints the value",
            meet="file",
            form="argv",
        ),
    ] = ()
    timeout: Annotated[float, KeySpec("time for an answer", meet="file", form="seconds")] = 10.0


class SecretKeyConfig(Struct, frozen=True, kw_only=True):
    """[secrets.keys.NAME]: the sources and the scope of a secret; only your own file counts."""

    name: Annotated[
        str | None,
        KeySpec(
            "name of the secret, of which several entries may exist; absent: NAME", meet="file", form="secret"
        ),
    ] = None
    sources: Annotated[
        tuple[str, ...],
        KeySpec("sources that are asked, in this order; empty: secrets.order", meet="file", form="name"),
    ] = ()
    path: Annotated[
        str | None, KeySpec("place of the secret in its source; absent: by its name", meet="file", form="place")
    ] = None
    field: Annotated[
        str | None,
        KeySpec("field of it; absent: value in vault, the whole text elsewhere", meet="file", form="label"),
    ] = None
    projects: Annotated[
        tuple[str, ...],
        KeySpec("ids or paths of the projects that may use it; empty: any", meet="file", form="place"),
    ] = ()
    roles: Annotated[tuple[str, ...], KeySpec("roles that may use it; empty: any", meet="file", form="name")] = ()
    providers: Annotated[
        tuple[str, ...],
        KeySpec(
            "providers of models that may get it, at their own addresses, or hosts; empty: any",
            meet="file",
            form="name",
        ),
    ] = ()
    ttl: Annotated[
        float, KeySpec("time after which it is read from its source again", meet="file", form="seconds")
    ] = 300.0


class SecretsConfig(Struct, frozen=True, kw_only=True):
    """[secrets]: the order in which sources of secrets are asked; only your own file counts."""

    order: Annotated[
        tuple[str, ...],
        KeySpec(
            "environment, keyring, file and names of secrets.sources; empty: these three, then extensions",
            meet="file",
            form="name",
        ),
    ] = ()
    sources: dict[str, SecretSourceConfig] = {}
    keys: dict[str, SecretKeyConfig] = {}
