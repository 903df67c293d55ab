"""Running one snippet of Python or JavaScript by itself, as the person's own policy allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec

from chargehand.app.config.records import OptionValue
from chargehand.app.config.resolve import resolve
from chargehand.policy.actions import Effect, Snippet, Surroundings
from chargehand.policy.judgement import denied, judge
from chargehand.sandbox.snippet_pool import run_snippet
from chargehand.sandbox.snippets import ConsoleLine, SnippetError, SnippetSpec, language_of

if TYPE_CHECKING:
    from chargehand.app.composition import App


class SnippetJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """How the policy judged a snippet, by which rule and why."""

    effect: Effect
    rule: str
    reason: str


class SnippetRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a snippet gave: its value or an error; `peak_memory` in bytes, null where nobody counted."""

    value: Any
    console: tuple[ConsoleLine, ...]
    seconds: float
    peak_memory: int | None
    error: SnippetError | None
    language: str
    tier: str
    judged: SnippetJudgement


def plan_snippet(
    source: str, *, file: str, language: str | None, input: Any = None, time: str | None = None
) -> SnippetSpec:
    """Return a snippet to run; its language is told by the file's name where none is given.

    `time` is a duration such as `30s`. Raises `UsageError`, `ConfigError`.
    """
    limits: dict[str, Any] = {}
    if time is not None:
        options = {"limits.time": OptionValue(value=time, name="--time")}
        limits["seconds"] = resolve(options=options).config.limits.time
    kind = language or language_of(file)
    return SnippetSpec(language=cast("Any", kind), source=source, input=input, **limits)


def judge_snippet(app: App, spec: SnippetSpec) -> SnippetJudgement:
    """Judge a snippet by the person's own rules; raises `RefusedError` unless they allow it."""
    action = Snippet(language=spec.language, source=spec.source)
    judged = judge(action, Surroundings(purpose="exec", who="person"), app.rules())
    if judged.effect != "allow":
        raise denied("snippet", judged)
    return SnippetJudgement(effect=judged.effect, rule=judged.rule, reason=judged.reason)


async def run_judged_snippet(spec: SnippetSpec, judged: SnippetJudgement) -> SnippetRun:
    """Run a snippet that was allowed; raises `TierUnavailableError` where this machine cannot."""
    result = await run_snippet(spec)
    return SnippetRun(
        value=result.value,
        console=result.console,
        seconds=result.seconds,
        peak_memory=result.peak_memory,
        error=result.error,
        language=spec.language,
        tier="isolate",
        judged=judged,
    )
