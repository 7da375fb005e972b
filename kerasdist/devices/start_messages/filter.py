"""A process that passes a pipe on to its standard error, and holds back TensorFlow's messages.

It is a process because a fatal error ends the one that writes: what was held back is then shown.
Only the standard library: it starts while TensorFlow does.
"""

from __future__ import annotations

import re
import sys
from typing import BinaryIO

# The last line of a writer whose messages nobody needs, and of one that failed.
PASSED, FAILED = b"kerasdist-messages-passed\n", b"kerasdist-messages-failed\n"
# Information, warnings and errors in both formats of TensorFlow's C++ code, and lines that belong
# to them. A fatal error begins with F.
_MESSAGE = re.compile(
    rb"[IWE]\d{4} [\d:.]+ +\d+ \S+:\d+\] "
    rb"|\d{4}-\d\d-\d\d [\d:.]+: [IWE] \S+:\d+\] "
    rb"|WARNING: All log messages before absl::InitializeLog\(\) is called"
    rb"|To enable the following instructions: "
)


def pass_on(source: BinaryIO, target: BinaryIO, *, everything: bool) -> None:
    """Passes lines on until the writer is finished.

    Args:
        source: What is written.
        target: Where the lines go.
        everything: Whether to hold back all lines, and not only TensorFlow's messages.
    """
    held = []
    for line in source:
        if line == PASSED:
            return
        if line == FAILED:
            break
        if everything or _MESSAGE.match(line):
            held.append(line)
        else:
            target.write(line)
            target.flush()
    target.writelines(held)
    target.flush()


if __name__ == "__main__":
    pass_on(sys.stdin.buffer, sys.stderr.buffer, everything="everything" in sys.argv)
