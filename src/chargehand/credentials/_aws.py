"""AWS Secrets Manager by boto3, which finds the credentials in its own chain."""

from __future__ import annotations

import threading
from typing import Any

from chargehand.core.errors import UsageError
from chargehand.credentials._setup import KeyPlace, KeySetup, pick_field

_MISSING = frozenset({"ResourceNotFoundException", "InvalidRequestException"})  # the second: marked for deletion
_DENIED = frozenset(
    {"AccessDeniedException", "AccessDenied", "UnrecognizedClientException", "InvalidClientTokenId"}
    | {"ExpiredTokenException", "ExpiredToken", "InvalidSignatureException", "SignatureDoesNotMatch"}
    | {"DecryptionFailure", "KMSAccessDeniedException"}
)
_WRONG = frozenset({"InvalidParameterException", "ValidationException"})


class AwsKeys:
    """Secrets of AWS Secrets Manager: the current version of a text, or a field of it if it is a JSON object."""

    is_cached = True

    def __init__(self, setup: KeySetup) -> None:
        self._setup, self._config = setup, setup.config
        self._client: Any = None
        self._lock = threading.Lock()

    def get(self, name: str) -> str | None:
        """Return the secret of that name."""
        return self.find(KeyPlace(name))

    def find(self, place: KeyPlace) -> str | None:
        """Return a secret, or a field of it; see `LocatedKeys`."""
        client = self._open()
        from botocore.exceptions import BotoCoreError, ClientError

        path = place.path or self._config.path or place.name
        try:
            found = client.get_secret_value(SecretId=path)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in _MISSING:
                return None
            # Not chained and without its message: it may quote the request.
            if code in _DENIED:
                raise self._setup.deny(f"denies {path!r} ({code})", "check its policy and credentials") from None
            if code in _WRONG:
                raise self._setup.misconfigured(f"does not accept {path!r} ({code})") from None
            raise self._setup.fail(f"cannot answer now ({code})") from None
        except BotoCoreError as error:
            kind = type(error).__name__
            if "Credentials" in kind or "Token" in kind:
                raise self._setup.deny(f"finds no credentials ({kind})", "see boto3's credentials") from None
            raise self._setup.fail(f"cannot be asked ({kind})", "check region, address and network") from None
        text = found.get("SecretString")
        if text is None:
            raise self._setup.misconfigured(f"has a binary value at {path!r}", "store it as text")
        return pick_field(self._setup, place, text)

    def _open(self) -> Any:
        with self._lock:  # making a client is not safe in several threads
            if self._client is None:
                try:
                    import boto3
                    from botocore.config import Config
                    from botocore.exceptions import BotoCoreError
                except ImportError:
                    raise UsageError(
                        f"the source {self._setup.name!r} of secrets needs the optional part 'aws'",
                        code="not_installed",
                        hint="pip install 'chargehand[aws]'",
                    ) from None
                seconds = self._config.timeout
                # Its own retries, with pauses, for throttling and lost connections.
                limits = Config(
                    connect_timeout=seconds,
                    read_timeout=seconds,
                    retries={"mode": "standard", "total_max_attempts": 3},
                )
                try:
                    session = boto3.session.Session(
                        profile_name=self._config.profile, region_name=self._config.region
                    )
                    self._client = session.client(
                        "secretsmanager", endpoint_url=self._config.address, config=limits
                    )
                except (BotoCoreError, ValueError) as error:
                    raise self._setup.misconfigured(f"cannot be opened ({type(error).__name__})") from None
            return self._client
