"""The options of `enable`: how a whole program is trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasdist.training import arguments
from kerasdist.training.options import DeviceLike, RunOptions, StepOptions


@dataclass(frozen=True)
class ProgramOptions:
    """The checked options of `enable`. They count for every call of the program."""

    devices: DeviceLike = "auto"
    run_dir: Path | None = None
    deterministic: bool = False
    shards: int | None = None
    jit: bool | str = "auto"
    clip_norm: float | None = None
    ema: float | None = None
    save_every: int | str | None = None
    keep: int = 2
    monitor: str | None = None
    keep_best: int = 1
    on_nan: str = "stop"
    allow_nan: bool | str = "warn"
    sync_batch_norm: bool = False

    @classmethod
    def checked(cls, **given: Any) -> ProgramOptions:
        path = arguments.as_path("run_dir", given.get("run_dir"))
        given["run_dir"] = None if path is None else path.expanduser().absolute()
        options = cls(**given)
        arguments.check_counts(shards=options.shards)
        arguments.check_allow_nan(options.allow_nan)
        # These refuse wrong values now, and not in the middle of a script.
        StepOptions.checked(
            jit=options.jit,
            clip_norm=options.clip_norm,
            ema=options.ema,
            on_nan=options.on_nan,
        )
        RunOptions.checked(
            None, save_every=options.save_every, keep=options.keep, keep_best=options.keep_best
        )
        return options

    def of_fit(self) -> dict[str, Any]:
        """The arguments of every `fit`, besides the folder of its run."""
        return {
            "devices": self.devices,
            "shards": self.shards,
            "deterministic": self.deterministic,
            "jit": self.jit,
            "clip_norm": self.clip_norm,
            "ema": self.ema,
            "on_nan": self.on_nan,
            "allow_nan": self.allow_nan,
            **({"sync_batch_norm": True} if self.sync_batch_norm else {}),
        }

    def of_test(self) -> dict[str, Any]:
        """The arguments of every `evaluate`."""
        names = ("devices", "shards", "deterministic", "allow_nan")
        return {name: getattr(self, name) for name in names}

    def of_predict(self) -> dict[str, Any]:
        """The arguments of every `predict`."""
        return {name: getattr(self, name) for name in ("devices", "shards", "deterministic")}

    def of_run(self) -> dict[str, Any]:
        """The arguments of a `fit` that is kept in a folder."""
        names = ("save_every", "keep", "monitor", "keep_best")
        return {name: getattr(self, name) for name in names}
