"""Channels for notices: desktop, webhook, mail. Each gives up within seconds."""

from __future__ import annotations

import contextlib
import email.message
import email.utils
import hashlib
import hmac
import shutil
import smtplib
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from chargehand.core.errors import ChargehandError, ConfigError
from chargehand.core.own_config import AlertsConfig
from chargehand.core.ports import KeySource
from chargehand.core.registry import Registry
from chargehand.network.addresses import is_loopback
from chargehand.reports.alerting.words import NoticeDocument

if TYPE_CHECKING:
    from chargehand.network.http_client import WebClient

_SECONDS = 5.0
# Seconds before each retry.
_PAUSES = (0.5, 2.0)
# More popups at once hide each other.
_MOST_POPUPS = 3
_SMTPS = 465
_SUBMISSION = 587
SIGNATURE_HEADER = "X-Chargehand-Signature"


class ChannelFailedError(Exception):
    """A channel accepted only the first `taken` of the notices given to it; the message contains no secret."""

    def __init__(self, problem: str, *, taken: int = 0) -> None:
        super().__init__(problem)
        self.taken = taken


class NoticeChannel(Protocol):
    """A channel by which notices reach a person."""

    @property
    def name(self) -> str:
        """The name of the channel."""
        ...

    def send(self, notices: Sequence[NoticeDocument]) -> None:
        """Send all notices, in a few seconds at most. Raises `ChannelFailedError`."""
        ...


class DesktopChannel:
    """Shows notices with notify-send."""

    name = "desktop"

    def __init__(self, program: str, environ: Mapping[str, str]) -> None:
        self._program = program
        self._environ = environ

    def send(self, notices: Sequence[NoticeDocument]) -> None:
        """Show the first notices, and the number of the others."""
        shown = [notice.text for notice in notices[:_MOST_POPUPS]]
        if len(notices) > _MOST_POPUPS:
            shown.append(f"{len(notices) - _MOST_POPUPS} more: chargehand alerts")
        for text in shown:
            self.show(text)

    def show(self, text: str) -> None:
        """Show one text. Raises `ChannelFailedError`."""
        words = [self._program, "--app-name=Chargehand", "--", "Chargehand", text]
        try:
            subprocess.run(
                words, env=dict(self._environ), stdin=subprocess.DEVNULL, capture_output=True,
                timeout=_SECONDS, check=True,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            raise ChannelFailedError(f"notify-send failed: {_short(error)}") from None


class WebhookChannel:
    """Posts each notice as JSON, signed if a secret is configured; follows no redirect."""

    name = "webhook"

    def __init__(
        self,
        url: str,
        *,
        secret: str,
        keys: KeySource,
        stopping: threading.Event,
        pauses: Sequence[float] = _PAUSES,
    ) -> None:
        self._url = url
        self._secret = secret
        self._keys = keys
        self._stopping = stopping
        self._pauses = pauses

    def send(self, notices: Sequence[NoticeDocument]) -> None:
        """Post the notices in order until one fails; each is tried three times at most."""
        from chargehand.network.http_client import WebClient

        key = _secret(self._keys, self._secret) if self._secret else ""
        with WebClient(seconds=_SECONDS, connect_seconds=_SECONDS) as client:
            for taken, notice in enumerate(notices):
                try:
                    self._post(client, msgspec.json.encode(notice), key)
                except ChannelFailedError as error:
                    raise ChannelFailedError(str(error), taken=taken) from None

    def _post(self, client: WebClient, body: bytes, key: str) -> None:
        from chargehand.network.http_client import WebError

        for pause in (*self._pauses, None):
            headers = {"Content-Type": "application/json"}
            if key:
                headers[SIGNATURE_HEADER] = signature(body, key, moment=int(time.time()))
            try:
                status = client.status("POST", self._url, content=body, headers=headers)
            except WebError as error:
                problem = f"no answer: {error}"
            else:
                if 200 <= status < 300:
                    return
                problem = f"the answer was {status}"
                if status != 429 and status < 500:
                    raise ChannelFailedError(problem)
            if pause is None or self._stopping.wait(pause):
                raise ChannelFailedError(problem)


class MailChannel:
    """Sends one mail with all notices, over TLS; without TLS only to this machine, and never with a password."""

    name = "mail"

    def __init__(self, config: AlertsConfig, *, keys: KeySource) -> None:
        self._config = config
        self._keys = keys

    def send(self, notices: Sequence[NoticeDocument]) -> None:
        """Send all notices in one mail; raise `ChannelFailedError` unless the server accepts every address."""
        config = self._config
        if not config.mail_server:
            raise ChannelFailedError("alerts.mail_server is not set")
        host, _, written = config.mail_server.rpartition(":")
        if not host or written.endswith("]"):
            host, written = config.mail_server, ""
        host, port = host.strip("[]"), int(written or _SUBMISSION)
        password = _secret(self._keys, config.mail_password) if config.mail_password else ""
        message = _mail(notices, sender=config.mail_from or config.mail_to[0], to=config.mail_to)
        context = ssl.create_default_context()
        try:
            with (
                smtplib.SMTP_SSL(host, port, timeout=_SECONDS, context=context)
                if port == _SMTPS
                else smtplib.SMTP(host, port, timeout=_SECONDS)
            ) as server:
                server.ehlo()
                if port != _SMTPS and server.has_extn("starttls"):
                    server.starttls(context=context)
                    server.ehlo()
                elif port != _SMTPS and (
                    password or not is_loopback(f"smtp://[{host}]" if ":" in host else f"smtp://{host}")
                ):
                    raise ChannelFailedError(f"{host} offers no TLS (STARTTLS)")
                if config.mail_user:
                    server.login(config.mail_user, password)
                refused = server.send_message(message)
        # A server's error text may repeat what was sent to it.
        except (OSError, smtplib.SMTPException, ValueError) as error:
            raise ChannelFailedError(f"{host}: {_short(error)}") from None
        if refused:
            raise ChannelFailedError(f"{host} refused {', '.join(sorted(refused))}")


class ChannelSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of opening a channel; once `stopping` is set, no channel may wait any longer."""

    config: AlertsConfig
    keys: KeySource
    environ: Mapping[str, str]
    stopping: threading.Event


class BrokenChannel:
    """The channel of an extension that cannot be loaded: each notice fails with the reason."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        self._problem = problem

    def send(self, notices: Sequence[NoticeDocument]) -> None:
        """Raise `ChannelFailedError`."""
        raise ChannelFailedError(self._problem)


def open_channels(
    config: AlertsConfig, *, keys: KeySource, environ: Mapping[str, str], stopping: threading.Event
) -> tuple[NoticeChannel, ...]:
    """Return the channels that are configured and available on this machine."""
    setup = ChannelSetup(config=config, keys=keys, environ=environ, stopping=stopping)
    found: list[NoticeChannel | None] = []
    for name in NOTIFIERS.names():
        try:
            found.append(NOTIFIERS.find(name)(setup))
        except ConfigError as error:
            found.append(BrokenChannel(name, error.message))
    return tuple(channel for channel in found if channel is not None)


def _open_desktop(setup: ChannelSetup) -> NoticeChannel | None:
    return _find_desktop(setup.environ) if setup.config.desktop else None


def _find_desktop(environ: Mapping[str, str]) -> DesktopChannel | None:
    program = shutil.which("notify-send", path=environ.get("PATH"))
    # Without a session bus no person is logged in at a desktop here.
    if program is None or not environ.get("DBUS_SESSION_BUS_ADDRESS"):
        return None
    return DesktopChannel(program, environ)


def show_on_desktop(text: str, environ: Mapping[str, str]) -> None:
    """Show one text with notify-send if it is installed and a person is logged in; a failure has no effect."""
    channel = _find_desktop(environ)
    if channel is not None:
        with contextlib.suppress(ChannelFailedError):
            channel.show(text)


def _open_webhook(setup: ChannelSetup) -> NoticeChannel | None:
    url, secret = setup.config.webhook, setup.config.webhook_secret or ""
    return (
        WebhookChannel(url, secret=secret, keys=setup.keys, stopping=setup.stopping) if url is not None else None
    )


def _open_mail(setup: ChannelSetup) -> NoticeChannel | None:
    return MailChannel(setup.config, keys=setup.keys) if setup.config.mail_to else None


# A notifier returns its channel, `None` if that is not configured or not available.
Notifier = Callable[[ChannelSetup], NoticeChannel | None]
NOTIFIERS: Registry[Notifier] = Registry("notifiers", "notifier")
NOTIFIERS.register("desktop", lambda: _open_desktop, "notify-send at this desktop")
NOTIFIERS.register("webhook", lambda: _open_webhook, "a signed POST")
NOTIFIERS.register("mail", lambda: _open_mail, "a mail over TLS")


def signature(body: bytes, key: str, *, moment: int) -> str:
    """Return a webhook's signature header: `t` in seconds since 1970, and the HMAC-SHA256 of `t.body`, in hex.

    The time is signed too, so that an eavesdropper cannot replay a notice later.
    """
    signed = hmac.new(key.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={moment},v1={signed}"


def _mail(notices: Sequence[NoticeDocument], *, sender: str, to: Sequence[str]) -> email.message.EmailMessage:
    message = email.message.EmailMessage()
    first, more = notices[0], len(notices) - 1
    title = " ".join(first.text.split())[:150] + (f" (and {more} more)" if more else "")
    message["Subject"] = f"Chargehand on {first.host}: {title}"
    message["From"], message["To"] = sender, ", ".join(to)
    message["Date"] = email.utils.formatdate(usegmt=True)
    message["Message-ID"] = f"<{hashlib.sha256(first.id.encode()).hexdigest()[:32]}@{first.host}>"
    # Automatic responders must not reply (RFC 3834).
    message["Auto-Submitted"] = "auto-generated"
    lines = [f"{notice.time}  {notice.text}" for notice in notices]
    message.set_content("\n".join([*lines, "", "`chargehand alerts` lists all of them.", ""]))
    return message


def _secret(keys: KeySource, name: str) -> str:
    try:
        found = keys.get(name)
    except ChargehandError as error:
        raise ChannelFailedError(error.message) from None
    if found is None:
        raise ChannelFailedError(f"the secret {name} is not set: chargehand secret set {name}")
    return found


def _short(error: Exception) -> str:
    """Describe an error without any text that may contain sent data."""
    if isinstance(error, smtplib.SMTPResponseException):
        return f"{type(error).__name__} {error.smtp_code}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
