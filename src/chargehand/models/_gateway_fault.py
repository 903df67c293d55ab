"""Why the gateway itself refuses or breaks off, with the HTTP status of each reason."""

from __future__ import annotations

STATUS = {
    "bad_request": 400,
    "uncarried": 400,
    "token_invalid": 401,
    "token_revoked": 401,
    "budget_exhausted": 402,
    "price_unknown": 402,
    "not_found": 404,
    "model_not_found": 404,
    "not_kept": 404,
    "method_not_allowed": 405,
    "too_large": 413,
    "unsupported_encoding": 415,
    "quota_exhausted": 429,
    "upstream_unreachable": 502,
    "upstream_cut": 502,
    "upstream_malformed": 502,
    "upstream_resting": 503,
    "upstream_timeout": 504,
}
CODES = {status: code for code, status in reversed(STATUS.items())}


class GatewayFault(Exception):
    """A stable code and a sentence for the client; `wait` is in how many seconds asking again makes sense."""

    def __init__(self, code: str, message: str, *, wait: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.wait = wait

    @property
    def status(self) -> int:
        """The HTTP status that says it, where no head went out yet."""
        return STATUS.get(self.code, 500)


class LostReply(GatewayFault):
    """A reply that the provider may charge for and nobody has: worth another call, with money of its own."""


class NextModel(GatewayFault):
    """A model gave no reply, and another one is asked: its own error has been settled."""
