"""Finds out how a file writes its characters: UTF-8, perhaps with damage, or Windows-1252."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterable
from dataclasses import dataclass

_UNREADABLE = "\ufffd"


@dataclass(frozen=True)
class Encoding:
    """How characters are written as bytes.

    Attributes:
        name: Python's name for it.
        bad_line: The first line with bytes that it does not have; 0 if there is none.
    """

    name: str
    bad_line: int = 0


def encoding_of(blocks: Iterable[bytes], *, is_whole: bool = False) -> Encoding:
    """The encoding of a file that is read block by block.

    Damage is rare, so text is UTF-8 if most of its characters beyond ASCII are. Else it is
    Windows-1252, which holds Latin-1.

    Args:
        blocks: The file.
        is_whole: Whether the end of the file is there. If not, the last character may be cut.

    Example:
        >>> encoding_of([b"Z\\xc3\\xbcrich", b"\\nGen\\xc3\\xa8ve, Gen\\xe8ve"])
        Encoding(name='utf-8', bad_line=2)
        >>> encoding_of([b"Z\\xfcrich"])
        Encoding(name='cp1252', bad_line=0)
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    num_good = num_bad = lines_before = bad_line = 0
    for block in itertools.chain(blocks, [b""] if is_whole else []):
        text = decoder.decode(block, final=is_whole and not block)
        if not text.isascii():
            # Files that were damaged before hold the character for that.
            bad = max(0, text.count(_UNREADABLE) - block.count(_UNREADABLE.encode()))
            if bad and not bad_line:
                bad_line = lines_before + _line_ends(text[: text.index(_UNREADABLE)]) + 1
            num_bad += bad
            num_good += len(text) - len(text.encode("ascii", "ignore")) - bad
        lines_before += _line_ends(text)
    if num_bad and num_good <= num_bad:
        return Encoding("cp1252")
    return Encoding("utf-8", bad_line)


def _line_ends(text: str) -> int:
    return max(text.count("\n"), text.count("\r"))
