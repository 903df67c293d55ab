"""The providers of `[sign_in]` at which people sign in, and the rules for their accounts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from msgspec import Struct

from chargehand.core.errors import ConfigError
from chargehand.core.own_config import SignInConfig
from chargehand.core.ports import ExternalSubject, KeySource, SignInProvider
from chargehand.identity._provider import ProviderSetup
from chargehand.network.addresses import is_loopback
from chargehand.policy.access import ROLES, AccountRole

_PUBLIC = {"github": "https://github.com", "gitlab": "https://gitlab.com"}


class AccountRules(Struct, frozen=True, kw_only=True):
    """Who gets an account at the first sign-in (`domains` of verified mail, `groups`), and which role.

    With `roles` (group to role) the role is set at each sign-in, `role` for people outside of those groups.
    """

    domains: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    roles: Mapping[str, AccountRole] = {}
    role: AccountRole = "viewer"

    def admits(self, person: ExternalSubject) -> bool:
        """Return whether the person may have an account that no administrator linked."""
        domain = person.mail.rpartition("@")[2].lower()
        return bool((domain and domain in self.domains) or self.groups & {*person.groups})

    def role_of(self, person: ExternalSubject) -> AccountRole:
        """Return the highest role of the person's groups."""
        return max(
            (self.roles[each] for each in person.groups if each in self.roles), key=ROLES.index, default=self.role
        )


class ConfiguredProvider(Struct, frozen=True, kw_only=True):
    """A provider with its name in addresses and the rules for accounts of its people."""

    name: str
    provider: SignInProvider
    rules: AccountRules = AccountRules()


def open_providers(configured: Mapping[str, SignInConfig], keys: KeySource) -> tuple[ConfiguredProvider, ...]:
    """Return the configured providers; asks none of them yet.

    Raises `ConfigError` (`config_invalid`) if an entry lacks what its kind needs.
    """
    return tuple(
        ConfiguredProvider(name=name, provider=_open(name, each, keys), rules=_rules(each))
        for name, each in configured.items()
    )


def _open(name: str, config: SignInConfig, keys: KeySource) -> SignInProvider:
    url = config.url or _PUBLIC.get(config.kind, "")
    if not config.client or not url:
        missing = "client" if not config.client else "url"
        raise _invalid(name, f"has no {missing}", f"chargehand config set sign_in.{name}.{missing} …")
    if not url.startswith("https://") and not is_loopback(url):
        raise _invalid(name, f"has an address without https: {url}", "give the provider's https address")

    def secret() -> str | None:
        if config.secret is None:
            return None
        found = keys.get(config.secret)
        if found is None:
            raise _invalid(name, f"has no secret {config.secret}", f"chargehand secret set {config.secret}")
        return found

    setup = ProviderSetup(
        name=name,
        title=config.title or name,
        url=url,
        client=config.client,
        secret=secret,
        scopes=config.scopes or _scopes(config),
        groups_claim=config.groups_claim,
        end_session=config.end_session,
    )
    # Imported here: most servers have no provider, and start without this code.
    if config.kind == "github":
        from chargehand.identity._github import GithubProvider

        return GithubProvider(setup)
    from chargehand.identity._oidc import OidcProvider

    return OidcProvider(setup)


def _scopes(config: SignInConfig) -> tuple[str, ...]:
    """Return the least scopes with which the rules can be judged."""
    groups = bool(config.groups or config.roles)
    if config.kind == "github":
        return ("read:user", "user:email", *(("read:org",) if groups else ()))
    # GitLab and other providers of the standard scopes tell groups with the profile.
    return ("openid", "profile", "email", *(("groups",) if groups and config.kind == "gitea" else ()))


def _rules(config: SignInConfig) -> AccountRules:
    roles: dict[str, AccountRole] = {}
    for each in config.roles:
        group, _, role = each.rpartition("=")
        roles[group] = next(known for known in get_args(AccountRole) if known == role)
    return AccountRules(
        domains=frozenset(each.lower() for each in config.domains),
        groups=frozenset(config.groups),
        roles=roles,
        role=config.role,
    )


def _invalid(name: str, problem: str, hint: str) -> ConfigError:
    return ConfigError(f"[sign_in.{name}] {problem}", code="config_invalid", hint=hint)
