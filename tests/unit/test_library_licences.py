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


@pytest.mark.parametrize("text", [MIT, GPL, BSD_3, "Licensed under the Apache License, Version 2.0"])
@pytest.mark.parametrize(
    "addition",
    [
        "The Software shall be used for Good, not Evil.",
        '"Commons Clause" License Condition v1.0\n\nThe Software is provided to you by the Licensor under the '
        "License, as defined below, subject to the following condition.",
        "Commercial use needs a licence of the author.",
        "You may not use the software for military purposes.",
        "All terms above apply only to versions before 3.0.",
    ],
)
def test_a_text_with_additions_is_not_known(text: str, addition: str) -> None:
    assert recognise_licence(text) != "unknown"
    if text != GPL:  # without the end of a long licence, what comes after it is taken for a part of it
        assert recognise_licence(f"{text}\n\n{addition}\n") == "unknown"
    assert recognise_licence(f"{addition}\n\n{text}") == "unknown"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("# SPDX-License-Identifier: MIT", "MIT"),
        ("/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */ int a;", None),
        ("<!-- SPDX-License-Identifier: (MIT OR ISC) -->", "(MIT OR ISC)"),
        ("# SPDX-License-Identifier: MIT, but see the file TERMS", "unknown"),
        ("# SPDX-License-Identifier: MIT/ISC", "unknown"),
        ("#" * 1970 + "SPDX-License-Identifier: MIT AND GPL-3.0-only", "MIT AND GPL-3.0-only"),
    ],
)
def test_a_line_of_spdx_is_read_whole(tmp_path: Path, line: str, expected: str | None) -> None:
    place = write_repository(tmp_path / "source", {"LICENSE": "zebra", "a.md": f"{line}\nzebra\n"})
    library = Library(tmp_path / "home")
    library.add(str(place))
    (hit,) = library.search("zebra", most=1)[0]
    assert hit.licence == (expected or "GPL-2.0-only WITH Linux-syscall-note")


def test_the_licence_of_the_product_itself_is_recognised() -> None:
    assert recognise_licence((Path(__file__).parents[2] / "LICENSE").read_text()) == "Apache-2.0"


@pytest.mark.parametrize(
    ("expression", "allowed", "expected"),
    [
        ("MIT OR GPL-3.0-only", {"mit"}, True),
        ("MIT AND GPL-3.0", {"MIT"}, False),
        ("MIT AND GPL-3.0", {"MIT", "GPL-3.0-only"}, True),
        ("MIT AND (ISC OR GPL-3.0)", {"MIT", "ISC"}, True),
        ("(MIT OR GPL-3.0) AND Apache-2.0", {"MIT"}, False),
        ("MIT OR ISC AND GPL-3.0", {"MIT"}, True),
        ("(MIT OR ISC) AND GPL-3.0", {"MIT"}, False),
        ("mit or gpl-3.0-only", {"MIT"}, True),
        ("(" * 2000 + "MIT" + ")" * 2000, {"MIT"}, True),
        # A later version may be chosen only if the file says so.
        ("GPL-3.0-or-later", {"GPL-3.0"}, True),
        ("GPL-2.0-or-later", {"GPL-3.0-only"}, True),
        ("GPL-2.0+", {"GPL-3.0-or-later"}, True),
        ("GPL-2.0-only", {"GPL-3.0"}, False),
        ("GPL-2.0-only", {"GPL-2.0-or-later"}, False),
        ("GPL-3.0", {"GPL-3.0-or-later"}, False),
        ("GPL-3.0-or-later", {"GPL-2.0"}, False),
        ("LGPL-2.1-or-later", {"GPL-3.0"}, False),
        ("MIT-0", {"MIT"}, False),
        # An exception of SPDX adds rights; another one may take some, and a demanded one must be there.
        ("GPL-2.0-only WITH Classpath-exception-2.0", {"GPL-2.0"}, True),
        ("GPL-2.0-or-later WITH GCC-exception-3.1", {"gpl-3.0 with gcc-exception-3.1"}, True),
        ("GPL-2.0-only", {"GPL-2.0 WITH Classpath-exception-2.0"}, False),
        ("GPL-2.0 WITH Bison-exception-2.2", {"GPL-2.0 WITH Classpath-exception-2.0"}, False),
        ("Apache-2.0 WITH Commons-Clause", {"Apache-2.0"}, False),
        ("MIT WITH LicenseRef-Not-Evil AND ISC", {"MIT", "ISC"}, False),
        # Not expressions.
        ("MIT ISC", {"MIT", "ISC"}, False),
        ("MIT AND", {"MIT"}, False),
        ("MIT / ISC", {"MIT", "ISC"}, False),
        ("(MIT", {"MIT"}, False),
        ("OR MIT", {"MIT"}, False),
        ("MIT OR \1", {"ISC"}, False),
        ("(MIT)(ISC)", {"MIT", "ISC"}, False),
        ("(" * 2000 + "MIT", {"MIT"}, False),
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
