"""Unified diffs: makes them the way git does, and applies them strictly, line by line, in either direction.

Strictly means without fuzz or offsets: checksums have shown before that the file is the one the patch was made for.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from .trouble import Trouble

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class Hunk:
    """A run of lines that changes: where it begins in either file, and its lines with ` `, `-` or `+` in front."""

    old_start: int
    new_start: int
    lines: tuple[str, ...]

    def side(self, sign: str) -> list[str]:
        """The lines of the old ("-") or the new ("+") file."""
        return [line[1:] for line in self.lines if line[0] in (" ", sign)]


def blob(content: bytes) -> str:
    """git's name of the content, which lets `git am -3` find it."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def of(path: str, old: str, new: str) -> str:
    """The diff of one text file in git's format."""
    if not (old.endswith("\n") and new.endswith("\n")):
        raise Trouble(f"{path} does not end with a newline")
    names = f"{blob(old.encode())[:12]}..{blob(new.encode())[:12]}"
    body = difflib.unified_diff(lines_of(old), lines_of(new), f"a/{path}", f"b/{path}", n=3)
    return f"diff --git a/{path} b/{path}\nindex {names} 100644\n" + "".join(body)


def applied(path: str, diff: str, content: str, reverse: bool = False) -> str:
    """`content` with the diff's changes made, or undone."""
    lines = lines_of(content)
    result: list[str] = []
    done = 0
    for hunk in hunks(diff):
        before, after = ("+", "-") if reverse else ("-", "+")
        start = (hunk.new_start if reverse else hunk.old_start) - 1
        expected = hunk.side(before)
        if lines[start : start + len(expected)] != expected:
            raise Trouble(f"{path}: line {start + 1} and the following ones are not what the patch changes")
        result += lines[done:start] + hunk.side(after)
        done = start + len(expected)
    return "".join(result + lines[done:])


def hunks(diff: str) -> Iterator[Hunk]:
    """The hunks of a diff of one file; what stands before the first and after the last does not count."""
    lines = lines_of(diff)
    number = 0
    while number < len(lines):
        head = _HUNK.match(lines[number])
        number += 1
        if head is None:
            continue
        old_left, new_left = int(head[2] or 1), int(head[4] or 1)
        first = number
        while old_left > 0 or new_left > 0:
            if number == len(lines) or lines[number][0] not in " -+":
                raise Trouble("a patch ends in the middle of a hunk")
            old_left -= lines[number][0] in " -"
            new_left -= lines[number][0] in " +"
            number += 1
        yield Hunk(int(head[1]), int(head[3]), tuple(lines[first:number]))


def lines_of(text: str) -> list[str]:
    """Lines as git counts them: form feeds and the like are no ends."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
