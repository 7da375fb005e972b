"""Data of torch, grain and Hugging Face: batches, order, and where a pass continues."""

import subprocess
import sys

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.data.streams import open_stream
from tests.bad_input import refusal, regressor
from tests.data.every_form import BATCH, IDS, NUM, SIZED, Dicts, Pairs, X, Y, make_model
from tests.data.test_streams import flat, ids_of


def torch_data():
    return pytest.importorskip("torch").utils.data


def tensors():
    torch = pytest.importorskip("torch")

    return torch_data().TensorDataset(torch.tensor(X), torch.tensor(Y))


def torch_loader(**options):
    return torch_data().DataLoader(tensors(), batch_size=BATCH, **options)


def torch_stream():
    class Stream(torch_data().IterableDataset):
        def __iter__(self):
            return iter((X[i], Y[i]) for i in range(NUM))

    return torch_data().DataLoader(Stream(), batch_size=BATCH)


def torch_dicts():
    return torch_data().DataLoader([{"x": X[i], "y": Y[i]} for i in range(NUM)], batch_size=BATCH)


def grain():
    return pytest.importorskip("grain")


def grain_map():
    return grain().MapDataset.source(Pairs())


def grain_loader():
    return grain().DataLoader(
        data_source=Pairs(),
        sampler=grain().samplers.SequentialSampler(num_records=NUM),
        operations=[grain().transforms.Batch(BATCH)],
    )


def hugging_face(kind="numpy"):
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"x": X.tolist(), "y": Y.tolist()}).with_format(kind)


FORMS = {
    "torch loader": (torch_loader, {}),
    "torch loader with workers": (lambda: torch_loader(num_workers=2), {}),
    "torch loader of a stream": (torch_stream, {}),
    "torch loader of dicts": (torch_dicts, {}),
    "torch dataset": (tensors, SIZED),
    "torch subset": (lambda: torch_data().Subset(tensors(), range(NUM)), SIZED),
    "grain map": (grain_map, SIZED),
    "grain map of batches": (lambda: grain_map().batch(BATCH), {}),
    "grain iter": (lambda: grain_map().to_iter_dataset(), SIZED),
    "grain iter of batches": (lambda: grain_map().to_iter_dataset().batch(BATCH), {}),
    "grain loader": (grain_loader, {}),
    "dicts of Hugging Face": (hugging_face, SIZED),
    "dicts of plain lists": (lambda: hugging_face(None), SIZED),
    "dicts of a stream": (lambda: hugging_face().to_iterable_dataset(), SIZED),
}
# The others differ in nothing but what a batch is read from.
TRAINED = [
    "torch loader with workers",
    "torch loader of dicts",
    "grain map",
    "grain loader",
    "dicts of a stream",
]


@pytest.fixture
def opened():
    streams = []

    def open_form(make, **options):
        streams.append(open_stream(make(), **options))
        return streams[-1]

    yield open_form
    for stream in streams:
        stream.close()


@pytest.mark.parametrize("form", FORMS)
def test_a_pass_has_each_example_once_in_order(form, opened):
    make, sized = FORMS[form]
    stream = opened(make, **sized)
    for epoch in range(2):
        batches = ids_of(stream, epoch, 0)
        assert [len(batch) for batch in batches] == [4, 4, 4, 4, 4, 3]
        assert flat(batches) == list(range(NUM))


@pytest.mark.parametrize("form", FORMS)
def test_a_pass_opened_in_the_middle_is_the_rest_of_it(form, opened):
    make, sized = FORMS[form]
    whole = ids_of(opened(make, **sized, shuffle=True, seed=3), 2, 0)
    assert ids_of(opened(make, **sized, shuffle=True, seed=3), 2, 4) == whole[4:]


def reference(dicts):
    keras.utils.set_random_seed(1)
    model = make_model("dict" if dicts else "arrays")
    data = {"x": X, "y": Y} if dicts else (X, Y)
    return model, data


def trained_by_keras():
    model, _ = reference(dicts=False)
    model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    return model


@pytest.mark.parametrize("form", TRAINED)
def test_every_form_trains_evaluates_and_predicts_as_keras(form):
    make, sized = FORMS[form]
    expected = trained_by_keras()
    model, _ = reference("dict" in form)
    data = make()
    validation = {} if sized else {"validation_data": data}
    history = kerasdist.fit(
        model, data, **sized, epochs=2, shuffle=False, devices=2, progress=False, **validation
    )
    for own, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-5)
    loss = expected.evaluate(X, Y, verbose=0)[0]
    assert kerasdist.evaluate(model, data, **sized)["loss"] == pytest.approx(loss, rel=1e-4)
    if validation:
        assert history.history["val_loss"][-1] == pytest.approx(loss, rel=1e-4)
    outputs = expected.predict(X, verbose=0)
    np.testing.assert_allclose(kerasdist.predict(model, data, **sized), outputs, atol=1e-4)


def test_keras_reads_the_same_batches_of_a_torch_loader():
    expected, _ = reference(dicts=False)
    expected.fit(torch_loader(), epochs=2, verbose=0, shuffle=False)
    model, _ = reference(dicts=False)
    kerasdist.fit(model, torch_loader(), epochs=2, progress=False)
    for own, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-6)


@pytest.mark.parametrize("has_generator", [False, True])
def test_a_shuffling_torch_loader_has_the_order_of_seed_and_epoch(has_generator, opened):
    torch = pytest.importorskip("torch")

    def make():
        generator = torch.Generator() if has_generator else None
        return torch_loader(shuffle=True, generator=generator)

    def order(epoch, seed):
        torch.manual_seed(np.random.randint(1000))  # Somebody else's.
        return flat(ids_of(opened(make, shuffle=True, seed=seed), epoch, 0))

    first = order(0, 3)
    assert order(0, 3) == first
    orders = [first, order(1, 3), order(0, 4)]
    assert all(sorted(ids) == list(IDS) for ids in orders)
    assert len({tuple(ids) for ids in orders} | {tuple(IDS)}) == 4


def test_a_resumed_run_of_a_shuffling_torch_loader_has_the_weights_of_an_undisturbed_one(tmp_path):
    torch = pytest.importorskip("torch")

    def train(**options):
        torch.manual_seed(np.random.randint(1000))
        keras.utils.set_random_seed(1)
        model = make_model()
        data = torch_loader(shuffle=True)
        kerasdist.fit(model, data, progress=False, seed=5, deterministic=True, **options)
        return model.get_weights()

    expected = train(steps=11)
    train(steps=8, run_dir=tmp_path / "run")
    found = train(steps=11, run_dir=tmp_path / "run")
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(own, other)


def test_torch_is_left_alone_where_nothing_is_shuffled(opened):
    torch = pytest.importorskip("torch")

    torch.manual_seed(7)
    assert len(list(torch_loader(shuffle=True))) == 6
    expected = torch.random.get_rng_state()
    torch.manual_seed(7)
    assert len(ids_of(opened(lambda: torch_loader(shuffle=True)), 0, 0)) == 6
    assert torch.equal(torch.random.get_rng_state(), expected)


def test_bfloat16_of_torch(opened):
    torch = pytest.importorskip("torch")

    data = torch_data().TensorDataset(torch.tensor(X).bfloat16(), torch.tensor(Y))
    stream = opened(lambda: torch_data().DataLoader(data, batch_size=BATCH))
    assert stream.element_spec[0].dtype == "float32"


@pytest.mark.parametrize("form", ["torch loader", "grain loader"])
def test_a_loader_has_its_own_batch_size(form, not_compiled):
    message = refusal(regressor(), FORMS[form][0](), batch_size=4)
    assert "`batch_size=4` with `data`" in message
    assert "`DataLoader`" in message


def test_what_cannot_be_read_is_refused_by_name(not_compiled):
    class Stream(torch_data().IterableDataset):
        def __iter__(self):
            return iter(())

    assert "torch `IterableDataset`" in refusal(regressor(), Stream())
    empty = torch_data().DataLoader(tensors(), batch_size=99, drop_last=True)
    assert "`DataLoader` with 0 batches" in refusal(regressor(), empty, batch_size=None)
    endless = grain_map().repeat()
    assert "endless grain `MapDataset`" in refusal(regressor(), endless, batch_size=4)
    data = hugging_face().to_iterable_dataset()
    assert "no `batch_size`" in refusal(make_model("dict"), data, batch_size=None)


def test_a_filtered_map_of_examples_is_refused_and_its_batches_are_not():
    data = grain_map().filter(lambda example: example[0][0] != 5)
    assert "whose filter removed example 5" in refusal(regressor(), data, batch_size=4)
    stream = open_stream(data.to_iter_dataset().batch(BATCH))
    assert flat(ids_of(stream, 0, 0)) == [i for i in range(NUM) if i != 5]
    stream.close()


def test_endless_batches_of_grain_need_a_number_of_steps():
    data = grain_map().batch(BATCH).repeat()
    assert "steps_per_epoch" in refusal(make_model(), data, batch_size=None)
    model = make_model()
    kerasdist.fit(model, data, steps_per_epoch=4, epochs=2, progress=False)
    assert int(model.optimizer.iterations) == 8


def test_a_source_of_dicts_of_grain():
    model = make_model("dict")
    data = grain().MapDataset.source(Dicts())
    history = kerasdist.fit(model, data, **SIZED, progress=False)
    np.testing.assert_allclose(history.history["mean_target"], [Y.mean()], atol=1e-5)


def test_these_packages_are_not_imported_for_other_data():
    code = (
        "import sys, numpy as np, keras, kerasdist\n"
        "model = keras.Sequential([keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse')\n"
        "x = np.ones((4, 2))\n"
        "kerasdist.fit(model, (x, x[:, :1]), batch_size=2, progress=False)\n"
        "print([name for name in ('torch', 'grain', 'datasets') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
