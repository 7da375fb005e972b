"""benchmarks/RESULTS.md: a head, and a section for each measurement."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"
SECTIONS = (
    "mlp",
    "convolutions",
    "recurrent",
    "variables-10",
    "variables-100",
    "variables-1000",
    "breadth-1",
    "breadth-2",
    "breadth-4",
    "further-fits",
    "determinism",
    "many-steps",
    "start-up",
    "checkpoints",
)
HEAD = """\
# Speed

`python benchmarks/speed.py` writes this page. The line below each table says when and
on which machine.

**How it is measured.** All contestants of a workload have the same layers, optimizer, batch size
and arrays in memory. They shuffle the arrays and compute the loss and the accuracy of each epoch.
Each contestant is a separate process, and they take turns round by round, so other work on the
machine slows all of them alike. Times are medians over the rounds, and ± is half of the
interquartile range. A ratio is the median of the ratios of neighbouring rounds. It compares times,
so lower is better.

**Devices** are logical CPUs that share the same cores, so several devices cannot be faster than
one. No GPU was available: nothing here was run on one.

**Contestants.**

- `kerasdist` is `kerasdist.fit`; `deterministic` is the same with `deterministic=True`, which cuts
  every batch into 4 shards on any number of devices.
- `keras` is Keras's own `fit`, on several devices with `MirroredStrategy`.
- `bare` is one compiled loop over a `tf.data` pipeline, as a careful user would write it: forward
  pass, gradient, Keras's optimizer, loss, accuracy and a check that the gradients are finite. On
  several devices it uses `strategy.run`.
- `torch` and `accelerate` run the loop of PyTorch's tutorial, with a `DataLoader` in the same
  process. `lightning` is its `Trainer`, without files and without a progress bar.

Everything that uses TensorFlow runs convolutions with the same oneDNN operations, which take nearly
all of the time, so no contestant can be far ahead there. oneDNN is on for all of them, as kerasdist
turns it on (TensorFlow itself does so only on processors with AVX512-VNNI or newer). kerasdist runs
a recurrent layer as one operation over time, with a custom gradient
(`kerasdist/models/pure/layers/recurrence.py`)."""


def parts_of(results: str) -> dict[str, str]:
    """The sections of RESULTS.md by name."""
    return {
        name: body.strip()
        for name, _, body in (part.partition("\n") for part in results.split("\n## ")[1:])
    }


def write_section(name: str, text: str) -> None:
    """Writes a section. The others stay as they are."""
    parts = (parts_of(RESULTS.read_text()) if RESULTS.exists() else {}) | {name: text}
    ordered = [f"## {each}\n\n{parts[each]}" for each in SECTIONS if each in parts]
    RESULTS.write_text("\n\n".join([HEAD, *ordered]) + "\n")
