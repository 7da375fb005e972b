"""Gives the compiled loop the batches of a stream, pass after pass."""

from __future__ import annotations

from collections.abc import Iterator

from kerasdist.data.batches import Batch
from kerasdist.data.preparation import Preparation
from kerasdist.data.rows import Rows
from kerasdist.data.streams import Stream
from kerasdist.errors import KerasdistError


class Feed:
    """Iterates over the prepared batches of a stream, from any batch of any pass.

    With `takes_rows` the compiled loop may slice small batches of arrays by itself. Do not use it
    where batches are copied to a GPU.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        prepare: Preparation,
        name: str = "data",
        takes_rows: bool = False,
    ):
        self.stream = stream
        self._prepare = prepare
        self.name = name
        self._takes_rows = takes_rows and prepare.only_reads_ahead
        self._iterator: Iterator[Batch] | None = None
        self._continues = False
        self.epoch = 0
        self.position = 0

    def open(self, epoch: int, position: int = 0) -> None:
        """Goes to a batch of a pass. Nothing is read until the iterator is used.

        A forward-only stream continues where it stopped if its pass was not exhausted.
        """
        self.epoch, self.position = epoch, position
        self._continues = self.stream.is_forward_only and self._iterator is not None
        if not self._continues:
            self._iterator = None

    @property
    def batches(self) -> Iterator[Batch] | Rows:
        """What the compiled loop reads, from the current position on."""
        rows = self.stream.rows(self.epoch, self.position) if self._takes_rows else None
        if rows is not None:
            self._iterator = None  # It would still be at an earlier batch.
        return self.iterator if rows is None else rows

    @property
    def iterator(self) -> Iterator[Batch]:
        if self._iterator is None:
            dataset = self.stream.open(self.epoch, self.position)
            self._iterator = iter(self._prepare(dataset, self.epoch, self.position))
        return self._iterator

    def advance(self, num_batches: int) -> None:
        """Counts batches that were used. Raises an error of the reader if it is overdue."""
        self.position += num_batches
        self.stream.check()

    def examples_of_batch(self) -> list[int] | None:
        """The numbers of the examples in the batch at the position; None if they have none."""
        indices = getattr(self.stream, "indices", None)
        return None if indices is None else indices(self.epoch, self.position)

    def is_at_end(self) -> bool:
        """Whether the pass is known to be over, without reading on."""
        return self.stream.num_batches is not None and self.position >= self.stream.num_batches

    def is_over(self) -> bool:
        """Whether the pass is over, asked when the iterator ends. Raises an error of the reader."""
        rest = self.stream.reopen()
        if rest is not None:
            self._iterator = iter(self._prepare(rest, self.epoch, self.position))
            return False
        self._iterator = None
        if self._continues and self.position == 0:
            # The previous epoch used the last batch of its pass, but did not read to the end.
            self._continues = False
            return False
        if self.position == 0:
            raise KerasdistError(
                f"`{self.name}` gave no batch in pass {self.epoch + 1}. Expected at least one "
                "batch per pass. A source that can be read only once must be created again for "
                "each epoch: pass a generator function."
            )
        return True

    def close(self) -> None:
        # Close the stream first: deleting an iterator waits for its threads, and they wait for
        # the stream.
        self.stream.close()
        self._iterator = None
