"""The forms of configuration values that are text."""

from __future__ import annotations

import re

from chargehand.core.text import late_pattern

_ARGUMENT = r"[^\x00\ud800-\udfff]"
_PRINTED = r"[^\x00-\x1f\x7f\ud800-\udfff]"
_SEGMENT = r"(?!\.{1,2}(?:/|\Z))[^/]+"
# For the forms named first: the pattern for the full text, the problem otherwise, and a hint.
FORMS: tuple[tuple[str, re.Pattern[str], str, str], ...] = (
    ("command agent", late_pattern(r".*\S.*", re.DOTALL), "an empty command", ""),
    (
        "prefix",
        # git's rules for names of refs, without characters that a shell reads.
        late_pattern(r"(?!.*(?:\.\.|//|/\.|\.lock/))[A-Za-z0-9_][A-Za-z0-9._/-]{0,98}[/_-]"),
        "not the beginning of a branch's name",
        "write letters, digits, '.', '_', '-' and '/', with '/', '_' or '-' at the end, such as 'team/agent/'",
    ),
    (
        "branch",
        # The number stays apart from other digits, so that two issues never have the same branch.
        late_pattern(
            r"|(?=.*(?<![0-9}])\{number\}(?![0-9{]))(?!.*(?:\.\.|//|/\.|\.lock(?:/|\Z)))"
            r"(?:[A-Za-z0-9_]|\{(?:number|slug)\})(?:[A-Za-z0-9._/-]|\{(?:number|slug)\}){0,98}(?<![./])"
        ),
        "not the name of a branch with the issue's number",
        "write letters, digits, '.', '_', '-', '/', {slug}, and {number} apart from digits: 'fix/{number}-{slug}'",
    ),
    (
        "template",
        late_pattern(r"(?:[^{}\x00-\x08\ud800-\udfff]|\{(?:number|title|author|url|repository)\}){0,4000}"),
        "not a template",
        "use {number}, {title}, {author}, {url} and {repository}, no other braces, and at most 4,000 characters",
    ),
    # An empty text means that no setup is wanted.
    ("setup", late_pattern(r"|.*\S.*", re.DOTALL), "an empty command", ""),
    (
        "command agent setup",
        late_pattern(rf"{_ARGUMENT}*"),
        "a command with a character that no command can contain",
        "",
    ),
    (
        "area",
        late_pattern(r"\S(?:.*\S)?", re.DOTALL),
        "a pattern that is empty or has blanks at its ends",
        "write a pattern as in .gitignore, such as src/**",
    ),
    (
        "area",
        late_pattern(r"[^!].*", re.DOTALL),
        "a negated pattern",
        "list paths that must not change in project.forbid",
    ),
    (
        "area",
        late_pattern(r"[^#].*", re.DOTALL),
        "a pattern that starts with '#'",
        "write '\\#…' for a name that starts with it",
    ),
    ("area", late_pattern(rf"{_PRINTED}*"), "a pattern with a control character", ""),
    (
        "area",
        late_pattern(f"/?{_SEGMENT}(?:/{_SEGMENT})*/?"),
        "a pattern that is not a plain path below the repository",
        "write 'src/**', '/Makefile', '*.md'",
    ),
    (
        "variable",
        late_pattern(rf"[A-Za-z_][A-Za-z0-9_]{{0,127}}={_ARGUMENT}*"),
        "not a variable",
        "write 'NAME=value'",
    ),
    (
        "path",
        late_pattern(rf"/{_PRINTED}*"),
        "not an absolute path",
        "write the full path, such as '/opt/tools/bin'",
    ),
    ("place", late_pattern(rf"{_PRINTED}{{1,1000}}"), "not a place", "use at most 1,000 printable characters"),
    (
        "url",
        late_pattern(rf"postgres(?:ql)?://{_PRINTED}*"),
        "not the address of a PostgreSQL database",
        "write 'postgresql://user@host/database'",
    ),
    (
        "name",
        late_pattern(r"[A-Za-z0-9_.:/-]{1,128}"),
        "not a name",
        "use at most 128 letters, digits and '_.:/-'",
    ),
    ("optional", late_pattern(r"[A-Za-z0-9_.:/-]{0,128}"), "not a name", "use letters, digits and '_.:/-'"),
    (
        "secret",
        late_pattern(r"[A-Z][A-Z0-9_]{1,63}"),
        "not the name of a secret",
        "store the key itself with `chargehand secret set OPENAI_API_KEY` and write that name here",
    ),
    ("model", late_pattern(r"[!-~]{1,256}"), "not the name of a model", ""),
    ("login", late_pattern(r"[!-~]{1,256}"), "not a name to log in with", ""),
    (
        "domain",
        late_pattern(r"[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,10}"),
        "not a domain",
        "write it without '@' and '*', such as example.org",
    ),
    (
        "mapping",
        late_pattern(rf"{_PRINTED}{{1,100}}=(?:viewer|operator|admin)"),
        "not the role of a group",
        "write GROUP=ROLE with viewer, operator or admin, such as ops=operator",
    ),
    ("label", late_pattern(rf"{_PRINTED}{{0,100}}"), "not a name", "use at most 100 characters"),
    # The address is inserted into a header and an SMTP command: no blank, line break or end-of-address character.
    (
        "mail",
        late_pattern(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,190}"),
        "not a mail address",
        "write it plainly, such as 'ops@example.org'",
    ),
    (
        "server",
        late_pattern(r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?"),
        "not a server",
        "write 'mail.example.org' or 'mail.example.org:587'",
    ),
    (
        "modality",
        late_pattern("text|image|pdf|audio|video"),
        "not a kind of content",
        "known: text, image, pdf, audio, video",
    ),
)
