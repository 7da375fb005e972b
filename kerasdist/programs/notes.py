"""What kerasdist tells the user of a program, on stderr: what the program prints stays as it is."""

from __future__ import annotations

import sys
from typing import Protocol

import keras

from kerasdist.devices.placement import Placement
from kerasdist.devices.shard_counts import resolve_shards
from kerasdist.models import refusals
from kerasdist.phases.prose import say
from kerasdist.programs.chief import is_chief
from kerasdist.programs.options import ProgramOptions


class Teller(Protocol):
    """A program, which is told each note once. `told` has the notes so far."""

    options: ProgramOptions
    told: set[str]

    def place(self) -> Placement:
        """The program's devices."""


def tell(text: str) -> None:
    """Says something, once for all workers."""
    if is_chief():
        say(f"kerasdist: {text}", sys.stderr)


def tell_of_steps(program: Teller) -> None:
    """`train_on_batch` and `run_dir`."""
    if program.options.run_dir is not None and "steps" not in program.told:
        program.told.add("steps")
        tell(
            "`train_on_batch` saves nothing in `run_dir`: a script that is killed repeats these "
            "steps. Its calls of `fit` are saved."
        )


def tell_batch_norm(program: Teller, model: keras.Model, batch_size: int | None) -> None:
    """BatchNormalization whose statistics are those of a shard."""
    options = program.options
    if options.sync_batch_norm or "batch norm" in program.told:
        return
    shards = resolve_shards(
        options.shards, program.place().num_replicas, deterministic=options.deterministic
    )
    note = refusals.batch_norm_note(model, batch_size, shards)
    if note is not None:
        program.told.add("batch norm")
        tell(note.removeprefix("Note: "))
