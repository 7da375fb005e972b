"""Reads spoken digits (FSDD) from WAV files or TFDS, or makes synthetic sounds."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import kerasdist
from kerasdist import KerasdistError, PublicData

from .recordings import RATE, BadClipError, Clip, parse_name, read_clip, read_samples
from .synthetic import make_synthetic

CLASS_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
EXAMPLE_SUFFIXES = (".wav",)
SPLITS = ("train", "validation")
# The official split: the first recordings of each digit and speaker are for testing.
NUM_TEST = 5
NUM_TRAIN = 2700


def _find_files(folder: Path) -> Path | None:
    # A clone has the plain name; the folder in an archive ends with its version.
    below = sorted(folder.glob("free-spoken-digit-dataset*/recordings"))
    for path in (folder, folder / "recordings", *below):
        if any(path.glob("*.wav")):
            return path
    return None


FSDD = PublicData(
    title="FSDD (spoken digits)",
    tfds="spoken_digit",
    version="1.0.9",
    url="https://github.com/Jakobovski/free-spoken-digit-dataset/archive/v1.0.9.tar.gz",
    megabytes=11,
    files="WAV files such as 7_jackson_32.wav, there or in recordings",
    find_files=_find_files,
    synthetic="sounds",
    # As TFDS publishes it (spoken_digit/checksums.tsv).
    sha256="8bc44cde129d505cbbb6b365c09f80c663f2aa77578afc634e6141a2f87100c0",
)


def build_data(config, split: str) -> kerasdist.Sequences:
    """Returns the clips of one split as log-mel frames, with their lengths and labels.

    Args:
        config: The recipe's `Config`.
        split: `"train"` or `"validation"`.

    Returns:
        Batches of `{"frames": float32 [n, time, bands], "length": int32 [n], "label": int64 [n]}`.

    Example:
        >>> data = build_data(Config(source="synthetic", num_validation=20), "validation")
        >>> len(data)
        20
    """
    if split not in SPLITS:
        raise KerasdistError(
            f"Received `split` {split!r}. Expected one of {', '.join(SPLITS)}. Use one of these."
        )
    samples, labels = _samples(config, split)
    return kerasdist.Sequences(
        {"frames": _frames(config, samples), "label": labels.astype(np.int64)}
    )


def read_sounds(config, split: str, positions) -> list[tuple[np.ndarray, int]]:
    """Returns the sounds of some examples and their rate, for the players of the report.

    Example:
        >>> clips = read_sounds(Config(source="synthetic", num_validation=4), "validation", [2])
        >>> clips[0][1]
        8000
    """
    samples, _ = _samples(config, split, warn=False)
    return [(samples[i], RATE) for i in positions]


def build_augment(config):
    """Returns `augment(batch, seed)` for the training clips; None for `augmentation` "none".

    Example:
        >>> build_augment(Config(augmentation="none")) is None
        True
    """
    from . import augmentation

    if config.augmentation == "none":
        return None
    return lambda batch, seed: augmentation.speech(batch, seed, config.mels)


def build_groups(config, split: str) -> dict[str, list[str]]:
    """Returns the speaker of each clip, for `kerasdist evaluate`.

    Example:
        >>> build_groups(Config(source="synthetic"), "validation")
        {}
    """
    source, folder = FSDD.locate(config.source, config.data_dir, warn=False)
    if source == "synthetic":
        return {}
    clips = _clips(source, folder, split, config.hold_out_speaker, config.skip_bad)
    return {"speaker": [clip.speaker for clip in clips]}


def read_examples(config, paths) -> dict[str, np.ndarray]:
    """Reads WAV files as the network gets them, for `kerasdist predict`.

    Args:
        config: The recipe's `Config`.
        paths: Files of any length, with one channel and 8,000 samples of 16 bits per second.

    Returns:
        `{"frames": float32 [n, time, bands], "length": int32 [n]}`.

    Example:
        >>> import tempfile, wave
        >>> with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        ...     with wave.open(file.name, "wb") as clip:
        ...         clip.setparams((1, 2, 8000, 0, "NONE", ""))
        ...         clip.writeframes(bytes(1600))
        ...     read_examples(Config(), [file.name])["frames"].shape
        (1, 10, 80)
    """
    return pad(_frames(config, [read_samples(Path(path)) for path in paths]))


def pad(frames: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Pads clips of different lengths with zeros, into one array.

    Example:
        >>> pad([np.ones((2, 3)), np.ones((5, 3))])["frames"].shape
        (2, 5, 3)
    """
    lengths = np.array([len(clip) for clip in frames], np.int32)
    padded = np.zeros((len(frames), lengths.max(), frames[0].shape[1]), np.float32)
    for row, clip in zip(padded, frames, strict=True):
        row[: len(clip)] = clip
    return {"frames": padded, "length": lengths}


def find_source(config) -> str:
    """Returns where the data of `config` comes from. Warns if it is not the real data.

    Example:
        >>> find_source(Config(source="synthetic"))
        'synthetic'
    """
    return FSDD.locate(config.source, config.data_dir)[0]


def num_examples(config) -> int:
    """Returns the number of training clips; the official number if they cannot be found.

    A trained model can be built again on a machine without the data.

    Example:
        >>> num_examples(Config(source="synthetic", num_train=20))
        20
    """
    try:
        source, folder = FSDD.locate(config.source, config.data_dir, warn=False)
        if source == "synthetic":
            return config.num_train
        return len(_clips(source, folder, "train", config.hold_out_speaker, config.skip_bad))
    except KerasdistError:
        return NUM_TRAIN


def _samples(config, split: str, *, warn: bool = True) -> tuple[Sequence[np.ndarray], np.ndarray]:
    """The sounds of a split, int16 `[samples]` each, and their labels."""
    source, folder = FSDD.locate(config.source, config.data_dir, warn=warn)
    if source == "synthetic":
        num_clips = config.num_train if split == "train" else config.num_validation
        # The split is part of the seed, so both splits have different sounds.
        return make_synthetic(num_clips, (config.synthetic_seed, SPLITS.index(split)))
    clips = _clips(source, folder, split, config.hold_out_speaker, config.skip_bad)
    return [clip.samples for clip in clips], np.array([clip.digit for clip in clips])


def _frames(config, samples: Sequence[np.ndarray]) -> list[np.ndarray]:
    from .features import log_mel

    return [log_mel(clip, config.mels, config.deltas) for clip in samples]


# The data, the groups and the number of steps all need the clips: they are read once.
@functools.lru_cache(maxsize=4)
def _clips(
    source: str, folder: Path, split: str, hold_out: str | None, skip_bad: bool
) -> tuple[Clip, ...]:
    """The clips of a split, sorted by file name."""
    clips = _all_clips(source, folder, skip_bad)
    if hold_out is None:
        tests = [clip.index < NUM_TEST for clip in clips]
    else:
        speakers = sorted({clip.speaker for clip in clips})
        if hold_out not in speakers:
            raise KerasdistError(
                f"Received `hold_out_speaker={hold_out!r}`. Expected one of {', '.join(speakers)}. "
                "Correct the name."
            )
        tests = [clip.speaker == hold_out for clip in clips]
    wanted = split == "validation"
    found = tuple(clip for clip, is_test in zip(clips, tests, strict=True) if is_test == wanted)
    if not found:
        raise KerasdistError(
            f"The folder {str(folder)!r} has no clip for the {split} data. Expected recordings 0 "
            f"to {NUM_TEST - 1} of each digit and speaker for validation, and other recordings for "
            "training. Add them."
        )
    return found


@functools.lru_cache(maxsize=2)
def _all_clips(source: str, folder: Path, skip_bad: bool) -> tuple[Clip, ...]:
    if source == "tfds":
        return _prepared_clips(folder)
    clips, bad = [], []
    for path in sorted(folder.glob("*.wav")):
        try:
            clips.append(read_clip(path))
        except BadClipError as error:
            if not skip_bad:
                raise
            bad.append(str(error))
    if bad:
        first = bad[0].removeprefix("Received ").split(". Expected")[0]
        total = len(bad) + len(clips)
        count = f"{len(bad)} of {total} file{'s' * (total != 1)}"
        print(f"skipped {count}; the first is {first}", file=sys.stderr)
    return tuple(clips)


def _prepared_clips(folder: Path) -> tuple[Clip, ...]:
    clips = []
    for example in FSDD.read_prepared(folder, "train", whole=False):
        # TFDS has all clips in one split: the file names tell the official split.
        name = parse_name(Path(example["audio/filename"].decode()))
        clips.append(Clip(*name, example["audio"].astype(np.int16)))
    return tuple(sorted(clips, key=lambda clip: (clip.digit, clip.speaker, str(clip.index))))
