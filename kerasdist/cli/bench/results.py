"""What measurements on several numbers of devices mean: ratios, and a verdict in words."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from kerasdist.reports import plots

# Shares of a step from which a part of it is worth a word.
MUCH_INPUT, MUCH_REDUCTION, MUCH_HOST = 0.05, 0.15, 0.15
# Below this, devices get in each other's way.
GOOD_SCALING = 0.9


@dataclass
class Measurement:
    """One way to train, measured in rounds that took turns with those of the others.

    Attributes:
        runner: "kerasdist", or "keras" for Keras's own `fit`.
        devices: How many.
        batch_size: Examples of a step, over all devices.
        rates: Examples a second, of each round.
        first_step: Seconds from the data and the model to the end of the first step.
        memory: The most memory of the process, in bytes.
        split: Seconds of a step by part, of a traced round.
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
        """The median of the rounds."""
        return statistics.median(self.rates)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a part of the median.

        Example:
            >>> Measurement("keras", 1, 8, [90.0, 100.0, 100.0, 100.0, 110.0]).spread
            0.05
        """
        if len(self.rates) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.rates, n=4)
        return (high - low) / 2 / self.rate

    def share(self, part: str) -> float:
        """The part of a step that goes into input, compute, all_reduce or host."""
        total = sum(self.split.values()) if self.split else 0.0
        return self.split[part] / total if self.split and total else 0.0


@dataclass(frozen=True)
class Bench:
    """All measurements of one command.

    Attributes:
        strong: kerasdist with one batch size on each number of devices, ascending.
        weak: With as much a device on each number above the first.
        others: Keras's own `fit`, where it was asked for.
        shares_cores: Whether the devices are logical CPUs: more of them are no more hardware.
    """

    name: str
    strong: Sequence[Measurement]
    weak: Sequence[Measurement]
    others: Sequence[Measurement]
    shares_cores: bool

    def efficiency(self, measurement: Measurement) -> float:
        """Its rate by that of the fewest devices, for as much hardware."""
        first = self.strong[0]
        hardware = 1.0 if self.shares_cores else measurement.devices / first.devices
        return measurement.rate / first.rate / hardware

    def against(self, measurement: Measurement) -> float | None:
        """Its rate by Keras's on as many devices, of the same rounds."""
        for other in self.others:
            if (other.devices, other.batch_size) == (measurement.devices, measurement.batch_size):
                ratios = [a / b for a, b in zip(measurement.rates, other.rates, strict=True)]
                return statistics.median(ratios)
        return None

    def fields(self) -> dict[str, Any]:
        """For JSON."""

        def of(measurement: Measurement) -> dict[str, Any]:
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

        return {
            "name": self.name,
            "shares_cores": self.shares_cores,
            "strong": [of(each) for each in self.strong],
            "weak": [of(each) for each in self.weak],
            "keras": [of(each) for each in self.others],
            "verdict": verdict(self),
        }


def verdict(bench: Bench) -> list[str]:
    """What holds the training up, and what to change; one sentence each."""
    lines = []
    for measurement in (bench.strong[0], bench.strong[-1])[: len(bench.strong)]:
        lines.append(_bound_by(measurement))
    last = bench.strong[-1]
    if last.devices > bench.strong[0].devices:
        lines.append(_scaling(bench, last))
    for measurement in bench.strong:
        ratio = bench.against(measurement)
        if ratio is not None:
            lines.append(f"{_on(measurement)}: {ratio:.2f} times the speed of Keras's own fit.")
    return list(dict.fromkeys(lines))


def _on(measurement: Measurement) -> str:
    return f"{measurement.devices} device{'s' if measurement.devices > 1 else ''}"


def _bound_by(measurement: Measurement) -> str:
    where = _on(measurement)
    if measurement.split is None:
        return f"{where}: not traced, so nothing is known about its parts."
    if measurement.share("input") > MUCH_INPUT:
        return (
            f"{where}: input-bound: {measurement.share('input'):.0%} of a step waits for its "
            "batch. Prepare less in Python, augment with TensorFlow, or keep the data in memory."
        )
    if measurement.share("all_reduce") > MUCH_REDUCTION:
        return (
            f"{where}: all-reduce is {measurement.share('all_reduce'):.0%} of a step. Give each "
            "device a larger part of a larger batch, or take fewer devices."
        )
    if measurement.share("host") > MUCH_HOST:
        return (
            f"{where}: host-bound: in {measurement.share('host'):.0%} of a step no device "
            "computes. The steps are small: take a larger batch, or a callback without "
            "`on_train_batch_*`."
        )
    return f"{where}: compute-bound: {measurement.share('compute'):.0%} of a step, as it should be."


def _scaling(bench: Bench, last: Measurement) -> str:
    efficiency = bench.efficiency(last)
    if bench.shares_cores:
        text = (
            f"{last.devices} logical CPUs deliver {efficiency:.2f} of what {_on(bench.strong[0])} "
            "does on the same cores, so 1 is the limit"
        )
    else:
        text = f"{last.devices} devices: {efficiency:.0%} of a perfect speed-up"
    if efficiency >= GOOD_SCALING:
        return f"{text}."
    better = [m for m in bench.weak if m.devices == last.devices]
    if better and bench.efficiency(better[0]) > efficiency + 0.02:
        return (
            f"{text}; {bench.efficiency(better[0]):.2f} with {better[0].batch_size:,} examples a "
            "step: take a larger batch."
        )
    return f"{text}: the batch of {last.batch_size or 0:,} is small for so many devices."


_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #5f5e5a; }
.title { font-weight: 600; fill: #1d1d1b; }
.end { text-anchor: end; } .middle { text-anchor: middle; }
.grid { stroke: #dddcd6; } .axis, .tick { stroke: #5f5e5a; fill: none; }
.line { fill: none; stroke: currentColor; stroke-width: 1.8; } .dot { fill: currentColor; }
.c0 { color: #2360d8; } .c1 { color: #0c7f57; } .c2 { color: #c8500a; }
"""


def svg(bench: Bench) -> str:
    """Examples a second by the number of devices, as a picture of its own; "" without a number."""
    first = bench.strong[0]
    weak = [first, *bench.weak] if bench.weak else []
    kinds = (
        ("the same batch", bench.strong),
        ("the same batch a device", weak),
        ("Keras fit", bench.others),
    )
    series = [
        plots.Series(name, [(float(m.devices), m.rate) for m in measurements], colour=colour)
        for colour, (name, measurements) in enumerate(kinds)
        if measurements
    ]
    title = f"{bench.name}: examples a second"
    drawn = plots.plot(series, label=title, x_label="devices")
    if not drawn:
        return ""
    names = "".join(
        f'<g class="c{each.colour}"><path class="line" d="M{x} 34h18"/>'
        f'<text x="{x + 23}" y="38">{each.name}</text></g>'
        for x, each in zip((12, 130, 310), series, strict=False)
    )
    _, _, inside = drawn.partition(">")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {plots.WIDTH} {plots.HEIGHT + 46}">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
        f'<rect width="100%" height="100%" fill="#fff"/>'
        f'<text class="title" x="12" y="18">{escape(title)}</text>{names}'
        f'<g transform="translate(0 46)">{inside.removesuffix("</svg>")}</g></svg>\n'
    )
