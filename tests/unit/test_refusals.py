"""The meaning of a provider's refusal, in the forms that providers use."""

from __future__ import annotations

import pytest

from chargehand.models.refusals import RefusalCode, classify_refusal

# As the providers and servers write them.
OVERFLOWS = [
    '{"error": {"code": "context_length_exceeded", "message": "The maximum context length is 8192 tokens."}}',
    '{"object": "error", "message": "maximum context length is 8192 tokens. However, you requested 9000"}',
    '{"type": "error", "error": {"type": "x", "message": "prompt is too long: 208310 tokens > 200000"}}',
    '{"message": "Input is too long for requested model."}',
    '{"error": {"message": "The input token count (12) exceeds the maximum number of tokens allowed (11)."}}',
    '{"error": {"type": "exceed_context_size_error", "message": "exceeds the available context size"}}',
    '{"error": {"message": "Please reduce the length of the messages or completion."}}',
    '{"message": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length"}',
    '{"error": "input length exceeds the context length"}',
]


@pytest.mark.parametrize("body", OVERFLOWS)
@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_context_overflow_is_classified_as_context(body: str, status: int) -> None:
    assert classify_refusal(status, body) == "context"


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (401, '{"error": {"message": "Incorrect API key provided"}}', "key_refused"),
        (403, '{"error": {"message": "permission denied"}}', "key_refused"),
        (404, '{"error": {"message": "The model `gpt-9` does not exist"}}', "model_unknown"),
        (404, "", "model_unknown"),
        (403, "<!DOCTYPE html><html><body>Blocked by your proxy</body></html>", "upstream_page"),
        (404, "\n <html><title>Not found</title></html>", "upstream_page"),
        (403, '<?xml version="1.0"?>\n<!DOCTYPE html PUBLIC "x"><html></html>', "upstream_page"),
        (403, '<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "key_refused"),
        (404, "<header>not a page</header>", "model_unknown"),
        (503, "<html>Bad gateway</html>", ""),
        (400, '{"error": {"message": "tools.0.name is too long"}}', ""),
        (400, '{"error": {"message": "max_tokens: 9000 exceeds the model\'s output limit"}}', ""),
        (429, '{"error": {"message": "Request too large: maximum context length is per minute"}}', ""),
        (429, '{"error": {"message": "too many tokens in a minute"}}', ""),
        (500, '{"error": {"message": "internal error"}}', ""),
    ],
)
def test_other_refusals(status: int, body: str, code: RefusalCode) -> None:
    assert classify_refusal(status, body) == code
