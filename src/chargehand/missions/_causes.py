"""Why an attempt or a mission ended as it did: one class, the code it came from, and what to do about it.

The class follows from typed codes alone (of reasons, errors and findings), never from the words of a message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from chargehand.core.records import AttemptStatus, MissionStatus, Reason
from chargehand.core.state import SETTLED, AttemptState, MissionState

CauseClass = Literal["agent", "check", "provider", "budget", "person", "engine"]
CAUSE_CLASSES: tuple[CauseClass, ...] = get_args(CauseClass)
ENDED: frozenset[MissionStatus] = SETTLED - {"paused"}
"""Statuses in which a mission goes on only if a person makes it; a paused one has not ended."""
MEANINGS: Mapping[CauseClass, str] = {
    "agent": "the agent ended badly, or left nothing that could be judged",
    "check": "a check or a rule of the project refused what the agent left",
    "provider": "a service outside (a model, a registry, a forge) failed or refused",
    "budget": "time or money is used up",
    "person": "a person stopped it, or is asked: to decide, or to mend the request, configuration or repository",
    "engine": "Chargehand or the machine under it failed: neither the agent's fault nor a person's",
}
CAUSELESS = frozenset({"no_worker", "paused", "queued", "recovered", "report"})
"""Codes of reasons that explain no end: of a mission that goes on, or of one that went well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One class, with what to do next; `code` is `None` where the log gives no reason."""

    kind: CauseClass
    code: str | None
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What to do about some codes of one class."""

    kind: CauseClass
    codes: tuple[str, ...]
    text: str


def _remedy(kind: CauseClass, codes: str, text: str) -> Remedy:
    return Remedy(kind=kind, codes=tuple(codes.split()), text=text)


REMEDIES: tuple[Remedy, ...] = (
    _remedy(
        "agent",
        "agent_failed",
        "`chargehand mission log MISSION` shows how it ended; mend its command, or name another agent",
    ),
    _remedy(
        "agent",
        "agent_gave_up",
        "`chargehand mission show MISSION` has what the agent says; ask for less, or name another agent",
    ),
    _remedy(
        "agent",
        "malformed_message message_newer",
        "docs/reference/messages.md has the forms; name another agent or model where it comes back",
    ),
    _remedy(
        "person",
        "clarification_needed not_acknowledged not_delivered",
        "say in the request what the message asks for, or answer with `chargehand mission answer MISSION TEXT`",
    ),
    _remedy(
        "agent",
        "agent_missing",
        "install its program where `sandbox.toolchain` or PATH show it to sandboxes, or name another agent",
    ),
    _remedy(
        "person",
        "agent_unable",
        "name an agent that can, or the model that the message asks for; `chargehand agent probe` tells more",
    ),
    _remedy(
        "person",
        "patch_failed",
        "make the patch for the commit that the mission begins at; the message says what does not fit",
    ),
    _remedy(
        "agent",
        "context",
        "use a model with a larger context, or say the request in fewer words",
    ),
    _remedy(
        "agent",
        "turns",
        "ask for less at once, or use another model; `chargehand mission log MISSION --transcript` shows its work",
    ),
    _remedy(
        "agent",
        "no_change",
        "say more precisely what is to change, or name another agent",
    ),
    _remedy(
        "agent",
        "no_decision_record no_failing_test report_empty role_broke_checks role_tool role_wrote",
        "the role asks for it (`chargehand role show ROLE`): give it more `--attempts`, or name another role",
    ),
    _remedy(
        "person",
        "tests_untold",
        "mend the base first, so that its tests pass: until then nobody can tell a new failure from an old one",
    ),
    _remedy(
        "person",
        "failing_test_added",
        "take its tests over with `chargehand mission diff MISSION`, commit them, then let a developer work",
    ),
    _remedy(
        "person",
        "role_invalid role_shipped role_unknown role_untrusted",
        "`chargehand role list` tells which roles there are and what is wrong with a file",
    ),
    _remedy(
        "check",
        "check_failed",
        "`chargehand mission show MISSION` names what failed; let the agent try again with `--attempts`",
    ),
    _remedy("check", "check_timed_out", "make the check faster, or raise `limits.check_time`"),
    _remedy("check", "check_missing", "mend the check's command, or let `project.setup` install what it needs"),
    _remedy(
        "check",
        "check_error",
        "try the check by hand: `chargehand exec --mission MISSION -- CMD`",
    ),
    _remedy(
        "check",
        "merged_red not_green refused",
        "`chargehand mission show MISSION` names what failed; mend it with a new mission",
    ),
    _remedy(
        "check",
        "area_forbidden area_outside config_protected",
        "ask for less, or widen `project.allow` and `project.forbid`; chargehand.toml is changed by hand alone",
    ),
    _remedy(
        "check",
        "dependency_changed lock_mismatch",
        "say in the request which dependencies may change",
    ),
    _remedy(
        "check",
        "critical_found",
        "`chargehand mission show MISSION` names what the agent was stopped for; say in the request to keep off",
    ),
    _remedy(
        "check",
        "assertions_removed test_deleted test_removed test_skipped tolerance_loosened",
        "say in the request that the tests have to stay; tests that have to go are changed by hand",
    ),
    _remedy("check", "secret", "take the secret out, and revoke it where it is a real one"),
    _remedy(
        "check",
        "entry_executable entry_link_out entry_name entry_nested_git entry_setuid entry_special entry_submodule "
        "entry_unreadable gitignore_changed",
        "leave plain files, directories and links that stay inside the repository",
    ),
    _remedy(
        "check",
        "binary_file large_change large_file quota",
        "keep what is built in ignored paths, or raise `sandbox.disk_mb`",
    ),
    _remedy(
        "budget",
        "disk",
        "raise `sandbox.disk_mb` or `sandbox.files`, or ask for less at once",
    ),
    _remedy(
        "budget",
        "memory sandbox_memory",
        "raise `sandbox.memory_mb`, or lower `sandbox.tmp_mb`: temporary files are memory too",
    ),
    _remedy("budget", "cpu_time", "raise `sandbox.cpu_time`, or ask for less at once"),
    _remedy("budget", "processes", "raise `sandbox.processes`, or let the program start fewer at once"),
    _remedy("budget", "file_size", "raise `sandbox.file_mb`, or keep what is large out of one file"),
    _remedy("budget", "output", "raise `sandbox.output_mb`, or let the program say less"),
    _remedy("check", "setup_offline", "`chargehand project setup` makes its layer once it is promoted"),
    _remedy("check", "setup_tracked", "let `project.setup` write to ignored paths alone"),
    _remedy(
        "provider",
        "model_failed uncarried upstream_cut upstream_malformed upstream_timeout upstream_unreachable",
        "try again later, or name another model; `chargehand model probe` tells which one answers",
    ),
    _remedy(
        "provider",
        "quota_exhausted",
        'a worker goes on with it once there is quota; `chargehand mission answer MISSION "go on"` tries earlier',
    ),
    _remedy("provider", "no_key", "`chargehand secret set NAME`, or export it"),
    _remedy("person", "network_refused", "allow the host in `sandbox.network`, or do without it"),
    _remedy("provider", "registry_refused", "try again later; `chargehand project setup` shows what it says"),
    _remedy("budget", "time", "give more with `--time`, or ask for less at once"),
    _remedy(
        "budget",
        "budget",
        "raise the limit that the message names: `chargehand config set KEY USD`, or ask for less at once",
    ),
    _remedy(
        "budget",
        "price_unknown",
        "say in [models] what it costs, or set `limits.assume_usd_per_mtok` for all of unknown price",
    ),
    _remedy("budget", "exhausted", "raise the limit that `chargehand config show` names, or ask for less at once"),
    _remedy(
        "person",
        "area_protected check_surface checks_missing dependency_source waiting",
        "look at `chargehand mission diff MISSION`, then `chargehand mission promote MISSION` or `discard`",
    ),
    _remedy("person", "cancelled discarded", "none needed; start a new mission where it is wanted after all"),
    _remedy(
        "person",
        "breaker_open",
        '`chargehand mission answer MISSION "try anyway"`, or "use NAME" for another agent or model',
    ),
    _remedy("person", "question", "`chargehand mission answer MISSION TEXT` lets it go on"),
    _remedy(
        "person",
        "faults_invalid file_unreadable file_unwritable recording_invalid script_invalid no_script",
        "mend or name the file as the message asks; docs/reference/recording.md has the formats",
    ),
    _remedy(
        "person",
        "secret_invalid secret_keyring secrets_file",
        "mend the file or unlock the keyring as the message asks, then `chargehand secret set NAME`",
    ),
    _remedy("person", "setup_failed", "mend `project.setup`; `chargehand project setup` tries it"),
    _remedy(
        "person",
        "merge_conflict plan_stale promoted ref_moved rolled_back",
        "`chargehand mission show MISSION` tells what is promoted; roll it back, or start from the new state",
    ),
    _remedy(
        "person",
        "policy_denied",
        "`chargehand policy why MISSION` names the rule; set it aside with a reason, or change the command",
    ),
    _remedy("person", "trust_denied trust_needed trust_unasked", "`chargehand project trust` shows and grants it"),
    _remedy(
        "person",
        "area_invalid config_invalid engine_database engine_url no_base_url policy_invalid",
        "mend the configuration: `chargehand config show --origin` tells where each value comes from",
    ),
    _remedy("budget", "action_time", "give it more with `--time`, or raise `actions.time`"),
    _remedy(
        "person",
        "action_asks answered_no",
        "`chargehand action answer ACTION yes` lets it happen once; after a no, ask for it again",
    ),
    _remedy("person", "action_denied", "`chargehand policy show` has the rule; `policy allow` sets it aside"),
    _remedy(
        "person",
        "push_rejected remote_inside remote_not_found remote_protocol",
        "do as the message asks; `git remote -v` lists the remotes",
    ),
    _remedy("provider", "remote_unreachable", "`chargehand action log ACTION` has what git said; try again later"),
    _remedy("agent", "command_failed", "`chargehand action log ACTION` has what the command said"),
    _remedy(
        "engine",
        "action_lock action_lost keeper_stuck",
        "`chargehand action log ACTION` has how far it came; ask for it again",
    ),
    _remedy(
        "person",
        "apply_bare apply_base apply_detached bare base_not_found base_tree not_a_repository "
        "notes_unusable repository repository_empty repository_format repository_gone "
        "repository_incomplete repository_owner repository_path",
        "bring the repository into the state that the message names",
    ),
    _remedy(
        "person",
        "agent_ambiguous ambiguous answer_unknown command_invalid commit_not_found "
        "head_malformed head_of_other_mission "
        "key_reused listen_invalid malformed_order mission_exists mission_held no_agent no_base "
        "action_held commit_message hook_exists hook_shared index_unmerged "
        "no_model no_question not_at_rest not_cancellable not_discardable "
        "not_forkable not_found not_pausable not_promotable not_promoted not_resumable not_running not_sendable "
        "note_empty object_not_found output_exists output_unwritable promoting request_too_long "
        "port_taken rate_limited token_file "
        "rebase_promoted since_invalid tree_not_found unknown_order usage workspace_not_found",
        "say it as the message asks; `chargehand --help` lists the commands",
    ),
    _remedy(
        "engine",
        "fenced sandbox_died worker_lost",
        "start it again; where it comes back, the machine may lack memory: see `sandbox.memory_mb`",
    ),
    _remedy(
        "engine",
        "inspection_incomplete",
        "`chargehand mission promote MISSION` looks at all of it again, once the disk answers",
    ),
    _remedy(
        "engine",
        "git_missing git_timeout sandbox_unavailable too_many_files no_memory",
        "`chargehand doctor` says what this machine lacks and how to mend it",
    ),
    _remedy(
        "engine", "no_space store_full", "free some space: `chargehand gc --dry-run` shows what it would remove"
    ),
    _remedy(
        "engine",
        "no_watcher",
        "raise the kernel's fs.inotify.max_user_instances; until then workspaces are looked at every few seconds",
    ),
    _remedy(
        "engine",
        "no_clone",
        "move CHARGEHAND_HOME back to the file system that its workspaces were made on, or start the mission anew",
    ),
    _remedy(
        "engine",
        "not_permitted store_missing store_newer store_not_writable store_older",
        "give this version of the program a state directory it may write: CHARGEHAND_HOME",
    ),
    _remedy(
        "engine",
        "artifact_corrupt disk_failed head_missing key_damaged key_missing log_changed store store_busy "
        "store_corrupt store_io",
        "`chargehand audit verify` tells whether the log is whole; then look at the disk",
    ),
    _remedy(
        "engine",
        "base_differs demo_git depot engine_open error freeze_timeout freeze_unavailable git_failed "
        "infrastructure internal forwarder_failed gateway_socket launcher_lost network_socket registry_socket "
        "request_too_large server_missing tier_closed workspace snippet_engine",
        "start it again; where it comes back, report it with `chargehand mission log MISSION --json`",
    ),
)
"""Every code of the product, each once; MISSION stands for the mission's id."""

_BY_CODE = {code: remedy for remedy in REMEDIES for code in remedy.codes}
_UNNAMED: Mapping[CauseClass, str] = {
    "agent": "look at `chargehand mission log MISSION`, or name another agent",
    "check": "`chargehand mission show MISSION` shows the verdict",
    "provider": "try again later",
    "budget": "give more time or money, or ask for less at once",
    "person": "`chargehand mission show MISSION` tells what is asked",
    "engine": "start it again; where it comes back, report it with `chargehand mission log MISSION --json`",
}
_BY_ATTEMPT: Mapping[AttemptStatus, CauseClass] = {
    "refused": "check",
    "failed": "engine",
    "timed_out": "budget",
    "cancelled": "person",
    "lost": "engine",
}
_BY_MISSION: Mapping[MissionStatus, CauseClass] = {
    "waiting": "person",
    "refused": "check",
    "failed": "engine",
    "exhausted": "budget",
    "cancelled": "person",
    "discarded": "person",
}


def attempt_cause(attempt: AttemptState) -> Cause | None:
    """Return why an attempt did not succeed; `None` for one that did, or that runs."""
    if attempt.status == "lost":
        return _known("worker_lost")
    return _cause(_BY_ATTEMPT.get(attempt.status), attempt.reasons)


def mission_cause(state: MissionState) -> Cause | None:
    """Return why a mission did not end promoted; `None` for one that did, or that has not ended."""
    return _cause(_BY_MISSION.get(state.status), state.reasons)


def _cause(by_status: CauseClass | None, reasons: Sequence[Reason]) -> Cause | None:
    """Return the cause by the first reason of a known code; what only the status tells has no known code."""
    if by_status is None:
        return None
    for reason in reasons:
        if reason.code in _BY_CODE:
            return _known(reason.code)
    code = next((reason.code for reason in reasons if reason.code not in CAUSELESS), None)
    return Cause(kind=by_status, code=code, remedy=_UNNAMED[by_status])


def _known(code: str) -> Cause:
    remedy = _BY_CODE[code]
    return Cause(kind=remedy.kind, code=code, remedy=remedy.text)
