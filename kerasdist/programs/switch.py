"""`enable` and `disable`: Keras's own methods go through kerasdist, or not."""

from __future__ import annotations

from typing import Any, Self

from kerasdist.models import pure
from kerasdist.programs.methods import replacements
from kerasdist.programs.options import ProgramOptions
from kerasdist.programs.program import Program
from kerasdist.training.keras_arguments.hints import with_hints
from kerasdist.training.options import DeviceLike, PathLike

_current: Program | None = None
# Keras's own methods, while they are replaced.
_originals: dict[str, Any] = {}


class Enabled:
    """What `enable` returns: `with enable(...):` puts back at its end what was there before."""

    def __init__(self, program: Program, before: Program | None):
        self._program, self._before = program, before

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        _use(self._before)

    def __repr__(self) -> str:
        return f"kerasdist.enable(devices={self._program.options.devices!r})"


@with_hints
def enable(
    devices: DeviceLike = "auto",
    run_dir: PathLike | None = None,
    deterministic: bool = False,
    *,
    shards: int | None = None,
    jit: bool | str = "auto",
    clip_norm: float | None = None,
    ema: float | None = None,
    save_every: int | str | None = None,
    keep: int = 2,
    monitor: str | None = None,
    keep_best: int = 1,
    on_nan: str = "stop",
    allow_nan: bool | str = "warn",
    sync_batch_norm: bool = False,
) -> Enabled:
    """From here on, `model.fit`, `evaluate` and `predict` of every Keras model use kerasdist.

    So do `train_on_batch`, `test_on_batch` and `predict_on_batch`. All their arguments keep Keras's
    meaning. Models made before are covered, too. A second call replaces the options. As a `with`
    block, it ends with the block. See docs/programs.md.

    Args:
        devices: As in `kerasdist.fit`.
        run_dir: A folder. Each `fit` of the program gets a folder in it: `fit-01`, `fit-02` and so
            on. If the program is killed, starting it again loads the fits that were finished and
            continues the interrupted one.
        deterministic: With the same `shards`, get the same bits on any number of devices.
        shards: As in `kerasdist.fit`; so are the options that follow.
        jit: Compile with XLA: True, False or "auto".
        clip_norm: The largest global norm of the gradients.
        ema: The decay of a moving average of the weights.
        save_every: How often to save a checkpoint: steps, seconds ("30s") or "epoch".
        keep: How many checkpoints to keep, at least 2.
        monitor: The logged value that decides which model is `best.keras`.
        keep_best: How many of the best models to keep.
        on_nan: "stop" or "skip".
        allow_nan: What happens to NaN and infinity in the data: "warn", True (accept them) or
            False (refuse them). Steps are always checked.
        sync_batch_norm: Take the statistics of every BatchNormalization over the whole batch.

    Returns:
        An object for `with`.

    Raises:
        KerasdistError: For an option with a wrong value.

    Example:
        >>> import keras, numpy as np, kerasdist
        >>> model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")])
        >>> model.compile("sgd", "mse")
        >>> x = np.ones((8, 2))
        >>> with kerasdist.enable(devices=2):
        ...     history = model.fit(x, x[:, :1], epochs=2, verbose=0)
        >>> history.epoch
        [0, 1]
    """
    options = ProgramOptions.checked(
        devices=devices,
        run_dir=run_dir,
        deterministic=deterministic,
        shards=shards,
        jit=jit,
        clip_norm=clip_norm,
        ema=ema,
        save_every=save_every,
        keep=keep,
        monitor=monitor,
        keep_best=keep_best,
        on_nan=on_nan,
        allow_nan=allow_nan,
        sync_batch_norm=sync_batch_norm,
    )
    before, program = _current, Program(options)
    _use(program)
    return Enabled(program, before)


def disable() -> None:
    """Puts Keras's own methods back. Does nothing if kerasdist is not enabled.

    Example:
        >>> import kerasdist
        >>> _ = kerasdist.enable(devices=1)
        >>> kerasdist.disable()
    """
    _use(None)


def tell_devices() -> None:
    """Lets the program say once, on stderr, which devices it uses."""
    if _current is not None:
        _current.tells_devices = True


def _use(program: Program | None) -> None:
    global _current
    if program is not None and not _originals:
        _originals.update(pure.methods())
        pure.set_methods(replacements(_originals, _find))
    elif program is None and _originals:
        pure.set_methods(_originals)
        _originals.clear()
    _current = program


def _find() -> Program | None:
    return _current
