"""Secrets in added lines, and blobs that are too large or binary."""

from __future__ import annotations

from collections.abc import Iterator

from chargehand.checks.trees import TreeReader, is_regular
from chargehand.core.records import Change, Finding
from chargehand.core.text import late_pattern

# Bytes of a file that are searched for secrets; a finding reports an unsearched rest.
SEARCHED = 8_000_000
_MAX_FINDINGS = 20
_SNIFFED_BYTES = 8_000
# Only unambiguous shapes: a false alarm here reverts a person's work.
_PATTERNS: tuple[tuple[str, bytes], ...] = (
    ("AWS access key", rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    ("private key", rb"-----BEGIN (?:[A-Z0-9]{2,16} ){0,2}PRIVATE KEY(?: BLOCK)?-----"),
    ("GitHub token", rb"\bgh[pousr]_[A-Za-z0-9]{36,255}\b|\bgithub_pat_[A-Za-z0-9_]{60,255}\b"),
    ("GitLab token", rb"\bglpat-[A-Za-z0-9_-]{20,64}\b"),
    ("Anthropic key", rb"\bsk-ant-[a-z]{2,8}[0-9]{2}-[A-Za-z0-9_-]{60,200}"),
    (
        "OpenAI key",
        rb"\bsk-(?:proj|svcacct|admin)-[A-Za-z0-9_-]{40,250}|\bsk-[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}\b",
    ),
    ("Google API key", rb"\bAIza[0-9A-Za-z_-]{35}(?![0-9A-Za-z_-])"),
    ("Slack token", rb"\bxox[abeprs]-[0-9]{8,16}-[0-9A-Za-z-]{20,120}"),
    ("Stripe key", rb"\b[rs]k_live_[0-9A-Za-z]{24,128}\b"),
)
# Every match of a pattern contains one of these: looking for them first is a hundred times as fast.
_MARKS = (
    b"AKIA", b"ASIA", b"PRIVATE KEY", b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_", b"glpat-",
    b"sk-", b"AIza", b"xox", b"k_live_",
)  # fmt: skip
# Keys made up for documentation, such as AWS's own AKIAIOSFODNN7EXAMPLE.
_DOCUMENTED = (b"EXAMPLE", b"XXXXXXXX", b"00000000", b"xxxxxxxx")
_ANY = late_pattern(b"|".join(b"(%s)" % pattern for _, pattern in _PATTERNS))


def blob_findings(change: Change, reader: TreeReader, *, large_bytes: int) -> Iterator[Finding]:
    """Yield findings on unwanted content in a path's new version."""
    if change.new_id is None or change.new_id == change.old_id or not is_regular(change.new_mode):
        return
    size = reader.blob_size(change.new_id)
    content = reader.read_blob(change.new_id, limit=SEARCHED)[:SEARCHED]
    if size > large_bytes:
        unsearched = "" if size <= SEARCHED else f"; only the first {SEARCHED} were searched for secrets"
        yield _warning("large_file", change.path, f"{size} bytes, more than {large_bytes}{unsearched}")
    if b"\0" in content[:_SNIFFED_BYTES]:
        message = f"{size} bytes of binary data, which cannot be reviewed as a diff"
        yield _warning("binary_file", change.path, message)
    if not any(mark in content for mark in _MARKS):
        return
    # Most changes contain no match, so the old content is read only once there is one.
    known: set[bytes] | None = None
    found = 0
    for match in _ANY.finditer(content):
        if any(word in match[0] for word in _DOCUMENTED):
            continue
        if known is None:
            is_file = change.old_id is not None and is_regular(change.old_mode)
            old = reader.read_blob(change.old_id or "", limit=SEARCHED) if is_file else b""
            known = set(old.split(b"\n"))
        start, end = content.rfind(b"\n", 0, match.start()) + 1, content.find(b"\n", match.start())
        if content[start : end if end >= 0 else None] in known:
            continue
        found += 1
        if found > _MAX_FINDINGS:
            return
        name = _PATTERNS[(match.lastindex or 1) - 1][0]
        # The message goes to logs and reports: it must not contain the secret.
        message = f"an added line seems to contain a secret ({name})"
        line = content.count(b"\n", 0, match.start()) + 1
        yield Finding(rule="secret", severity="error", path=change.path, message=message, line=line)


def _warning(rule: str, path: str, message: str) -> Finding:
    return Finding(rule=rule, severity="warning", path=path, message=message)
