"""Licences of files: SPDX lines, licence files by their text, several, missing ones, and filters."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.library_kit import write_repository

from chargehand.knowledge._licences import is_allowed, join_licences, recognise_licence
from chargehand.knowledge.library import Library

MIT = """MIT License

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction ...

The above copyright notice and this permission notice shall be included in all copies or substantial portions of
the Software.
"""
BSD = """Redistribution and use in source and binary forms, with or without modification, are permitted provided
that the following conditions are met: ...
"""
BSD_3 = BSD + "Neither the name of the holder may be used to endorse\n * or promote products derived from it."
GPL = "GNU GENERAL PUBLIC LICENSE\n   Version 3, 29 June 2007\n"
IDS = st.sampled_from(["MIT", "ISC", "GPL-3.0-or-later", "Apache-2.0", "unknown"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MIT, "MIT"),
        (MIT.replace("The above", "#  The\n# above"), "MIT"),
        (BSD, "BSD-2-Clause"),
        (BSD_3, "BSD-3-Clause"),
        (GPL, "GPL-3.0"),
        (MIT + GPL, "GPL-3.0 AND MIT"),
        ("All rights reserved.", "unknown"),
        ("", "unknown"),
    ],
)
def test_a_text_is_recognised(text: str, expected: str) -> None:
    assert recognise_licence(text) == expected


def test_the_licence_of_the_product_itself_is_recognised() -> None:
    assert recognise_licence((Path(__file__).parents[2] / "LICENSE").read_text()) == "Apache-2.0"


@pytest.mark.parametrize(
    ("expression", "allowed", "expected"),
    [
        ("MIT OR GPL-3.0-only", {"mit"}, True),
        ("MIT AND GPL-3.0", {"MIT"}, False),
        ("MIT AND GPL-3.0", {"MIT", "GPL-3.0-or-later"}, True),
        ("MIT AND (ISC OR GPL-3.0)", {"MIT", "ISC"}, False),
        ("GPL-2.0-only WITH Classpath-exception-2.0", {"GPL-2.0"}, True),
        ("MIT AND unknown", {"MIT", "unknown"}, False),
        ("unknown", {"unknown"}, False),
    ],
)
def test_filters(expression: str, allowed: set[str], expected: bool) -> None:
    assert is_allowed(expression, allowed) is expected


@given(st.sets(IDS, min_size=1), st.sets(IDS))
def test_a_joined_licence_needs_all_its_parts(parts: set[str], allowed: set[str]) -> None:
    assert is_allowed(join_licences(parts), allowed) is (parts <= allowed - {"unknown"})


def test_each_file_has_its_nearest_licence(tmp_path: Path) -> None:
    word = "zebra stripes\n"
    place = write_repository(
        tmp_path / "source",
        {
            "LICENSE": MIT,
            "top.md": word,
            "own.md": f"<!-- SPDX-License-Identifier: Apache-2.0 OR MIT -->\n{word}",
            "vendor/COPYING": GPL,
            "vendor/deep/a.md": word,
            "both/LICENSE-MIT": MIT,
            "both/LICENSE.BSD": BSD_3,
            "both/a.md": word,
            "strange/LICENCE.txt": "Ask my lawyer.",
            "strange/a.md": word,
            "licenses/a.md": word,
            "license.py": word,
        },
    )
    (place / "linked").mkdir()
    (place / "linked" / "LICENSE").symlink_to("../vendor/COPYING")
    (place / "outside").mkdir()
    (place / "outside" / "LICENSE").symlink_to("../../../etc/passwd")
    for name in ("linked", "outside"):
        (place / name / "a.md").write_text(word)
    write_again(place)
    library = Library(tmp_path / "home")
    assert library.add(str(place), name="zebra").entry.licence == "MIT"
    hits, _ = library.search("zebra stripes", language="text", most=100)
    assert {hit.path: hit.licence for hit in hits} == {
        "top.md": "MIT",
        "own.md": "Apache-2.0 OR MIT",
        "vendor/deep/a.md": "GPL-3.0",
        "both/a.md": "BSD-3-Clause AND MIT",
        "strange/a.md": "unknown",
        "licenses/a.md": "MIT",
        "linked/a.md": "GPL-3.0",
        "outside/a.md": "unknown",
    }
    hits, _ = library.search("zebra", language="text", licences=["Apache-2.0", "unknown"], most=100)
    assert [hit.path for hit in hits] == ["own.md"]


def write_again(place: Path) -> None:
    """Commit the working tree of a repository as it is."""
    from tests.library_kit import COMMIT, git

    git(place, "add", "--all", "--force")
    git(place, *COMMIT)
