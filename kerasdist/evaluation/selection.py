"""Selects the worst and the best examples, so that they are not all of one class."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any

NUM_EXAMPLES = 8
# So many of one group at most, if there are others.
_MOST_OF_A_GROUP = NUM_EXAMPLES // 2

_Item = tuple[float, int, dict[str, Any]]


class Highest:
    """Collects the examples with the highest keys. Of equal keys, the earlier example wins.

    Args:
        in_turn: Whether groups take turns: the best example of each group, then the second of
            each. Otherwise the highest keys win, with at most half of the places for one group.
    """

    def __init__(self, *, in_turn: bool) -> None:
        self._in_turn = in_turn
        self._heaps: dict[Hashable, list[_Item]] = defaultdict(list)

    def offer(
        self, group: Hashable, key: float, position: int, fields: Callable[[], dict[str, Any]]
    ) -> None:
        """Keeps an example if its key is among the highest of its group.

        Args:
            group: The class of the example, or another value that groups examples.
            key: What to sort by.
            position: The number of the example. No two examples have the same.
            fields: Describes and draws the example; called at once if it is kept, because a
                picture takes less memory than its batch.
        """
        heap, order = self._heaps[group], (key, -position)
        is_full = len(heap) == NUM_EXAMPLES
        if is_full and order < heap[0][:2]:
            return
        item = (*order, fields())
        if is_full:
            heapq.heapreplace(heap, item)
        else:
            heapq.heappush(heap, item)

    def fields(self) -> list[dict[str, Any]]:
        """The examples that were selected, the highest key first."""
        groups = [sorted(heap, key=_order, reverse=True) for heap in self._heaps.values()]
        if self._in_turn:
            ranked = [(place, item) for group in groups for place, item in enumerate(group)]
        else:
            ranked = [
                (place // _MOST_OF_A_GROUP, item)
                for group in groups
                for place, item in enumerate(group)
            ]
        # The lowest round first; within a round, the highest key.
        ranked.sort(key=lambda each: (-each[0], _order(each[1])), reverse=True)
        chosen = [item for _, item in ranked[:NUM_EXAMPLES]]
        return [fields for *_, fields in sorted(chosen, key=_order, reverse=True)]


def _order(item: _Item) -> tuple[float, int]:
    return item[:2]
