"""`fit --log-placement`: which operation ran on which device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kerasdist.devices import private_tensorflow, visible_gpus

PLACEMENT = "placement.txt"
# They only pass values on. The file lists them, the summary does not.
_PLUMBING = (
    *("Const", "Identity", "IdentityN", "NoOp", "_Arg", "_Retval"),
    *("Enter", "Exit", "LoopCond", "Merge", "NextIteration", "Switch"),
    *("_Recv", "_Send", "_HostRecv", "_HostSend"),
)
_MOST_KINDS = 5


class PlacementLog:
    """Collects on which devices TensorFlow places the operations of every function that runs."""

    def __init__(self) -> None:
        private_tensorflow.collect_graphs()
        self._is_told = False

    def tell(self, say: Callable[[str], None], run: Path | None) -> None:
        """Writes placement.txt into the run's folder and prints a summary, once."""
        if self._is_told:
            return
        self._is_told = True
        nodes = list(private_tensorflow.collected_nodes())
        self.close()
        if run is not None:
            lines = [f"{_short(node.device)}\t{node.op}\t{node.name}\n" for node in nodes]
            (run / PLACEMENT).write_text("".join(lines))
        place = "" if run is None else f", all in {run / PLACEMENT}"
        lines = [f"placement{place}:", *(f"  {line}" for line in summary(nodes))]
        say("\n".join(lines))

    def close(self) -> None:
        private_tensorflow.stop_collecting_graphs()


def summary(nodes: list[Any]) -> list[str]:
    """One line per device: the number of operations, and the most frequent kinds.

    Args:
        nodes: `NodeDef`s with their devices.
    """
    kinds: dict[str, Counter[str]] = {}
    for node in nodes:
        if node.op not in _PLUMBING:
            kinds.setdefault(_short(node.device), Counter())[node.op] += 1
    lines = []
    for device, counts in sorted(kinds.items()):
        most = ", ".join(f"{kind} {count}" for kind, count in counts.most_common(_MOST_KINDS))
        lines.append(f"{device:<6}  {counts.total():,} operations ({most}, ...)")
    return lines


def _short(device: str) -> str:
    return visible_gpus.shown(device.rpartition("device:")[2]) or "?"
