"""`is_chief`: whether this process is the one that writes and prints."""

from __future__ import annotations

from kerasdist.devices import cluster


def is_chief() -> bool:
    """Whether this process is the only one, or the chief of several workers.

    A script that runs on several workers asks this before it does something that must happen only
    once, such as writing a file.

    Example:
        >>> import kerasdist
        >>> kerasdist.is_chief()
        True
    """
    found = cluster.current()
    return found is None or found.is_chief
