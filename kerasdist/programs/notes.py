"""What kerasdist tells the user of a program, on stderr: what the program prints stays as it is."""

from __future__ import annotations

import sys
from typing import Protocol

from kerasdist.devices.placement import Placement
from kerasdist.phases.prose import say
from kerasdist.programs.chief import is_chief
from kerasdist.programs.options import ProgramOptions

_NOTE, _BATCH_NORM = "Note: ", "BatchNormalization"


class Teller(Protocol):
    """A program, which is told each note once. `told` has the notes so far."""

    options: ProgramOptions
    told: set[str]
    tells_devices: bool

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


def tell_devices(program: Teller) -> None:
    """The devices of a script, when it first uses them: `kerasdist run` asks for this."""
    if program.tells_devices:
        program.tells_devices = False
        titles = program.place().titles
        tell(f"uses {len(titles)} device{'s' * (len(titles) > 1)} ({', '.join(titles)})")


def pass_on(program: Teller, text: str) -> None:
    """What a training says. Of its notes, each once: layers of BatchNormalization have many names.

    They go to stderr also if `fit` is silent.
    """
    note = text.removeprefix(_NOTE)
    if note != text:
        subject = _BATCH_NORM if note.startswith(_BATCH_NORM) else note
        if subject in program.told:
            return
        program.told.add(subject)
    tell(note)
