"""`chargehand gateway …`: models, scripts and recordings behind one local endpoint."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import urlsplit

from chargehand.app.composition import App
from chargehand.app.providers.served import (
    is_loopback,
    key_name,
    model_config,
    open_probe_reports,
    provider_limits,
    served_chain,
    with_fallbacks,
)
from chargehand.app.wiring.gateways import ledger_by_hand
from chargehand.cli._happenings import alert_text
from chargehand.cli._interrupt import Stop, run_async
from chargehand.cli._output import Output
from chargehand.core.config import Config
from chargehand.core.errors import UsageError
from chargehand.core.ports import Ledger, Spent
from chargehand.models._contract import CallRecord, Dialect, Price, ServedModel, Upstream
from chargehand.models._faults import Faults, FaultyUpstream
from chargehand.models._gateway import Gateway
from chargehand.models._health import ProviderLimits, Providers
from chargehand.models._ledger import MemoryLedger
from chargehand.models._recording import Recording, RecordingUpstream, RecordingWriter
from chargehand.models._redact import Redactor
from chargehand.models._replay import ReplayUpstream, load_script
from chargehand.models._script import ScriptUpstream

if TYPE_CHECKING:
    from chargehand.models._replay import Divergence

_ATTEMPT = "gateway"
_SCRIPTED, _RECORDED = "scripted", "recorded"
_FREE = Price(input=0.0, output=0.0, source="nothing is asked of a provider")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """What the command line asked for; `budget` is in USD."""

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
        """Whether no provider is asked."""
        return self.script is not None or self.replay is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """What is served, for how much, and what must not get out."""

    models: tuple[ServedModel, ...]
    budget: float | None
    ledger: Ledger
    redactor: Redactor
    limits: Mapping[str, ProviderLimits] = field(default_factory=dict)


def serve_gateway(out: Output, options: GatewayOptions) -> int:
    """Serve until a signal comes, which is the good end of it."""
    if options.script is not None and options.replay is not None:
        raise UsageError("both --script and --replay were given", hint="give one of them")
    host, port = _place(options.listen)
    faults = None if options.faults is None else Faults.parse(options.faults)
    with App.open() as app:
        offer = _offer(app, options, out)
        with _recorded(offer, options.record, faults) as models:
            run_async(lambda stop: _serve(out, replace(offer, models=models), options, host, port, stop))
    return 0


def _offer(app: App, options: GatewayOptions, out: Output) -> _Offer:
    config = app.user_configuration().config
    names = {name for model in config.models.values() if (name := key_name(model))}
    named = [] if options.offline else [model_config(config, name) for name in options.models]
    names |= {name for model in named if (name := key_name(model))}
    names |= {secret.name for secret in app.credentials.names()}
    secrets = {name: value for name in sorted(names) if (value := app.credentials.get(name))}
    redactor = Redactor(secrets, {"workspace": str(Path.cwd())})
    if options.offline:
        return _Offer(
            models=_offline(options, redactor, out),
            budget=options.budget,
            ledger=MemoryLedger(options.budget),
            redactor=redactor,
        )
    limit = config.limits.budget_usd if options.budget is None else options.budget
    return _Offer(
        models=_configured(app, config, options.models),
        budget=limit,
        ledger=ledger_by_hand(app.store.spending, config.limits, budget=limit, user=app.user),
        redactor=redactor,
        limits=provider_limits(config, app.environ),
    )


def _configured(app: App, config: Config, wanted: tuple[str, ...]) -> tuple[ServedModel, ...]:
    names = wanted or tuple(config.models)
    if not names:
        raise UsageError(
            "no model is configured",
            code="no_model",
            hint="keep one with  chargehand config set models.NAME.model MODEL,\n"
            "name one with --model PROVIDER:MODEL, or serve a file with --script or --replay",
        )
    reports = open_probe_reports(app.environ)
    return tuple(
        served_chain(name, config, keys=app.credentials, environ=app.environ, reports=reports) for name in names
    )


def _offline(options: GatewayOptions, redactor: Redactor, out: Output) -> tuple[ServedModel, ...]:
    upstream: Upstream
    if options.script is not None:
        upstream = ScriptUpstream(load_script(options.script))
        known: dict[str, set[Dialect]] = {_SCRIPTED: set(get_args(Dialect))}
    else:
        assert options.replay is not None
        recording = Recording.load(options.replay)
        if recording.torn:
            out.notice(recording.torn)
        known = _recorded_models(recording)
        upstream = ReplayUpstream(
            recording, redactor=redactor, lenient=options.lenient, on_divergence=_diverged(out)
        )
    return tuple(
        ServedModel(name=name, dialect=dialect, model=name, upstream=upstream, price=_FREE)
        for name in options.models or sorted(known)
        for dialect in get_args(Dialect)
        if dialect in (known.get(name) or set.union(*known.values()))
    )


def _recorded_models(recording: Recording) -> dict[str, set[Dialect]]:
    """Return the models of a recording and what each was asked in; other dialects are translated, as then."""
    known: dict[str, set[Dialect]] = {}
    for one in recording.exchanges:
        known.setdefault(str(one.request.get("model") or _RECORDED), set()).add(one.dialect)
    return known or {_RECORDED: set(get_args(Dialect))}


@contextlib.contextmanager
def _recorded(offer: _Offer, record: Path | None, faults: Faults | None) -> Iterator[tuple[ServedModel, ...]]:
    """Put faults and the recording around each upstream; what is recorded is what clients see, faults included."""
    writer = None if record is None else RecordingWriter(record)
    wrapped: dict[int, Upstream] = {}
    for upstream in (model.upstream for model in with_fallbacks(offer.models)):
        around: Upstream = upstream if faults is None else FaultyUpstream(upstream, faults)
        around = around if writer is None else RecordingUpstream(around, writer, offer.redactor)
        wrapped.setdefault(id(upstream), around)
    try:
        yield tuple(_wrapped(model, wrapped) for model in offer.models)
    finally:
        if writer is not None:
            writer.close()


def _wrapped(model: ServedModel, upstreams: Mapping[int, Upstream]) -> ServedModel:
    behind = tuple(_wrapped(other, upstreams) for other in model.fallback)
    return replace(model, upstream=upstreams[id(model.upstream)], fallback=behind)


async def _serve(out: Output, offer: _Offer, options: GatewayOptions, host: str, port: int, stop: Stop) -> None:
    ended = asyncio.Event()

    def end() -> bool:
        ended.set()
        return True

    stop.end = end
    try:
        async with Gateway(
            offer.models,
            ledger=offer.ledger,
            attempt=_ATTEMPT,
            on_call=lambda record: _show_call(out, record),
            on_alert=lambda spent: _show_alert(out, spent),
            redact=offer.redactor.text,
            providers=Providers(offer.limits),
        ) as gateway:
            port = await gateway.listen_tcp(host, port)
            _show_place(out, f"http://{_in_url(host)}:{port}", gateway.token, offer, options.record)
            await ended.wait()
    finally:
        for model in with_fallbacks(offer.models):
            await model.upstream.close()


def _show_place(out: Output, url: str, token: str, offer: _Offer, record: Path | None) -> None:
    models = [{"name": model.name, "dialect": model.dialect} for model in offer.models]
    out.document(
        {
            "openai_base_url": f"{url}/v1",
            "anthropic_base_url": url,
            "gemini_base_url": url,
            "token": token,
            "models": models,
            "budget_usd": offer.budget,
            "recording": None if record is None else str(record),
        }
    )
    limit = "unlimited" if offer.budget is None else f"{offer.budget:g} USD"
    rows = [
        ("OpenAI", f"{url}/v1"),
        ("Anthropic", url),
        ("Gemini", url),
        ("token", token),
        ("models", _names(offer.models)),
    ]
    rows += [("budget", limit), *([] if record is None else [("recording", str(record))])]
    for name, value in rows:
        out.text(f"{name:<10} {value}")
    out.text()


def _names(models: Iterable[ServedModel]) -> str:
    return ", ".join(dict.fromkeys(model.name for model in models))


def _show_call(out: Output, record: CallRecord) -> None:
    usage = record.usage
    out.document(
        {
            "call": record.call,
            "turn": record.turn,
            "model": record.model,
            "status": record.status,
            "http_status": record.http_status,
            "input_tokens": usage.input,
            "output_tokens": usage.output,
            "cost_usd": record.cost_usd,
            "seconds": record.seconds,
            "reason": record.reason,
            "provider": record.provider or None,
            "operation": record.operation,
            "first_seconds": record.first_seconds,
            "reported_usd": record.reported_usd,
            "skipped": record.skipped,
            "converted": record.converted,
        }
    )
    tokens = " ".join(f"{_known(count)} {way}" for count, way in ((usage.input, "in"), (usage.output, "out")))
    cost = "cost unknown" if record.cost_usd is None else f"{record.cost_usd:.6f} USD"
    why = f"  {record.reason}" if record.reason else ""
    status = f"{record.status} {record.http_status}"
    out.text(f"{record.turn:>4}  {record.model}  {status}  {tokens}  {cost}  {record.seconds:.1f} s{why}")


def _show_alert(out: Output, spent: Spent) -> None:
    if spent.limit not in ("user", "day"):
        spent = replace(spent, limit="gateway")
    out.document({"alert": asdict(spent)})
    out.text(f"      {alert_text(spent)}")


def _known(count: int | None) -> str:
    return "unknown" if count is None else str(count)


def _diverged(out: Output) -> Callable[[Divergence], None]:
    def tell(divergence: Divergence) -> None:
        fields: dict[str, Any] = {
            "attempt": divergence.attempt,
            "turn": divergence.turn,
            "pointer": divergence.pointer,
            "recorded": divergence.recorded,
            "sent": divergence.sent,
        }
        out.document({"divergence": fields})
        out.text(f"      {divergence}")

    return tell


def _place(listen: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; only this machine may ask, for the token travels as it is."""
    try:
        parts = urlsplit(f"http://{listen}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None or f"{_in_url(host)}:{port}" != listen.lower():
        raise _unusable(f"--listen: {listen!r} is no HOST:PORT")
    if not is_loopback(f"http://{listen}"):
        raise _unusable(f"--listen: {host!r} is not this machine alone")
    return host, port


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _unusable(message: str) -> UsageError:
    return UsageError(message, code="listen_invalid", hint="write 127.0.0.1:PORT, [::1]:PORT or localhost:PORT")
