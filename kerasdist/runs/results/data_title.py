"""What to call the data of a run in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Where the data comes from, in result.json, if it is in files of the user's.
FILES = "files"


def data_title(dataset: str | None, config: Mapping[str, Any]) -> str | None:
    """The name of the file or folder with the data, or else where the data comes from.

    Args:
        dataset: Where the data comes from, as in result.json.
        config: The content of the run's config.json.

    Example:
        >>> data_title("files", {"settings": {"data_dir": "/home/me/people.csv"}})
        'people.csv'
        >>> data_title("tfds", {"settings": {"data_dir": None}})
        'tfds'
    """
    settings = config.get("settings")
    place = settings.get("data_dir") if isinstance(settings, Mapping) else None
    name = Path(place).name if isinstance(place, str) else ""
    return name if dataset == FILES and name else dataset
