"""The library finds the right file: 20 questions on three repositories, written before the answers were seen."""

from __future__ import annotations

import pytest
from tests.library_kit import entries, package_repository

from chargehand.knowledge.library import Library

QUESTIONS = {
    "complete command line options in bash and zsh": "click/shell_completion.py",
    "ask the user for confirmation, yes or no prompt": "click/termui.py",
    "show a progress bar in the terminal": "click/_termui_impl.py",
    "run a command in a test and capture its output": "click/testing.py",
    "wrap help text to the width of the terminal": "click/formatting.py",
    "validate that a number is in a range, parameter type": "click/types.py",
    "open a file lazily when it is first written": "click/utils.py",
    "decode a gzip or brotli compressed response body": "httpx/_decoders.py",
    "digest authentication challenge": "httpx/_auth.py",
    "multipart form upload boundary": "httpx/_multipart.py",
    "call a WSGI application directly without network": "httpx/_transports/wsgi.py",
    "percent encoding of a URL": "httpx/_urlparse.py",
    "follow redirects and limit their number": "httpx/_client.py",
    "timeout and connection pool limits configuration": "httpx/_config.py",
    "chunked transfer encoding reader": "h11/_readers.py",
    "state machine of client and server connection": "h11/_state.py",
    "normalize and validate header names and values": "h11/_headers.py",
    "buffer of received bytes, extract lines": "h11/_receivebuffer.py",
    "regular expressions of the HTTP grammar": "h11/_abnf.py",
    "write a response status line and headers to bytes": "h11/_writers.py",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    place = tmp_path_factory.mktemp("library")
    made = Library(place / "home")
    for name in ("click", "httpx", "h11"):
        added = made.add(str(package_repository(place / name, name)))
        assert added.entry.files == added.parsed
    return made


def test_the_right_file_is_among_the_first_five(library: Library) -> None:
    places = {}
    for question, path in QUESTIONS.items():
        hits, problems = library.search(question, most=5)
        assert not problems
        found = [hit.path for hit in hits]
        places[question] = found.index(path) + 1 if path in found else None
    recall = sum(place is not None for place in places.values()) / len(places)
    assert recall >= 0.8, places


def test_hits_name_commit_line_and_licence(library: Library) -> None:
    (hit,), _ = library.search("class WSGITransport", most=1)
    assert (hit.repository, hit.path, hit.licence, hit.language) == (
        "httpx",
        "httpx/_transports/wsgi.py",
        "BSD-3-Clause",
        "python",
    )
    assert hit.excerpt.startswith("class WSGITransport")
    assert hit.end_line == hit.line + 4
    assert {each.name: each.licence for each in entries(library)} == {
        "click": "BSD-3-Clause",
        "h11": "MIT",
        "httpx": "BSD-3-Clause",
    }
    assert hit.commit == next(each.commit for each in entries(library) if each.name == "httpx")
    hits, _ = library.search("header", licences=["mit"], most=100)
    assert hits
    assert {each.repository for each in hits} == {"h11"}
