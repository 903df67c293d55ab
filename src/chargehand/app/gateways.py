"""A model gateway for any program: configured models, a script or a recording behind one local endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from chargehand.app.providers.served import (
    model_config,
    open_probe_reports,
    provider_limits,
    served_chain,
    with_fallbacks,
)
from chargehand.app.wiring.gateways import ledger_by_hand
from chargehand.core.errors import UsageError
from chargehand.core.ports import KeyUse, Ledger, Spent
from chargehand.core.redaction import Redactor
from chargehand.credentials.scoped import ScopedKeys
from chargehand.models.contract import CallListeners, CallRecord, Dialect, ModelUpstream, Price, ServedModel
from chargehand.models.faults import Faults
from chargehand.models.faulty_upstream import FaultyUpstream
from chargehand.models.gateway import Gateway, ServedAttempt
from chargehand.models.metering import MemoryLedger
from chargehand.models.providers import ProviderLimits, Providers
from chargehand.models.recording import Recording, RecordingUpstream, RecordingWriter
from chargehand.models.registries import DIALECTS
from chargehand.models.replay import ReplayUpstream, load_script
from chargehand.models.request_matching import Divergence
from chargehand.models.script_upstream import ScriptUpstream
from chargehand.network.addresses import is_loopback
from chargehand.reports.known_secrets import KnownSecrets

if TYPE_CHECKING:
    from chargehand.app.composition import App

_ATTEMPT = "gateway"
_SCRIPTED = "scripted"
_RECORDED = "recorded"
_FREE = Price(input=0.0, output=0.0, source="no provider is called")


class GatewayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `gateway serve`; `budget` is in USD, `faults` a specification such as `429/7@2`."""

    models: tuple[str, ...] = ()
    listen: str = "127.0.0.1:0"
    script: Path | None = None
    replay: Path | None = None
    record: Path | None = None
    faults: str | None = None
    budget: float | None = None
    lenient: bool = False

    @property
    def offline(self) -> bool:
        """Whether no provider is called."""
        return self.script is not None or self.replay is not None


class GatewayModel(msgspec.Struct, frozen=True, kw_only=True):
    """A served model, and the dialect of its replies."""

    name: str
    dialect: str


class GatewayAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway's addresses, the token that clients send as their key, the served models and the budget."""

    openai_base_url: str
    anthropic_base_url: str
    gemini_base_url: str
    token: str
    models: tuple[GatewayModel, ...]
    budget_usd: float | None
    recording: str | None


class GatewayCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call: tokens and cost are null if unknown."""

    call: str
    turn: int
    model: str
    status: str
    http_status: int
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None
    seconds: float
    reason: str
    provider: str | None
    operation: str
    first_seconds: float | None
    reported_usd: float | None
    skipped: tuple[str, ...]
    converted: tuple[str, ...]

    @classmethod
    def of(cls, record: CallRecord) -> GatewayCall:
        """Return a call record as shown to a person."""
        return cls(
            call=record.call,
            turn=record.turn,
            model=record.model,
            status=record.status,
            http_status=record.http_status,
            input_tokens=record.usage.input,
            output_tokens=record.usage.output,
            cost_usd=record.cost_usd,
            seconds=record.seconds,
            reason=record.reason,
            provider=record.provider or None,
            operation=record.operation,
            first_seconds=record.first_seconds,
            reported_usd=record.reported_usd,
            skipped=record.skipped,
            converted=record.converted,
        )


class GatewayAlert(msgspec.Struct, frozen=True, kw_only=True):
    """A spending limit that is nearly used up."""

    alert: Spent


class GatewayDivergence(msgspec.Struct, frozen=True, kw_only=True):
    """A call that differs from the recorded one."""

    divergence: Divergence


class GatewayNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A message for a person that is not a result."""

    notice: str


GatewayEvent = GatewayAddress | GatewayCall | GatewayAlert | GatewayDivergence | GatewayNotice
Tell = Callable[[GatewayEvent], None]


class _Service(msgspec.Struct, frozen=True, kw_only=True):
    """The models to serve, their budget in USD, and the redactor for recordings."""

    models: tuple[ServedModel, ...]
    budget: float | None
    ledger: Ledger
    redactor: Redactor
    limits: Mapping[str, ProviderLimits] = msgspec.field(default_factory=dict)


def check_options(options: GatewayOptions) -> tuple[str, int]:
    """Return the loopback host and the port to listen on (0: any).

    Raises `UsageError` (`listen_invalid`) for other hosts: the token is not encrypted, so only this machine may
    connect.
    """
    if options.script is not None and options.replay is not None:
        raise UsageError("both --script and --replay were given", hint="give one of them")
    if options.budget is not None and not math.isfinite(options.budget):
        raise UsageError(
            f"--budget: {options.budget} is not an amount of money", hint="write an amount in USD, such as 2.5"
        )
    try:
        parts = urlsplit(f"http://{options.listen}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    # Compared as a whole, because urlsplit also accepts a user, a path and a query.
    if host is None or port is None or f"{_url_host(host)}:{port}" != options.listen.lower():
        raise _listen_error(f"--listen: {options.listen!r} is not HOST:PORT")
    if not is_loopback(f"http://{options.listen}"):
        raise _listen_error(f"--listen: {host!r} is not a loopback address")
    return host, port


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listen_error(message: str) -> UsageError:
    return UsageError(message, code="listen_invalid", hint="write 127.0.0.1:PORT, [::1]:PORT or localhost:PORT")


async def serve_gateway(app: App, options: GatewayOptions, *, tell: Tell, ended: asyncio.Event) -> None:
    """Serve until `ended` is set; pass to `tell` the address once calls are answered, then each finished call.

    Raises `UsageError`, `ConfigError` before anything is served.
    """
    host, port = check_options(options)
    faults = None if options.faults is None else Faults.parse(options.faults)

    def tell_alert(spent: Spent) -> None:
        # The ledger counts these calls as one mission; a person knows them as this gateway.
        limit = spent.limit if spent.limit in ("user", "day") else "gateway"
        tell(GatewayAlert(alert=replace(spent, limit=limit)))

    service = _prepare_service(app, options, tell)
    with _wrapped_upstreams(service, options.record, faults) as models:
        try:
            async with Gateway(
                models,
                ServedAttempt(id=_ATTEMPT, ledger=service.ledger),
                CallListeners(on_call=lambda record: tell(GatewayCall.of(record)), on_alert=tell_alert),
                providers=Providers(service.limits),
                redact=service.redactor.text,
            ) as gateway:
                port = await gateway.listen_tcp(host, port)
                url = f"http://{_url_host(host)}:{port}"
                tell(
                    GatewayAddress(
                        openai_base_url=f"{url}/v1",
                        anthropic_base_url=url,
                        gemini_base_url=url,
                        token=gateway.token,
                        models=tuple(GatewayModel(name=model.name, dialect=model.dialect) for model in models),
                        budget_usd=service.budget,
                        recording=None if options.record is None else str(options.record),
                    )
                )
                await ended.wait()
        finally:
            for model in with_fallbacks(models):
                await model.upstream.close()


def _prepare_service(app: App, options: GatewayOptions, tell: Tell) -> _Service:
    config = app.user_configuration().config
    # Every secret that this user stores or names is redacted, whether this gateway needs it or not.
    named = {} if options.offline else {name: model_config(config, name) for name in options.models}
    every = replace(config, models={**config.models, **named})
    # Without variables: a recording is replayed elsewhere, with others.
    redactor = KnownSecrets(app, every, {"workspace": str(app.cwd)}, variables=False)
    redactor.read()
    if options.offline:
        return _Service(
            models=_offline_models(options, redactor, tell),
            budget=options.budget,
            # Nothing is paid here, so the spending of the user and the day stays unchanged.
            ledger=MemoryLedger(options.budget),
            redactor=redactor,
        )
    served = options.models or tuple(config.models)
    if not served:
        raise UsageError(
            "no model is configured",
            code="no_model",
            hint="configure one: chargehand config set models.NAME.model MODEL,\n"
            "name one with --model PROVIDER:MODEL, or serve a file with --script or --replay",
        )
    reports = open_probe_reports(app.environ)
    project = app.projects.current()
    keys = ScopedKeys(app.credentials, KeyUse(projects=(project.id, str(project.path)) if project else ()))
    limit = config.limits.budget_usd if options.budget is None else options.budget
    return _Service(
        models=tuple(
            served_chain(name, config, keys=keys, environ=app.environ, reports=reports) for name in served
        ),
        budget=limit,
        ledger=ledger_by_hand(app.store.spending, config.limits, budget=limit, user=app.user),
        redactor=redactor,
        limits=provider_limits(config, app.environ),
    )


def _offline_models(options: GatewayOptions, redactor: Redactor, tell: Tell) -> tuple[ServedModel, ...]:
    upstream: ModelUpstream
    if options.script is not None:
        upstream = ScriptUpstream(load_script(options.script))
        known: dict[str, set[Dialect]] = {_SCRIPTED: set(DIALECTS)}
    else:
        assert options.replay is not None
        recording = Recording.load(options.replay)
        if recording.torn:
            tell(GatewayNotice(notice=recording.torn))
        known = {}
        for one in recording.exchanges:
            known.setdefault(str(one.request.get("model") or _RECORDED), set()).add(one.dialect)
        known = known or {_RECORDED: set(DIALECTS)}
        upstream = ReplayUpstream(
            recording,
            redactor=redactor,
            lenient=options.lenient,
            on_divergence=lambda divergence: tell(GatewayDivergence(divergence=divergence)),
        )
    # A model is served in the dialects of its recording; the gateway translates others, as it did when recording.
    return tuple(
        ServedModel(name=name, dialect=dialect, model=name, upstream=upstream, price=_FREE)
        for name in options.models or sorted(known)
        for dialect in DIALECTS
        if dialect in (known.get(name) or set.union(*known.values()))
    )


@contextlib.contextmanager
def _wrapped_upstreams(
    service: _Service, record: Path | None, faults: Faults | None
) -> Iterator[tuple[ServedModel, ...]]:
    """Wrap each upstream in faults and the recording; the recording has what clients see, faults included."""
    writer = None if record is None else RecordingWriter(record)
    wrapped: dict[int, ModelUpstream] = {}
    for upstream in (model.upstream for model in with_fallbacks(service.models)):
        around: ModelUpstream = upstream if faults is None else FaultyUpstream(upstream, faults)
        around = around if writer is None else RecordingUpstream(around, writer, service.redactor)
        wrapped.setdefault(id(upstream), around)

    def wrap(model: ServedModel) -> ServedModel:
        return replace(model, upstream=wrapped[id(model.upstream)], fallback=tuple(map(wrap, model.fallback)))

    try:
        yield tuple(map(wrap, service.models))
    finally:
        if writer is not None:
            writer.close()
