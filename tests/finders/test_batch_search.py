"""The search for batch sizes, on made-up devices."""

import pytest

from kerasdist.errors import KerasdistError
from kerasdist.finders.batch_search import Limits, Search, Trial


class Device:
    """Has room for `most` examples; a trial of n examples takes 1 + n / 1000 seconds."""

    def __init__(self, most, *, memory=None, best=10**9):
        self.most, self.memory, self.best = most, memory, best
        self.tried, self.now = [], 0.0

    def clock(self):
        return self.now

    def attempt(self, size):
        self.tried.append(size)
        self.now += 1 + size / 1000
        if size > self.most:
            return Trial(size, fits=False, note="does not fit")
        speed = min(size, self.best) * 10.0
        used = None if self.memory is None else 1000 + 10 * size
        return Trial(size, True, speed, size / speed, used)


def search(device, start=32, least=1, most=10**6, seconds=1e9):
    limits = Limits(start, least, most, seconds, lambda: device.memory, device.clock)
    return Search(limits, device.attempt).run()


@pytest.mark.parametrize("most", [1, 5, 32, 33, 100, 1000, 4096, 5000])
def test_the_largest_size_is_found_to_an_eighth(most):
    device = Device(most)
    found = search(device)
    assert most * 7 / 8 - 1 < found.largest <= most
    assert found.ended.endswith("does not fit")
    assert len(device.tried) < 20
    assert device.tried == list(dict.fromkeys(device.tried))


def test_the_data_ends_a_search():
    found = search(Device(10**9), most=1000)
    assert (found.largest, found.ended) == (1000, "the data has 1,000 examples")
    assert [t.batch_size for t in found.trials] == [32, 64, 128, 256, 512, 1000]


def test_the_smallest_of_the_fast_sizes_is_the_fastest():
    found = search(Device(10**9, best=256), most=2048)
    assert (found.largest, found.fastest) == (2048, 256)


def test_no_trial_needs_more_memory_than_there_is():
    device = Device(10**9, memory=1000 + 10 * 700)
    found = search(device)
    assert max(device.tried) <= 700
    assert 0.8 * 700 < found.largest <= 700
    refused = [t for t in found.trials if not t.fits]
    assert all("would need about" in t.note for t in refused)


def test_it_ends_in_time():
    device = Device(10**9)
    found = search(device, seconds=20)
    assert device.now < 25
    assert found.ended.endswith("would take too long")


def test_if_nothing_fits_that_is_an_error():
    with pytest.raises(
        KerasdistError, match=r"batch of 2 does not fit: does not fit. Expected mem"
    ):
        search(Device(1), start=8, least=2)


def test_what_the_first_trial_finds_out_about_the_data_counts():
    device = Device(10**9)

    def attempt(size):
        search.learn(least=4, most=100)
        return device.attempt(size)

    limits = Limits(32, 1, 10**9, 1e9, lambda: None, device.clock)
    search = Search(limits, attempt)
    assert search.run().largest == 100
