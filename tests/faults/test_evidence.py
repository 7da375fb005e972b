"""The harness itself: it must see what a wrong resume would do."""

import random

import pytest

from tests.faults import evidence, harness
from tests.faults.strikes import (
    ANY,
    BATCH_SIZE,
    CHECKPOINT,
    EPOCHS,
    EXAMPLES,
    KERASDIST,
    SHARDS,
    STEPS,
    STEPS_PER_EPOCH,
    Aim,
    Place,
    keras_fit,
)


def shards_of(step: int) -> list[list[int]]:
    """What an undisturbed run would be trained on in a step (from 0): each epoch in its order."""
    epoch, number = divmod(step, STEPS_PER_EPOCH)
    order = list(range(EXAMPLES))
    random.Random(epoch).shuffle(order)
    batch = order[number * BATCH_SIZE : (number + 1) * BATCH_SIZE]
    return [batch[i * len(batch) // SHARDS : (i + 1) * len(batch) // SHARDS] for i in range(SHARDS)]


def note(place: Place, pid: int, steps, notes: int | None = None) -> None:
    """Writes the notes of a process; `notes` cuts them off, as a kill does."""
    lines = [f"{pid} {' '.join(map(str, shard))}\n" for s in steps for shard in shards_of(s)]
    with open(place.trained_on, "a") as file:
        file.writelines(lines[:notes])


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_steps_that_were_lost_count_once(place):
    note(place, 7, range(50), notes=45 * SHARDS + 2)  # killed in the 46th step
    note(place, 9, range(42, STEPS))
    found = evidence.trained(KERASDIST, place, [(7, (0, None)), (8, (0, None)), (9, (42, None))])
    assert len(found.steps) == STEPS
    assert found.num_again == 3
    assert found.problems() == []


def test_a_step_left_out_is_seen(place):
    note(place, 7, range(40))
    note(place, 9, range(41, STEPS))
    found = evidence.trained(KERASDIST, place, [(7, (0, None)), (9, (40, None))])
    # From there on each epoch's first batch counts to the epoch before.
    assert any("were missed" in problem for problem in found.problems())


def test_a_step_trained_twice_is_seen(place):
    note(place, 7, range(40))
    note(place, 9, range(39, STEPS))
    found = evidence.trained(KERASDIST, place, [(7, (0, None)), (9, (40, None))])
    assert any("more than once" in problem for problem in found.problems())


def test_another_order_is_seen(place):
    steps = [*range(40), 41, 40, *range(42, STEPS)]
    note(place, 7, range(40))
    note(place, 9, steps[40:])
    other = Place(place.folder / "other")
    other.folder.mkdir()
    note(other, 5, range(STEPS))
    found = evidence.trained(KERASDIST, place, [(7, (0, None)), (9, (40, None))])
    undisturbed = evidence.trained(KERASDIST, other, [(5, (0, None))])
    assert found.problems() == []
    assert found.steps != undisturbed.steps


def test_an_unknown_process_is_seen(place):
    note(place, 7, range(STEPS))
    with pytest.raises(AssertionError, match="nobody knows"):
        evidence.trained(KERASDIST, place, [(8, (0, None))])


def test_an_epoch_that_begins_again_is_seen_twice(place):
    """Keras's `fit` goes on with the weights of a batch, and the epoch from its beginning."""
    lines = [f"7 {i}\n" for i in range(30)] + [
        f"8 {i}\n" for i in range((EPOCHS - 1) * STEPS_PER_EPOCH)
    ]
    place.trained_on.write_text("".join(lines))
    found = evidence.trained(keras_fit("3"), place, [(7, (0, None)), (8, (30, 1))])
    in_epochs = [sum(step.epoch == epoch for step in found.steps) for epoch in range(EPOCHS)]
    assert in_epochs == [21, 9 + 21, 21, 21]


def test_every_moment_is_aimed_at():
    drawn = [aim for i in range(40) for aim in harness.draw_aims(i, random.Random(i))]
    assert {aim.moment for aim in drawn} == set(harness.AIMS)
    assert 40 < len(drawn) < 60
    assert any(aim.moment == ANY for aim in drawn)


def test_a_strike_that_missed_is_tried_earlier():
    aim = Aim(CHECKPOINT, 0.8, 0.002)
    assert aim.earlier() == Aim(CHECKPOINT, 0.4, 0.001)
