"""The results of `kerasdist bench`: ratios, and a verdict in words."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# A part of a step that can be avoided is worth mentioning from this share of the step.
MUCH = 0.15
# By part: what holds a step up if it is the largest, what happens in it, and what to change.
_ADVICE = {
    "input": (
        "input-bound",
        "waits for data",
        "Use smaller inputs, such as a smaller image size, or augment less. With your own data.py, "
        "prepare less in Python, augment with TensorFlow, or return arrays.",
    ),
    "all_reduce": (
        "all-reduce-bound",
        "is all-reduce",
        "Use a larger batch, or fewer devices.",
    ),
    "host": (
        "host-bound",
        "leaves the devices idle",
        "Steps are short: use a larger batch, and callbacks without `on_train_batch_*`.",
    ),
}
# Below this, several devices slow each other down.
GOOD_SCALING = 0.9


@dataclass
class Measurement:
    """The speed of one way to train, measured in several rounds.

    Attributes:
        runner: "kerasdist", or "keras" for Keras's `fit`.
        devices: The number of devices.
        batch_size: Examples per step, over all devices.
        rates: Examples per second, in each round.
        first_step: Seconds from building the model to the end of the first step.
        memory: The peak memory of the process, in bytes.
        split: Seconds per step that go into each part of a step, in a traced round.
    """

    runner: str
    devices: int
    batch_size: int | None
    rates: list[float] = field(default_factory=list)
    first_step: float = 0.0
    memory: int = 0
    split: dict[str, float] | None = None

    @property
    def rate(self) -> float:
        """Examples per second: the median of the rounds."""
        return statistics.median(self.rates)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, divided by the median.

        Example:
            >>> Measurement("keras", 1, 8, [90.0, 100.0, 100.0, 100.0, 110.0]).spread
            0.05
        """
        if len(self.rates) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.rates, n=4)
        return (high - low) / 2 / self.rate

    def share(self, part: str) -> float:
        """The share of a step that goes into input, compute, all_reduce or host."""
        total = sum(self.split.values()) if self.split else 0.0
        return self.split[part] / total if self.split and total else 0.0


@dataclass(frozen=True)
class Bench:
    """All measurements of one command.

    Attributes:
        name: The name of the recipe, or of the model class.
        strong: The same batch size on each number of devices, in ascending order.
        weak: The same batch size per device, on each number above the first.
        others: Keras's `fit`, with `--against keras`.
        shares_cores: Whether the devices are logical CPUs, which share the same cores.
    """

    name: str
    strong: Sequence[Measurement]
    weak: Sequence[Measurement]
    others: Sequence[Measurement]
    shares_cores: bool

    def efficiency(self, measurement: Measurement) -> float:
        """Its rate ÷ the rate of the fewest devices, per hardware."""
        first = self.strong[0]
        hardware = 1.0 if self.shares_cores else measurement.devices / first.devices
        return measurement.rate / first.rate / hardware

    def against(self, measurement: Measurement) -> float | None:
        """Its rate ÷ Keras's rate on the same number of devices, round by round."""
        for other in self.others:
            if (other.devices, other.batch_size) == (measurement.devices, measurement.batch_size):
                ratios = [a / b for a, b in zip(measurement.rates, other.rates, strict=True)]
                return statistics.median(ratios)
        return None

    def fields(self) -> dict[str, Any]:
        """The content of bench.json."""
        return {
            "name": self.name,
            "shares_cores": self.shares_cores,
            "strong": [self._fields_of(each) for each in self.strong],
            "weak": [self._fields_of(each) for each in self.weak],
            "keras": [self._fields_of(each) for each in self.others],
            "verdict": verdict(self),
        }

    def _fields_of(self, measurement: Measurement) -> dict[str, Any]:
        return {
            "runner": measurement.runner,
            "devices": measurement.devices,
            "batch_size": measurement.batch_size,
            "examples_per_second": measurement.rate,
            "spread": measurement.spread,
            "rounds": measurement.rates,
            "efficiency": self.efficiency(measurement),
            "against_keras": self.against(measurement),
            "seconds_per_step": measurement.split,
            "seconds_to_first_step": measurement.first_step,
            "peak_memory": measurement.memory,
        }


def verdict(bench: Bench) -> list[str]:
    """What slows the training down and what to change, one finding per line."""
    lines = []
    for measurement in (bench.strong[0], bench.strong[-1])[: len(bench.strong)]:
        lines.append(_bound_by(measurement))
    last = bench.strong[-1]
    if last.devices > bench.strong[0].devices:
        lines.append(_scaling(bench, last))
    for measurement in bench.strong:
        ratio = bench.against(measurement)
        if ratio is not None:
            lines.append(f"{_on(measurement)}: {ratio:.2f} times the speed of Keras's fit.")
    return list(dict.fromkeys(lines))


def _on(measurement: Measurement) -> str:
    return f"{measurement.devices} device{'s' if measurement.devices > 1 else ''}"


def _bound_by(measurement: Measurement) -> str:
    where = _on(measurement)
    if measurement.split is None:
        return f"{where}: was not traced, so the parts of a step are unknown."
    part = max(_ADVICE, key=measurement.share)
    share = measurement.share(part)
    if share >= MUCH and share > measurement.spread:
        what, happens, advice = _ADVICE[part]
        is_most = share > measurement.share("compute")
        return f"{where}: {f'{what}: ' * is_most}{share:.0%} of each step {happens}. {advice}"
    return f"{where}: compute-bound: computing is {measurement.share('compute'):.0%} of each step."


def _scaling(bench: Bench, last: Measurement) -> str:
    efficiency = bench.efficiency(last)
    if bench.shares_cores:
        text = (
            f"{last.devices} logical CPUs reach {efficiency:.2f} of the speed of "
            f"{_on(bench.strong[0])} on the same cores, where 1 is the limit"
        )
    else:
        text = f"{last.devices} devices: {efficiency:.0%} of a perfect speed-up"
    if efficiency >= GOOD_SCALING:
        return f"{text}."
    better = [m for m in bench.weak if m.devices == last.devices]
    if better and bench.efficiency(better[0]) > efficiency + 0.02:
        return (
            f"{text}. With {better[0].batch_size:,} examples per step it is "
            f"{bench.efficiency(better[0]):.2f}: use a larger batch."
        )
    return f"{text}. A batch of {last.batch_size or 0:,} is small for this many devices."
