"""Reading in the background: nothing lost, errors that arrive, and no thread left behind."""

import gc
import threading
import time
import traceback
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.data.reader import Reader


def reader_threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("kerasdist-")]


@pytest.fixture
def no_pauses():
    """Collecting the garbage of many tests takes seconds, which no user of one fit waits for."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def make_model():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-3), "mse", metrics=[mean_target])
    return model


def mean_target(y_true, y_pred):
    return y_true[:, 0]


def batch_of(number, size=2):
    return np.full((size, 3), number, "float32"), np.full((size, 1), number, "float32")


class Counting:
    """A provider of `num` batches a pass. `at_end()` says that a pass is over."""

    batch_size = 2

    def __init__(self, num=6, at_end=lambda: None, last_size=2):
        self.num, self.at_end, self.last_size = num, at_end, last_size
        self.calls = self.at = 0

    def get_batch_data(self):
        self.calls += 1
        if self.at == self.num:
            self.at = 0
            return self.at_end()
        self.at += 1
        return batch_of(self.at - 1, self.last_size if self.at == self.num else 2)


class ReadError(Exception):
    """The provider's own."""


class Failing(Counting):
    """Raises at its `at_call`-th call and remembers when."""

    def __init__(self, at_call, num=6):
        super().__init__(num)
        self.at_call = at_call
        self.raised_at = None

    def get_batch_data(self):
        if self.calls + 1 == self.at_call:
            self.open_the_next_file()
        return super().get_batch_data()

    def open_the_next_file(self):
        self.raised_at = time.monotonic()
        self.error = ReadError("disk on fire")
        raise self.error


def raise_(error):
    raise error


@pytest.mark.parametrize(
    "at_end",
    [
        lambda: None,
        lambda: raise_(StopIteration()),
        lambda: raise_(tf.errors.OutOfRangeError(None, None, "end of file")),
    ],
    ids=["None", "StopIteration", "OutOfRangeError"],
)
def test_a_provider_ends_an_epoch(at_end):
    provider, model = Counting(6, at_end), make_model()
    history = kerasdist.fit(model, provider, epochs=2, progress=False)
    assert int(model.optimizer.iterations) == 12
    assert history.history["mean_target"] == [2.5, 2.5]
    assert provider.calls == 14  # Not once more after the last epoch.


def test_the_smaller_last_batch_is_kept_and_dropped_on_request():
    model = make_model()
    history = kerasdist.fit(model, Counting(3, last_size=1), progress=False)
    assert int(model.optimizer.iterations) == 3
    assert history.history["mean_target"] == [pytest.approx((0 + 0 + 1 + 1 + 2) / 5)]
    model = make_model()
    data = kerasdist.read_provider(Counting(3, last_size=1), drop_remainder=True)
    history = kerasdist.fit(model, data, epochs=2, progress=False)
    assert int(model.optimizer.iterations) == 4
    assert history.history["mean_target"] == [0.5, 0.5]


@pytest.mark.parametrize("at_call", [1, 9])
def test_a_provider_s_exception_reaches_the_caller(at_call, no_pauses):
    provider = Failing(at_call)
    with pytest.raises(ReadError, match="disk on fire") as caught:
        kerasdist.fit(make_model(), provider, epochs=3, progress=False)
    assert time.monotonic() - provider.raised_at < 1
    assert reader_threads() == []
    assert caught.value is provider.error
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-1] == "open_the_next_file"
    assert "get_batch_data" in frames


@pytest.fixture
def patience(monkeypatch):
    """A busy machine may need longer for the batches before a failure."""
    monkeypatch.setattr("kerasdist.data.buffer._GRACE_SECONDS", 60.0)


@pytest.mark.parametrize("at_call", [5, 9])
def test_the_batches_before_an_exception_are_used(at_call, patience):
    model = make_model()
    with pytest.raises(ReadError):
        kerasdist.fit(model, Failing(at_call), epochs=3, progress=False)
    # The seventh call ends the first pass.
    assert int(model.optimizer.iterations) == at_call - 1 - (at_call > 7)


def test_an_exception_does_not_wait_for_slow_steps(no_pauses):
    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.2)

    provider = Failing(7, num=50)
    with pytest.raises(ReadError):
        kerasdist.fit(make_model(), provider, callbacks=[Slow()], progress=False)
    assert time.monotonic() - provider.raised_at < 1


def test_an_exception_of_validation_data_reaches_the_caller(no_pauses):
    provider = Failing(9)
    with pytest.raises(ReadError) as caught:
        kerasdist.fit(
            make_model(),
            batch_of(1),
            batch_size=2,
            validation_data=provider,
            epochs=3,
            progress=False,
        )
    assert caught.value is provider.error
    assert time.monotonic() - provider.raised_at < 1


def test_an_exception_of_tensorflow_s_own_kind_reaches_the_caller_as_it_is():
    class Broken(Counting):
        def get_batch_data(self):
            if self.calls == 3:
                raise tf.errors.NotFoundError(None, None, "no such clip")
            return super().get_batch_data()

    with pytest.raises(tf.errors.NotFoundError, match="no such clip"):
        kerasdist.fit(make_model(), Broken(), progress=False)


def generate_and_fail():
    for i in range(3):
        yield batch_of(i)
    raise ReadError("in the generator")


class FailingBatches(keras.utils.PyDataset):
    def __len__(self):
        return 9

    def __getitem__(self, index):
        return batch_of(index) if index < 3 else raise_(ReadError("in the PyDataset"))


class FailingSource:
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return (np.ones(3), np.ones(1)) if index < 6 else raise_(ReadError("in the source"))


class EndingSource(FailingSource):
    def __getitem__(self, index):
        return (np.ones(3), np.ones(1)) if index < 6 else raise_(StopIteration())


@pytest.mark.parametrize(
    ("data", "options", "where"),
    [
        (generate_and_fail, {}, "in the generator"),
        (generate_and_fail(), {}, "in the generator"),
        (FailingBatches(), {"shuffle": False}, "in the PyDataset"),
        (FailingSource(), {"batch_size": 2, "shuffle": False}, "in the source"),
    ],
    ids=["generator function", "generator", "PyDataset", "source"],
)
def test_exceptions_of_other_forms_reach_the_caller(data, options, where, patience):
    model = make_model()
    with pytest.raises(ReadError, match=where) as caught:
        kerasdist.fit(model, data, **options, progress=False)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].filename == __file__
    assert int(model.optimizer.iterations) == 3


def test_only_a_provider_may_end_early():
    """`OutOfRangeError` in something that has a length is an error, not a shorter epoch."""

    class Short(FailingBatches):
        def __getitem__(self, index):
            if index < 3:
                return batch_of(index)
            raise tf.errors.OutOfRangeError(None, None, "file is too short")

    with pytest.raises(tf.errors.OutOfRangeError, match="too short"):
        kerasdist.fit(make_model(), Short(), progress=False)
    with pytest.raises(RuntimeError, match="StopIteration"):
        kerasdist.fit(make_model(), EndingSource(), batch_size=2, shuffle=False, progress=False)


def test_a_provider_that_ends_at_once_in_its_second_epoch_gets_a_clear_error():
    class Once(Counting):
        def get_batch_data(self):
            return super().get_batch_data() if self.calls < 4 else None

    with pytest.raises(kerasdist.KerasdistError, match="gave no batch in pass 2") as caught:
        kerasdist.fit(make_model(), Once(), epochs=2, progress=False)
    assert "Expected at least one" in str(caught.value)


def test_a_provider_is_not_read_further_ahead_than_its_capacity():
    provider = Counting(100)
    ahead = []

    class Watch(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            ahead.append(provider.calls)

        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.005)
            ahead.append(provider.calls - batch - 1)

    data = kerasdist.read_provider(provider, capacity=3)
    kerasdist.fit(make_model(), data, steps=20, callbacks=[Watch()], progress=False)
    assert ahead[0] == 1  # One batch for its shapes, while the step is being compiled.
    assert max(ahead) <= 3 + 3  # TensorFlow holds up to three between buffer and step.
    assert max(ahead) >= 3


def test_the_end_of_a_fit_does_not_wait_for_an_endless_provider(no_pauses):
    class Endless(Counting):
        def get_batch_data(self):
            return batch_of(0)

    for threads in (1, 3):
        data = kerasdist.read_provider(Endless(), reader_threads=threads)
        model = make_model()
        began = time.monotonic()
        kerasdist.fit(model, data, steps=5, progress=False)
        assert time.monotonic() - began < 5
        assert reader_threads() == []
        assert int(model.optimizer.iterations) == 5


def test_several_reader_threads_lose_nothing():
    class Slow(Counting):
        """Thread-safe; calls overlap, and the last batches take longest."""

        def __init__(self):
            super().__init__(40)
            self.lock = threading.Lock()
            self.threads = set()

        def get_batch_data(self):
            with self.lock:
                if self.at == self.num:
                    return None
                number, self.at = self.at, self.at + 1
                self.threads.add(threading.current_thread().name)
            time.sleep(0.05 if number > 36 else 0.001)
            return batch_of(number)

    provider, model = Slow(), make_model()
    data = kerasdist.read_provider(provider, reader_threads=4, capacity=5)
    history = kerasdist.fit(model, data, progress=False)
    assert int(model.optimizer.iterations) == 40
    assert history.history["mean_target"] == [pytest.approx(19.5)]
    assert len(provider.threads) == 4


def test_an_exception_of_one_of_several_threads_stops_all():
    class Broken(Failing):
        lock = threading.Lock()

        def get_batch_data(self):
            with self.lock:
                return super().get_batch_data()

    provider = Broken(20, num=1000)
    data = kerasdist.read_provider(provider, reader_threads=3)
    with pytest.raises(ReadError):
        kerasdist.fit(make_model(), data, progress=False)
    assert provider.calls < 25


def test_closing_waits_for_a_read_under_way_and_says_so(monkeypatch):
    monkeypatch.setattr("kerasdist.data.buffer._PATIENCE_SECONDS", 0.05)
    left = threading.Event()

    def read():
        time.sleep(0.3)
        left.set()
        return batch_of(0)

    reader = Reader(read=read)
    reader._start(0, 0)
    with pytest.warns(UserWarning, match="still reading a batch"):
        reader.close()
    assert left.is_set()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_exception_of_a_callback_ends_the_threads(error):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise error

    with pytest.raises(error):
        kerasdist.fit(make_model(), Counting(1000), callbacks=[Stop()], progress=False)
    assert reader_threads() == []


def test_a_generator_left_early_is_closed():
    closed = []

    def batches():
        try:
            while True:
                yield batch_of(0)
        finally:
            closed.append(threading.current_thread().name)

    kerasdist.fit(make_model(), batches, steps=3, progress=False)
    assert len(closed) == 1


def test_an_iterator_of_an_earlier_pass_takes_nothing_from_the_next():
    def batches(epoch, start):
        for i in range(start, 8):
            yield batch_of(10 * epoch + i)

    reader = Reader(batches, capacity=2)
    early = iter(reader.open(0, 0).prefetch(1))
    assert next(early)[0][0, 0] == 0
    late = reader.open(1, 0)
    assert all(x[0, 0] < 10 for x, _ in early)
    ids = [int(x[0, 0]) for x, _ in late]
    reader.close()
    assert ids == list(range(10, 18))


def test_data_is_not_kept_when_fit_has_returned():
    provider = Counting()
    kept = weakref.ref(provider)
    kerasdist.fit(make_model(), provider, progress=False)
    del provider
    gc.collect()
    assert kept() is None


def test_prediction_and_evaluation_leave_no_thread():
    model = make_model()
    assert kerasdist.evaluate(model, Counting())["mean_target"] == 2.5
    assert kerasdist.predict(model, Counting()).shape == (12, 1)
    with pytest.raises(ReadError):
        kerasdist.predict(model, Failing(4))
    with pytest.raises(ReadError):
        kerasdist.evaluate(model, generate_and_fail)
    assert reader_threads() == []
