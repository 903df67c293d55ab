"""Opens the model endpoint of one attempt, with its own models, ledger and socket."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from msgspec import Struct, field
from msgspec.structs import replace

from chargehand.agents.contract import Endpoint, EndpointModel, MeteredUsage
from chargehand.app.providers.served import (
    model_config,
    open_probe_reports,
    provider_limits,
    served_chain,
    with_fallbacks,
)
from chargehand.core.clock import Clock, SystemClock
from chargehand.core.config import Config, LimitsConfig
from chargehand.core.ids import new_id
from chargehand.core.ports import KeyUse, Ledger
from chargehand.credentials.scoped import ScopedKeys
from chargehand.models.contract import CallListeners, CallRecord, QuotaRest, ServedModel
from chargehand.sandbox.contract import GATEWAY_PORT
from chargehand.store.ledger import Spending, SpendingLimits

if TYPE_CHECKING:
    from chargehand.credentials.credentials import Credentials
    from chargehand.missions.services import EndpointRequest
    from chargehand.models.providers import ProviderLimits, Providers
    from chargehand.models.replay_cache import ReplayCache

# The usual soft limit is 1024, because of select(2); asyncio waits with epoll(7).
_OPEN_FILES = 16_384


class ProviderHealthRegistry:
    """The health of providers, shared by all missions of this process: failures, quota, waiting calls.

    There is one record for each event loop and each set of limits.
    """

    def __init__(self) -> None:
        # By loop, because waiting calls hold its futures; the record is dropped with its loop.
        self._known: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, Providers]] = WeakKeyDictionary()

    def of(self, limits: Mapping[str, ProviderLimits], clock: Clock) -> Providers:
        """Return the record of providers with these limits."""
        from chargehand.models.providers import Providers

        known = self._known.setdefault(asyncio.get_running_loop(), {})
        return known.setdefault(tuple(sorted(limits.items())), Providers(limits, clock=clock))


class AttemptGateways(Struct, frozen=True, kw_only=True):
    """The `OpenGateway` of one session, of the project with the id and path in `projects`.

    Sockets are in `scratch`, which belongs to this process.
    """

    config: Config
    spending: Spending
    keys: Credentials
    environ: Mapping[str, str]
    scratch: Path
    clock: Clock = field(default_factory=SystemClock)
    user: str = ""
    projects: tuple[str, ...] = ()
    standings: ProviderHealthRegistry = field(default_factory=ProviderHealthRegistry)

    @contextlib.asynccontextmanager
    async def __call__(self, wanted: EndpointRequest, /) -> AsyncIterator[Endpoint]:
        """Serve the models of one attempt during the block; see `OpenGateway`."""
        from chargehand.core.redaction import Redactor
        from chargehand.models.gateway import Gateway, GatewayLimits, ServedAttempt, new_token

        _raise_open_file_limit()
        attempt = wanted.attempt
        keys = ScopedKeys(self.keys, KeyUse(projects=self.projects, role=wanted.role))
        try:
            # In a thread: keys may come from a server or a program.
            served = await asyncio.to_thread(self._served_models, wanted.models, {attempt: wanted.number}, keys)
        finally:
            for access in keys.accesses.values():
                wanted.on_secret(access)
        meter = _Meter(wanted.on_call)
        self.scratch.mkdir(exist_ok=True, mode=0o700)
        # Made before the gateway, because stored replies have a placeholder in place of the token.
        token = new_token()
        ledger = self._ledger(wanted)
        async with contextlib.AsyncExitStack() as stack:
            calls = _open_replies(wanted, dict(keys.values), token)
            if calls is not None:
                # The stack closes in reverse order: gateway, providers, and the file of stored replies last.
                stack.callback(calls.close)
            for model in with_fallbacks(served):
                stack.push_async_callback(model.upstream.close)
            gateway = await stack.enter_async_context(
                Gateway(
                    served,
                    ServedAttempt(
                        id=attempt,
                        ledger=ledger,
                        first_turn=wanted.first_turn,
                        calls=calls,
                        token=token,
                        tools=wanted.tools,
                    ),
                    CallListeners(
                        on_call=meter.count_call,
                        on_alert=wanted.on_alert,
                        on_quota=meter.note_rest,
                        on_fault=meter.note_fault,
                        on_loop=True,
                    ),
                    limits=GatewayLimits(call_seconds=self.config.limits.model_silence),
                    providers=self.standings.of(provider_limits(self.config, self.environ), self.clock),
                    redact=lambda text: Redactor(dict(keys.values)).text(text),  # a key may change meanwhile
                    clock=self.clock,
                )
            )
            socket = self.scratch / f"gateway-{attempt}.sock"
            await gateway.listen_unix(socket)
            yield Endpoint(
                socket=socket,
                token=token,
                models=tuple(map(self._endpoint_model, served)),
                environment=_client_environment(token, served[0].name, tools=wanted.tools is not None),
                revoke=gateway.revoke,
                meter=meter.read,
                tools=wanted.tools is not None,
            )

    def _ledger(self, wanted: EndpointRequest) -> Ledger:
        limits = self.config.limits
        return self.spending.ledger(
            mission=wanted.payer or wanted.mission,
            attempt=wanted.attempt,
            limits=SpendingLimits(
                attempt_usd=limits.attempt_usd,
                task_usd=limits.task_usd,
                mission_usd=limits.budget_usd,
                user_usd=limits.user_usd,
                day_usd=limits.day_usd,
            ),
            # Tasks of two plans may have the same name.
            task=f"{wanted.payer}/{wanted.task}" if wanted.payer else None,
            user=wanted.user or self.user,
        )

    def _served_models(
        self, names: Sequence[str], attempts: Mapping[str, int], keys: ScopedKeys | None = None
    ) -> list[ServedModel]:
        reports = open_probe_reports(self.environ)
        return [
            served_chain(
                name,
                self.config,
                keys=keys or self.keys,
                environ=self.environ,
                attempts=attempts,
                reports=reports,
            )
            for name in names
        ]

    def _endpoint_model(self, model: ServedModel) -> EndpointModel:
        from chargehand.models.catalogue import find_context

        config = model_config(self.config, model.name)
        tried = open_probe_reports(self.environ).of(model.provider, model.model) if model.provider else None
        return EndpointModel(
            name=model.name,
            # The native agent speaks two dialects, and the gateway translates the others.
            dialect="anthropic" if model.dialect == "anthropic" else "openai",
            context=config.context
            or (tried and tried.context)
            or find_context(config.provider, model.model, base_url=config.base_url),
            max_output=model.max_output,
            tools=model.tools if config.tools is None else config.tools,
            # A call with a picture is passed to the next model of the chain that accepts it.
            images=any(one.images for one in (model, *model.fallback)),
        )


def _open_replies(wanted: EndpointRequest, secrets: Mapping[str, str], token: str) -> ReplayCache | None:
    from chargehand.models.replay_cache import ReplayCache

    if wanted.kept is None:
        return None
    return ReplayCache(
        wanted.kept, secrets=secrets, token=token, strict=wanted.strict, on_diverged=wanted.on_diverged
    )


class _Meter:
    """Counts the usage of one attempt's calls; called on the event loop."""

    def __init__(self, on_call: Callable[[CallRecord], None]) -> None:
        self._on_call = on_call
        self._metered = MeteredUsage()

    def count_call(self, record: CallRecord) -> None:
        """Count one call and forward it."""
        so_far = self._metered
        usage = record.usage
        if record.status == "refused":
            # A temporary refusal, until other calls are settled, ends no agent.
            if not record.reason.startswith(("budget_reserved", "client_gone")):
                self._metered = replace(so_far, refused=record.reason or "refused")
        else:
            self._metered = replace(
                so_far,
                calls=so_far.calls + 1,
                refused="",
                # The provider is not at fault if a client hangs up or an attempt ends.
                fault=record.reason if record.reason.startswith(("upstream_", "reply_unreadable")) else "",
                input=so_far.input + (usage.input or 0),
                output=so_far.output + (usage.output or 0),
                unknown=so_far.unknown + (usage.input is None or usage.output is None),
                quota=None if record.status == "ok" else so_far.quota,
            )
        self._on_call(record)

    def note_rest(self, rest: QuotaRest) -> None:
        """Note that a provider is out of quota; the provider that has quota again first counts."""
        known = self._metered.quota
        if known is None or rest.until < known.until:
            self._metered = replace(self._metered, quota=rest)

    def note_fault(self, reason: str) -> None:
        """Note that a provider's fault prevents a call from being sent; the next call that ends clears this."""
        self._metered = replace(self._metered, fault=reason)

    def read(self) -> MeteredUsage:
        """Return the usage so far."""
        return self._metered


def ledger_by_hand(spending: Spending, limits: LimitsConfig, *, budget: float | None, user: str) -> Ledger:
    """Return the ledger for calls outside missions: they cost at most `budget` USD and count for user and day."""
    counted = SpendingLimits(mission_usd=budget, user_usd=limits.user_usd, day_usd=limits.day_usd)
    return spending.ledger(mission=None, attempt=new_id("attempt"), limits=counted, user=user)


def _raise_open_file_limit() -> None:
    """Raise the soft limit of open files: an agent's connections must not exhaust the worker's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, _OPEN_FILES) if hard != resource.RLIM_INFINITY else _OPEN_FILES
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _client_environment(token: str, model: str, *, tools: bool) -> dict[str, str]:
    """Return the variables by which clients in a sandbox find the endpoint."""
    address = f"http://127.0.0.1:{GATEWAY_PORT}"
    return {
        "CHARGEHAND_GATEWAY": address,
        **({"CHARGEHAND_MCP": f"{address}/mcp"} if tools else {}),
        "CHARGEHAND_MODEL": model,
        "OPENAI_BASE_URL": f"{address}/v1",
        # The older name, which some clients still use.
        "OPENAI_API_BASE": f"{address}/v1",
        "OPENAI_API_KEY": token,
        "OPENAI_MODEL": model,
        "ANTHROPIC_BASE_URL": address,
        "ANTHROPIC_API_KEY": token,
        "ANTHROPIC_MODEL": model,
        "GOOGLE_GEMINI_BASE_URL": address,
        "GEMINI_API_KEY": token,
        "GEMINI_MODEL": model,
    }
