"""Git's built-in conversions between a blob and its file: line ends, `$Id$`, encodings.

They follow git's `convert.c` (2.39, `core.autocrlf=false`, `core.eol=lf`), so that the files that an agent sees
and the content kept of its work equal a clone of the result. Filters are programs of a machine's owner: they are
never run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from msgspec import Struct

from chargehand.core.text import late_pattern

_LONE_LF = late_pattern(rb"(?<!\r)\n")
_EXPANDED_ID = late_pattern(rb"\$Id:[^$\n]*\$")
_CONTROL = bytes(code for code in range(32) if code not in b"\b\t\n\f\r\x1b") + b"\x7f"
_TEXT = bytes(code for code in range(256) if code not in _CONTROL and code not in b"\r\n")
_UTF = late_pattern(r"(?i)utf-?")
_BOM16 = (b"\xfe\xff", b"\xff\xfe")
_BOM32 = (b"\x00\x00\xfe\xff", b"\xff\xfe\x00\x00")


class ConversionError(ValueError):
    """A file that git would refuse too; the text follows the file's path in a sentence."""


class Conversion(Struct, frozen=True, kw_only=True):
    """The conversions that the attributes of a path request; `filter` is only named, never run.

    `text` turns CRLF into LF in the blob, `auto` limits that to content that looks like text, `crlf` turns LF into
    CRLF in the file.
    """

    text: bool = False
    auto: bool = False
    crlf: bool = False
    ident: bool = False
    encoding: str | None = None
    filter: str | None = None

    @property
    def changes_files(self) -> bool:
        """Whether a file can differ from its blob."""
        return self.crlf or self.ident or self.encoding is not None

    def to_file(self, blob: bytes, id: bytes) -> bytes:
        """Return the content that a checkout writes for a blob with the raw id `id`."""
        content = _expand_ident(blob, id) if self.ident else blob
        if self.crlf and not (self.auto and (b"\r" in content or _is_binary(content))):
            content = _LONE_LF.sub(b"\r\n", content)
        if self.encoding is not None and content:
            # If content cannot be encoded, git complains and writes the file as it is stored.
            encoded = _encode(content, to=self.encoding, source="UTF-8")
            content = content if encoded is None else encoded
        return content

    def to_blob(self, file: bytes, stored: Callable[[], bytes | None]) -> bytes:
        """Return the blob that `git add` makes of a file; `stored` returns the blob at that path in the base.

        Raises `ConversionError` if git would refuse the file.
        """
        content = file
        if self.encoding is not None and file:
            utf = _utf_form(self.encoding)
            with_mark = file.startswith(_BOM16 if utf.startswith("16") else _BOM32)
            if utf in ("16le", "16be", "32le", "32be") and with_mark:
                raise ConversionError(
                    f"begins with a byte order mark, which its encoding {self.encoding!r} forbids"
                )
            if utf in ("16", "32") and not with_mark:
                raise ConversionError(f"lacks the byte order mark that its encoding {self.encoding!r} needs")
            decoded = _encode(file, to="UTF-8", source=self.encoding)
            # By default git checks the round trip for this encoding only.
            lossy = self.encoding.lower() == "shift-jis"
            if decoded is None or (lossy and _encode(decoded, to=self.encoding, source="UTF-8") != file):
                raise ConversionError(f"is not in the encoding {self.encoding!r} that its attributes name")
            content = decoded
        if self.text and b"\r\n" in content:
            if not self.auto:
                content = content.replace(b"\r\n", b"\n")
            elif not _is_binary(content):
                before = stored() or b""
                # Content stored with CRLF stays so: otherwise a repository that was never normalised would be,
                # file by file.
                if b"\r\n" not in before or _is_binary(before):
                    content = content.replace(b"\r", b"")
        return _EXPANDED_ID.sub(b"$Id$", content) if self.ident else content


def _is_binary(content: bytes) -> bool:
    """Guess as git does: by a lone CR, a NUL, or more than one control character among 128 others."""
    if content.count(b"\r") != content.count(b"\r\n") or b"\0" in content:
        return True
    control = len(content) - len(content.translate(None, _CONTROL))
    # A final end-of-file mark of DOS does not count.
    control -= content.endswith(b"\x1a")
    return len(content) - len(content.translate(None, _TEXT)) >> 7 < control


def _expand_ident(content: bytes, id: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while (start := content.find(b"$Id", at)) >= 0:
        end = start + 4
        mark = content[start + 3 : end]
        if mark == b":":
            end = content.find(b"$", end) + 1
            if not end:
                break
            inside = content[start + 4 : end - 1]
            # With a line break, or a space other than the last character, it is the keyword of another system.
            if b"\n" in inside or b" " in inside[1:-1]:
                mark = b""
        if mark in (b"$", b":"):
            parts += (content[at:start], b"$Id: %s $" % id.hex().encode())
            at = end
        else:  # the next `$` may begin a keyword
            parts.append(content[at : start + 1])
            at = start + 1
    return b"".join((*parts, content[at:]))


# --- encodings


def _utf_form(encoding: str) -> str:
    match = _UTF.match(encoding)
    return encoding[match.end() :].lower() if match else ""


def _encode(content: bytes, *, to: str, source: str) -> bytes | None:
    """Return content in another encoding, `None` if the encoding is unknown or cannot hold it; names are git's."""
    mark = {"16le-bom": b"\xff\xfe", "16be-bom": b"\xfe\xff"}.get(_utf_form(to), b"")
    to = to[: -len("-bom")] if mark else to
    source = "UTF-16" if _utf_form(source) == "16le-bom" else source
    made = _iconv()(_official(to), _official(source), content)
    return None if made is None else mark + made


def _official(name: str) -> str:
    if _utf_form(name) == "8":
        return "UTF-8"
    return "ISO-8859-1" if name.lower() == "latin-1" else name


@cache
def _iconv() -> Callable[[str, str, bytes], bytes | None]:
    """Return the C library's `iconv(3)`, which git uses too: its tables differ from Python's in places."""
    import ctypes  # imported late: few repositories name an encoding

    library = ctypes.CDLL(None, use_errno=True)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.iconv_open.restype = pointer
    library.iconv_open.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
    library.iconv.restype = size
    library.iconv.argtypes = (pointer, pointer, pointer, pointer, pointer)
    library.iconv_close.argtypes = (pointer,)
    failed = ctypes.c_void_p(-1).value

    def convert(to: str, source: str, content: bytes) -> bytes | None:
        # Names come from a repository: accept only encoding names, no path and no option of iconv's.
        if not all(name.isascii() and re.fullmatch(r"[\w.:()+-]+", name) for name in (to, source)):
            return None
        handle = library.iconv_open(to.encode(), source.encode())
        if handle == failed:
            return None
        try:
            # More than any encoding makes of a byte, so that no converter reaches the end of the buffer.
            room = 8 * len(content) + 64
            out = ctypes.create_string_buffer(room)
            given = ctypes.c_char_p(content)
            at, left = ctypes.cast(given, pointer), size(len(content))
            to_at, to_left = ctypes.cast(out, pointer), size(room)
            made = library.iconv(
                handle, ctypes.byref(at), ctypes.byref(left), ctypes.byref(to_at), ctypes.byref(to_left)
            )
            return None if made == size(-1).value else out.raw[: room - to_left.value]
        finally:
            library.iconv_close(handle)

    return convert
