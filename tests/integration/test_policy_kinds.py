"""Actions other than an agent's calls are judged too: setup, checks, `exec`, programs, snippets, scripts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.integration.mission_kit import FILES, GOLD, MissionKit
from tests.native_kit import FINISH, MENDS, NativeKit, call, says, scripted
from tests.unit.test_policy_forbidden import FORBIDDEN

from chargehand.app.wiring.policy_files import add_override
from chargehand.cli.main import chargehand
from chargehand.core.attempt_events import ActionJudged
from chargehand.core.errors import TierUnavailableError
from chargehand.core.events import decode
from chargehand.core.state import MissionState
from chargehand.missions.transcript import read_transcript
from chargehand.sandbox.snippet_pool import SnippetPool

pytestmark = pytest.mark.needs_bwrap


def judged(kit: MissionKit, mission: str, kind: str = "") -> list[ActionJudged]:
    app = kit.app()
    try:
        found = [decode(line.type, line.payload) for line in app.store.log.read(mission) if line.payload]
    finally:
        app.close()
    return [each for each in found if isinstance(each, ActionJudged) and kind in ("", each.kind)]


def results(kit: NativeKit, mission: str) -> list[str]:
    with kit.opened() as app:
        lines = read_transcript(app.store, app.mission_reader.state(mission))
        return [line.text for line in lines if line.speaker == "result"]


def told(events: list[ActionJudged]) -> list[tuple[str, str, str]]:
    return [(each.kind, each.effect, each.rule) for each in events]


def config(**values: object) -> dict[str, str]:
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    return {**FILES, "chargehand.toml": "\n".join(["[project]", *lines, ""])}


def own_rules(kit: MissionKit, text: str) -> None:
    path = kit.place / ".config" / "chargehand" / "policy.cedar"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def trust(kit: MissionKit) -> None:
    app = kit.app()
    try:
        found = app.preparation.find()
        resolved = app.preparation.configuration(found)
        app.store.trust.grant(found.project.id, resolved.digest, identity="os:me")
    finally:
        app.close()


def codes(state: MissionState) -> list[str]:
    return [reason.code for reason in state.reasons]


def set_back_checks(kit: MissionKit) -> MissionState:
    """Run a mission with the project's own checks."""
    import asyncio
    import shlex

    from msgspec.structs import replace
    from tests.integration.mission_kit import REQUEST

    async def run() -> MissionState:
        app = kit.app()
        try:
            async with app.session() as session:
                wanted = replace(REQUEST, agent=f"command:sh -c {shlex.quote(GOLD)}")
                made = session.missions.create(
                    wanted, repository=str(kit.repository), base=session.base, config={}
                )
                return await session.missions.run(made)
        finally:
            app.close()

    return asyncio.run(run())


class TestSetupAndChecks:
    def test_setup_of_an_untrusted_repository_is_judged_by_agent_rules(self, tmp_path: Path) -> None:
        kit = MissionKit(tmp_path, config(setup="touch made && git push origin main", checks=["cat calc/*"]))
        state = set_back_checks(kit)
        assert (state.status, codes(state)) == ("failed", ["policy_denied"])
        (setup,) = judged(kit, state.id)
        assert (setup.kind, setup.effect, setup.rule) == ("setup", "deny", "git-push")
        assert "the project's setup" in setup.subject

    def test_a_reason_sets_the_rule_aside(self, tmp_path: Path) -> None:
        kit = MissionKit(tmp_path, config(checks=["cat calc/*; docker --version || true"]))
        state = set_back_checks(kit)
        assert codes(state) == ["policy_denied"]
        assert told(judged(kit, state.id)) == [("check", "deny", "containers")]
        add_override(kit.environ, "containers", reason="only asks for the version")
        state = set_back_checks(kit)
        assert state.status == "promoted", state.reasons
        check, *_ = judged(kit, state.id, "check")
        assert (check.effect, check.overridden) == ("allow", ("containers",))

    def test_trust_is_another_rule(self, tmp_path: Path) -> None:
        files = config(setup="touch made; git push origin main 2>/dev/null; true", checks=["cat calc/*"])
        kit = MissionKit(tmp_path, files)
        trust(kit)
        state = set_back_checks(kit)
        assert state.status == "promoted", state.reasons
        assert told(judged(kit, state.id)) == [
            ("setup", "allow", "setup-trusted"),
            ("check", "allow", "check-trusted"),
            ("launch", "allow", "launch-agent"),
        ]

    def test_typed_checks_are_allowed_unless_a_user_rule_denies_them(self, tmp_path: Path) -> None:
        kit = MissionKit(tmp_path)
        state = kit.run(GOLD, checks=["cat calc/*; docker --version || true"])
        assert state.status == "promoted", state.reasons
        own_rules(
            kit,
            '@id("no-docker") forbid (principal, action == Action::"check", resource == Program::"docker");',
        )
        state = kit.run(GOLD, checks=["cat calc/*; docker --version || true"])
        assert codes(state) == ["policy_denied"]
        assert judged(kit, state.id)[0].rule == "user:no-docker"


class TestAgentsOwnPrograms:
    def test_a_rule_keeps_an_agent_from_starting(self, tmp_path: Path) -> None:
        kit = MissionKit(tmp_path)
        own_rules(kit, '@id("no-sh") forbid (principal, action == Action::"launch", resource == Program::"sh");')
        state = kit.run(GOLD, attempts=3)
        assert (state.status, codes(state)) == ("failed", ["policy_denied"])
        assert told(judged(kit, state.id, "launch")) == [("launch", "deny", "user:no-sh")]

    def test_a_rule_that_asks_waits_for_a_person(self, tmp_path: Path) -> None:
        kit = MissionKit(tmp_path)
        own_rules(kit, '@id("ask") @decision("ask") permit (principal, action == Action::"launch", resource);')
        state = kit.run(GOLD)
        assert state.status == "waiting", state.reasons
        assert state.open_question is not None
        assert "user:ask" in state.open_question.text


class TestExec:
    def say(self, kit: MissionKit, monkeypatch: pytest.MonkeyPatch, *words: str, stdin: str = "") -> Result:
        for name, value in kit.environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        monkeypatch.chdir(kit.repository)
        return CliRunner().invoke(chargehand, ["exec", *words], input=stdin)

    def test_a_persons_command_is_allowed_by_a_rule_that_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kit = MissionKit(tmp_path)
        said = self.say(kit, monkeypatch, "--json", "--", "git", "push", "--dry-run", "nowhere")
        assert json.loads(said.stdout)["judged"]["rule"] == "exec-by-person"
        own_rules(kit, '@id("no-git") forbid (principal, action == Action::"exec", resource == Program::"git");')
        said = self.say(kit, monkeypatch, "--json", "--", "git", "status")
        assert said.exit_code == 125
        assert json.loads(said.stderr)["error"]["code"] == "policy_denied"
        assert self.say(kit, monkeypatch, "--", "true").exit_code == 0

    def test_exec_in_a_mission_is_in_its_log(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        kit = MissionKit(tmp_path)
        state = kit.run(GOLD)
        assert (
            self.say(kit, monkeypatch, "--mission", state.id, "--", "grep", "-q", "+", "calc/core.py").exit_code
            == 0
        )
        assert told(judged(kit, state.id, "exec")) == [("exec", "allow", "exec-by-person")]
        app = kit.app()
        try:
            assert app.mission_reader.state(state.id).status == "promoted"
        finally:
            app.close()

    def test_a_snippet_is_judged_and_isolate_is_for_snippets(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kit = MissionKit(tmp_path)
        python = ("--snippet", "-", "--language", "python")
        said = self.say(kit, monkeypatch, "--sandbox", "isolate", "--json", *python, stdin="1 + 1")
        assert (json.loads(said.stdout)["value"], said.exit_code) == (2, 0)
        assert json.loads(said.stdout)["judged"]["rule"] == "snippet"
        refused = self.say(kit, monkeypatch, "--sandbox", "isolate", "--", "true")
        assert refused.exit_code == 125
        assert "--snippet" in refused.stderr
        assert self.say(kit, monkeypatch, "--sandbox", "process", *python, stdin="1").exit_code == 125
        own_rules(kit, '@id("no") forbid (principal, action == Action::"snippet", resource);')
        said = self.say(kit, monkeypatch, "--json", *python, stdin="1 + 1")
        assert json.loads(said.stderr)["error"]["code"] == "policy_denied"

    def test_run_names_the_way_out_of_isolate(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        kit = MissionKit(tmp_path)
        self.say(kit, monkeypatch, "--", "true")
        said = CliRunner().invoke(
            chargehand, ["run", "x", "--agent", "command:true", "--sandbox", "isolate", "--yes"]
        )
        assert said.exit_code == 2
        assert "--sandbox process" in said.stderr


class TestScripts:
    def test_a_script_is_refused_with_its_line_and_no_link_leads_outside(self, tmp_path: Path) -> None:
        files = {**FILES, "deploy.sh": "#!/bin/sh\ntouch ran\ngit push origin main\n"}
        kit = NativeKit(tmp_path, files)
        lines = (
            "sh deploy.sh",
            "printf 'ls\\ngit push\\n' > 'a ü.sh'; printf '\\377\\n$X\\n' > odd.sh; ln -s /etc/issue /tmp/out.sh",
            "bash 'a ü.sh'",
            "sh odd.sh; sh /tmp/out.sh >/dev/null 2>&1",
            "ls",
        )
        replies = tuple(says("", call("bash", command=line)) for line in lines)
        kit.model("scripted", scripted((*replies, *MENDS)))
        state = kit.native()
        assert state.status == "promoted", state.reasons
        first, _, second, odd, listed, *_ = results(kit, state.id)
        assert "git push origin main (deploy.sh:3)" in first
        assert "git push (a ü.sh:2)" in second
        assert "ran" not in listed
        assert "not done" not in odd
        assert [each.rule for each in judged(kit, state.id, "shell")] == [
            "git-push", "write-workspace", "git-push", "opaque-script", "program",
        ]  # fmt: skip


SUM = call("snippet", language="python", code="print('hm')\nsum(input)", input="[1, 2, 3]")


class TestSnippets:
    def test_snippets_of_a_model_return_values_and_are_recorded(self, tmp_path: Path) -> None:
        kit = NativeKit(tmp_path)
        wrong = (
            call("snippet", language="python", code="1 / 0"),
            call("snippet", language="cobol", code="1"),
            call("snippet", language="python", code="x = [0] * 10**8"),
            call("snippet", language="python", code="1", input="{"),
            call("snippet", language="python", code="'x' * 9000"),
        )
        kit.model("scripted", scripted((says("", SUM, *wrong), *MENDS)))
        state = kit.native()
        assert state.status == "promoted", state.reasons
        value, raised, cobol, memory, given, long, *_ = results(kit, state.id)
        document = json.loads(value)
        assert document["value"] == 6
        assert document["console"] == [{"level": "log", "text": "hm"}]
        assert document["limits"] == {"memory_mb": 16, "seconds": 5.0, "output_bytes": 8000}
        assert json.loads(raised)["error"]["name"] == "ZeroDivisionError"
        assert "did you mean" in cobol or "known" in cobol
        assert json.loads(memory)["error"]["kind"] == "memory"
        assert "not JSON" in given
        assert json.loads(long)["error"]["kind"] == "output"
        assert told(judged(kit, state.id, "snippet"))[0] == ("snippet", "allow", "snippet")
        assert judged(kit, state.id, "snippet")[0].text.startswith("python: print")

    def test_a_rule_denies_them(self, tmp_path: Path) -> None:
        kit = NativeKit(tmp_path)
        own_rules(kit, '@id("no") forbid (principal, action == Action::"snippet", resource);')
        kit.model("scripted", scripted((says("", SUM), *MENDS)))
        state = kit.native()
        assert state.status == "promoted"
        assert "user:no" in results(kit, state.id)[0]

    def test_unavailable_snippets_are_denied_with_the_reason_in_the_log(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def missing(self: SnippetPool) -> SnippetPool:
            raise TierUnavailableError("no user namespaces here", hint="sysctl …")

        monkeypatch.setattr(SnippetPool, "__aenter__", missing)
        kit = NativeKit(tmp_path)
        kit.model("scripted", scripted((says("", SUM), *MENDS)))
        state = kit.native()
        assert state.status == "promoted", state.reasons
        assert "use bash" in results(kit, state.id)[0]
        first = judged(kit, state.id, "snippet")[0]
        assert (first.effect, first.rule) == ("deny", "sandbox_unavailable")
        assert "no user namespaces here" in first.reason


class TestFiftyForbiddenActions:
    EXTRA = (
        "git reflog expire --all", "rm -rf /home", "truncate -s 0 .git/HEAD", "mv src .git", "passwd root",
        "cargo publish", "cargo install x", "go get x", "yarn add x", "podman run x", "glab mr create",
    )  # fmt: skip

    @property
    def lines(self) -> list[str]:
        lines = [line for line, _ in FORBIDDEN if line != "cat .env"] + list(self.EXTRA)
        assert len(lines) >= 50
        return lines

    def test_denied_actions_of_a_native_agent_are_not_executed(self, tmp_path: Path) -> None:
        kit = NativeKit(tmp_path)
        # a rule that asks would stop the mission each time
        asked = {
            "git filter-branch --all",
            "git branch -D main",
            "cp x .github/workflows/ci.yml",
            "git reflog expire --all",
        }
        lines = [line for line in self.lines if line not in asked]
        calls = [call("bash", command=f"touch ran-{number}; {line}") for number, line in enumerate(lines)]
        writes = [
            call("edit", path=path, old="", new="x")
            for path in (".git/x", "/etc/x", "../x", "chargehand.toml", "/proc/sys/x")
        ]
        kit.model("scripted", scripted((says("", *calls, *writes), says("", call("bash", command="ls")), *MENDS)))
        state = kit.native()
        assert state.status == "promoted", state.reasons
        events = [each for each in judged(kit, state.id) if each.attempt]
        denied = [each for each in events if each.effect == "deny"]
        assert len(denied) == len(calls) + len(writes) >= 50
        assert all(each.rule and each.reason and each.attempt for each in denied)
        answers = results(kit, state.id)
        assert all("not done" in answer for answer in answers[: len(denied)])
        assert "ran-" not in answers[len(denied)]

    def test_a_command_agents_are_harmless(self, tmp_path: Path) -> None:
        secret = tmp_path / "outside.txt"
        secret.write_text("mine")
        kit = MissionKit(tmp_path)
        before = {path: path.read_bytes() for path in (kit.repository / ".git").rglob("*") if path.is_file()}
        tries = "\n".join(
            f"({line}) </dev/null >/dev/null 2>&1 || :" for line in self.lines if "rm -rf" not in line
        )
        removes = "rm -rf /etc /home /usr ~ 2>/dev/null; find / -xdev -delete 2>/dev/null"
        # npm would try for a minute to reach a missing network, and git would pause after its warning.
        hasty = "export npm_config_fetch_retries=0 PIP_RETRIES=0 FILTER_BRANCH_SQUELCH_WARNING=1"
        state = kit.run(f"{GOLD}\nset +e\n{hasty}\n{tries}\n{removes}\ntrue")
        assert state.status != "promoted" or not state.reasons
        assert told(judged(kit, state.id, "launch"))[0] == ("launch", "allow", "launch-agent")
        assert secret.read_text() == "mine"
        assert Path(sys.executable).exists()
        after = {path: path.read_bytes() for path in before if path.is_file()}
        changed = {path.name for path in before if after.get(path) != before[path]}
        assert not changed


def test_finish_is_no_action(tmp_path: Path) -> None:
    kit = NativeKit(tmp_path)
    kit.model("scripted", scripted((FINISH,)))
    state = kit.native(attempts=1)
    assert {each.kind for each in judged(kit, state.id)} == {"check"}
