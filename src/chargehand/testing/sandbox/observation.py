"""The part of the conformance suite about observing which files are opened, for tiers that offer it."""

from __future__ import annotations

import pytest

from chargehand.sandbox.contract import WORKSPACE, ObservesReads, OpenedFiles, Sandbox
from chargehand.testing.sandbox.kit import SandboxFixtures

_TREE = "mkdir -p a/b c; for name in top a/one a/two a/b/deep c/other; do echo 1 > $name; done"


class ObservationContract(SandboxFixtures):
    """The promises of a sandbox that is an `ObservesReads`."""

    @pytest.fixture
    async def observer(self, sandbox: Sandbox) -> ObservesReads:
        if not isinstance(sandbox, ObservesReads):
            pytest.skip("this tier does not see what is opened")
        await sandbox.observe([""])
        if not (await sandbox.opened_files()).complete:
            pytest.skip("this tier says that it does not see all that is opened")
        await sandbox.exec(["sh", "-c", _TREE])
        return sandbox

    async def run(self, observer: ObservesReads, script: str) -> OpenedFiles:
        await observer.exec(["sh", "-c", script])
        return await observer.opened_files()

    async def test_files_that_are_read_are_named(self, observer: ObservesReads) -> None:
        await observer.observe(["", "a", "a/b", f"{WORKSPACE}/c"])
        opened = await self.run(observer, "cat top a/b/deep c/other")
        assert opened == OpenedFiles(paths=frozenset({"top", "a/b/deep", f"{WORKSPACE}/c/other"}), complete=True)

    async def test_each_query_covers_the_time_since_the_previous_query(self, observer: ObservesReads) -> None:
        await observer.observe(["a"])
        assert (await self.run(observer, "cat a/one")).paths == {"a/one"}
        assert (await self.run(observer, "cat a/two")).paths == {"a/two"}
        assert (await observer.opened_files()).paths == frozenset()

    async def test_a_look_at_a_name_is_no_read(self, observer: ObservesReads) -> None:
        await observer.observe(["", "a"])
        assert (await self.run(observer, "ls -l . a; test -r a/one; cd a/b")).paths == frozenset()

    async def test_programs_that_are_started_are_named(self, observer: ObservesReads) -> None:
        await self.run(observer, "printf '#!/bin/sh\\nexit 0\\n' > a/script && chmod +x a/script")
        await observer.observe(["a"])
        assert (await self.run(observer, "a/script")).paths == {"a/script"}

    async def test_a_file_opened_through_a_link_is_named(self, observer: ObservesReads) -> None:
        await self.run(observer, "ln -s ../a/one c/link; ln a/two c/hard")
        await observer.observe(["a"])
        assert (await self.run(observer, "cat c/link; cd a/b && cat ../one")).paths == {"a/one"}

    async def test_a_replaced_file_is_still_observed(self, observer: ObservesReads) -> None:
        await observer.observe(["a"])
        opened = await self.run(observer, "cp a/one c/new && mv c/new a/one && cat a/one; true > a/made")
        assert opened.paths == {"a/one", "a/made"}

    async def test_a_directory_that_cannot_be_watched_is_not_passed_over(self, observer: ObservesReads) -> None:
        await self.run(observer, "ln -s a link")
        for place in ("gone", "top", "link"):
            await observer.observe(["a", place])
            opened = await self.run(observer, "cat a/one")
            assert opened == OpenedFiles(paths=frozenset({"a/one"}), complete=False)

    async def test_a_replaced_directory_is_reported_as_incomplete(self, observer: ObservesReads) -> None:
        await observer.observe(["", "c"])
        opened = await self.run(observer, "rm -r c && mkdir c && echo 1 > c/other && cat c/other")
        assert not opened.complete

    async def test_unusual_names_are_returned_unchanged(self, observer: ObservesReads) -> None:
        await self.run(observer, "mkdir 'a b'; echo > 'a b/new\nline'; echo > \"a b/$(printf '\\377')\"")
        await observer.observe(["a b"])
        assert (await self.run(observer, "cat 'a b'/*")).paths == {"a b/new\nline", "a b/\udcff"}

    async def test_more_opens_than_the_kernel_queues_are_all_reported(self, observer: ObservesReads) -> None:
        """Thousands of opens are reported completely, since they are read while the command runs."""
        await self.run(observer, "mkdir many; for n in $(seq 3000); do : > many/$n; done")
        await observer.observe(["many"])
        opened = await self.run(observer, "cd many; for turn in 1 2 3 4 5 6 7 8; do cat *; done")
        assert (len(opened.paths), opened.complete) == (3000, True)
