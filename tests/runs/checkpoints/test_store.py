"""Checkpoints: what comes back, what is kept, and what is not touched."""

import doctest
import json
import os
import shutil

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kerasdist import KerasdistError
from kerasdist.runs.checkpoints import Store, manifests
from kerasdist.runs.checkpoints import store as module
from tests.faulty_files import DEAD_PID, QuickFiles, assert_same, contents, names, small_arrays

META = {"epoch": 3, "position": 17, "best": 0.25, "names": ["a", "b"], "nested": {"none": None}}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


def arrays_of_all_dtypes():
    random = np.random.default_rng(0)
    arrays = {}
    for dtype in manifests.PLAIN_DTYPES + manifests.EXTENSION_DTYPES:
        values = random.integers(0, 5, size=(3, 7))
        kind = getattr(ml_dtypes, dtype, None) or dtype
        arrays[dtype] = values.astype(kind)
        arrays[f"{dtype} scalar"] = values[0, 0].astype(kind)
        arrays[f"{dtype} empty"] = values[:0].astype(kind)
    return arrays


def test_arrays_of_every_dtype_come_back(folder):
    arrays = arrays_of_all_dtypes()
    Store(folder).save(3, arrays, META)
    checkpoint = Store(folder).newest()
    assert (checkpoint.step, checkpoint.path.name) == (3, "step-00000003")
    assert checkpoint.meta == META
    assert_same(checkpoint.arrays, arrays)


def test_special_values_layouts_and_byte_orders_come_back(folder):
    matrix = np.arange(12, dtype="float32").reshape(3, 4)
    nan = np.array([0x7FC00001, 0x7F800000, 0x80000000], "uint32").view("float32")
    arrays = {"payloads": nan, "columns": matrix.T, "every second": matrix[:, ::2]}
    Store(folder).save(0, {**arrays, "big-endian": matrix.astype(">f4")}, {})
    assert_same(Store(folder).newest().arrays, {**arrays, "big-endian": matrix})


def test_arrays_can_be_written_to(folder):
    Store(folder).save(0, {"a": np.zeros(3)}, {})
    Store(folder).newest().arrays["a"][1] = 5


def test_steps_of_a_run_that_removes_one_meanwhile(folder, monkeypatch):
    store = Store(folder)
    for step in (1, 2, 3):
        store.save(step, {"a": np.zeros(3)}, {})
    found = store._found()
    monkeypatch.setattr(store, "_found", lambda: [folder / "step-00000000", *found])
    assert store.steps() == Store(folder).steps()


def test_no_arrays_at_all(folder):
    Store(folder).save(0, {}, {"a": 1})
    checkpoint = Store(folder).newest()
    assert (checkpoint.arrays, checkpoint.meta) == ({}, {"a": 1})


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False).filter(np.isfinite),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
any_array = hnp.arrays(
    st.sampled_from(manifests.PLAIN_DTYPES),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    arrays=st.dictionaries(st.text(min_size=1), any_array, max_size=4),
    meta=st.dictionaries(st.text(), json_values, max_size=4),
    step=st.integers(0, 10**12),
)
def test_drawn_arrays_come_back(folder, arrays, meta, step):
    shutil.rmtree(folder, ignore_errors=True)
    Store(folder, files=QuickFiles()).save(step, arrays, meta)
    checkpoint = Store(folder).newest()
    assert (checkpoint.step, checkpoint.meta) == (step, meta)
    assert_same(checkpoint.arrays, arrays)


def test_names_are_keys_and_not_paths(folder, tmp_path):
    arrays = {"../../outside": np.ones(2), "/etc/passwd": np.ones(2), "a\0b": np.ones(2)}
    Store(folder).save(0, arrays, {})
    assert_same(Store(folder).newest().arrays, arrays)
    assert names(tmp_path) == ["checkpoints"]
    assert names(folder / "step-00000000") == ["arrays.bin", "manifest.json"]


def test_arrays_begin_at_multiples_of_64_bytes(folder):
    path = Store(folder).save(0, {"a": np.ones(3, "float32"), "b": np.full(2, 7.0)}, {})
    raw = (path / "arrays.bin").read_bytes()
    assert raw == np.ones(3, "<f4").tobytes() + bytes(52) + np.full(2, 7.0, "<f8").tobytes()
    assert json.loads((path / "manifest.json").read_text())["arrays"][1]["offset"] == 64


@pytest.mark.parametrize(
    ("arrays", "meta", "message"),
    [
        ({"a": np.array([object()])}, {}, "the array 'a' of dtype object"),
        ({"a": np.array(["text"])}, {}, "Expected one of the dtypes bool, int8"),
        ({"a": np.zeros(1, "datetime64[s]")}, {}, "Convert it, or leave it out"),
        ({3: np.zeros(1)}, {}, "Received the name 3"),
        ({"": np.zeros(1)}, {}, "Received the name ''"),
        ({}, {"logs": {"loss": float("nan")}}, r"Received nan in `meta\['logs'\]\['loss'\]`"),
        ({}, {"best": [1.0, -float("inf")]}, r"Received -inf in `meta\['best'\]\[1\]`"),
        ({}, {"best": np.float32(1)}, r"Received a float32 in `meta\['best'\]`"),
        ({}, {"a": {1: 2}}, "Received the key 1 in"),
        ({}, {"a": "x" * 100_000}, "Expected at most 50000. Save long lists in `meta` as arrays"),
    ],
)
def test_what_cannot_be_read_back_is_not_saved(folder, arrays, meta, message, monkeypatch):
    monkeypatch.setattr(manifests, "MOST_MANIFEST_BYTES", 50_000)
    with pytest.raises(KerasdistError, match=message):
        Store(folder).save(0, arrays, meta)
    assert not folder.exists() or names(folder) == []


def test_a_negative_step_is_refused(folder):
    with pytest.raises(KerasdistError, match=r"Received `step=-1`. Expected 0 or more"):
        Store(folder).save(-1, {}, {})


def test_the_newest_are_kept(folder):
    store = Store(folder, keep=3)
    for step in range(6):
        store.save(step, {"a": np.full(3, step)}, {})
    assert store.steps() == [3, 4, 5]
    Store(folder, keep=2).save(6, {}, {})
    assert names(folder) == ["step-00000005", "step-00000006"]


@pytest.mark.parametrize("keep", [1, 0, -3, 2.0, None])
def test_fewer_than_two_are_refused(folder, keep):
    with pytest.raises(KerasdistError, match=f"Received `keep={keep}`. Expected 2 or more"):
        Store(folder, keep=keep)


def test_steps_of_nine_digits_are_newer(folder):
    store = Store(folder)
    for step in (99_999_999, 100_000_000):
        store.save(step, {}, {})
    assert store.steps() == [99_999_999, 100_000_000]
    assert store.newest().step == 100_000_000


def test_a_step_that_is_there_stays_as_it_was(folder):
    store = Store(folder)
    path = store.save(1, {"a": np.ones(2)}, {"first": True})
    before = contents(folder), path.stat().st_ino
    assert store.save(1, {"a": np.zeros(2)}, {"first": False}) == path
    assert (contents(folder), path.stat().st_ino) == before


@pytest.mark.parametrize("damage", ["arrays.bin", "manifest.json", "both"])
def test_a_step_that_is_broken_is_replaced(folder, damage):
    store = Store(folder)
    path = store.save(1, {"a": np.ones(2)}, {})
    for file in [damage] if damage != "both" else ["arrays.bin", "manifest.json"]:
        (path / file).unlink()
    store.save(1, {"a": np.zeros(2)}, {})
    assert names(folder) == [path.name]
    assert_same(store.newest().arrays, {"a": np.zeros(2)})


def test_broken_ones_do_not_count_as_kept(folder):
    """Else a run that goes on from the one before would keep one good checkpoint only."""
    store = Store(folder)
    store.save(100, small_arrays(100), {})
    damaged = store.save(200, small_arrays(200), {}) / "arrays.bin"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\2")
    store = Store(folder)
    assert store.newest().step == 100
    for step, steps in ((120, [100, 120, 200]), (140, [120, 140, 200])):
        store.save(step, small_arrays(step), {})
        assert store.steps() == steps
    store.save(200, small_arrays(200), {})
    assert store.newest().step == 200
    assert store.steps() == [140, 200]


def test_a_broken_one_is_kept_until_there_are_enough_good_ones(folder):
    store = Store(folder)
    os.truncate(store.save(100, small_arrays(100), {}) / "arrays.bin", 10)
    store.save(200, small_arrays(200), {})
    assert store.steps() == [100, 200]
    store.save(300, small_arrays(300), {})
    assert store.steps() == [200, 300]


def test_a_step_before_those_that_are_there_is_kept(folder):
    store = Store(folder)
    for step in (10, 20, 5):
        store.save(step, small_arrays(step), {})
    assert store.steps() == [5, 10, 20]


def test_foreign_files_stay(folder):
    store = Store(folder)
    folder.mkdir()
    foreign = [
        "notes.txt",
        "tmp-mine",
        f"tmp-save-00000001-{DEAD_PID}",
        f"tmp-save-1-{DEAD_PID}-0123abcd",
        f"tmp-save-00000001-{DEAD_PID}-0123abcd.bak",
        f"tmp-save-00000001-{DEAD_PID}-0123ABCD",
        "step-1",
        "step-000000001",
        "step-00000001.bak",
        "step-０００００００１",
        "lock",
    ]
    for number, name in enumerate(foreign):
        if number % 2:
            (folder / name).mkdir()
            (folder / name / "arrays.bin").write_bytes(b"foreign")
        else:
            (folder / name).write_bytes(b"foreign")
    before = contents(folder)
    for step in (10, 20, 30, 40):
        store.save(step, small_arrays(step), {})
    assert store.steps() == [30, 40]
    assert store.newest().step == 40
    assert store.skipped == []
    after = contents(folder)
    assert {k: v for k, v in after.items() if not k.startswith("step-000000")} == {
        k: v for k, v in before.items() if not k.startswith("step-000000")
    }
    assert set(foreign) <= set(names(folder))


def test_a_checkpoint_with_a_foreign_file_in_it_stays(folder):
    store = Store(folder)
    (store.save(1, small_arrays(1), {}) / "notes.txt").write_text("the good one")
    for step in (2, 3, 4):
        store.save(step, small_arrays(step), {})
    assert store.steps() == [1, 3, 4]


def test_foreign_files_in_our_drafts_stay(folder):
    draft = folder / f"tmp-save-00000001-{DEAD_PID}-0123abcd"
    draft.mkdir(parents=True)
    for name in ("arrays.bin", "notes.txt"):
        (draft / name).write_text("text")
    Store(folder).save(1, {}, {})
    assert names(draft) == ["notes.txt"]


def test_links_are_not_followed(folder, tmp_path):
    outside = tmp_path / "outside"
    elsewhere = Store(outside).save(50, small_arrays(50), {})
    store = Store(folder)
    store.save(1, small_arrays(1), {})
    (folder / "step-00000050").symlink_to(elsewhere)
    (folder / "step-00000060").write_text("a file")
    stale = folder / f"tmp-save-00000001-{DEAD_PID}-0123abcd"
    stale.symlink_to(elsewhere)
    before = contents(outside)
    assert store.newest().step == 1
    reason = "it is a link or a file, not a folder"
    assert store.skipped == [
        (folder / "step-00000060", reason),
        (folder / "step-00000050", reason),
    ]
    for step in (51, 52, 53):
        store.save(step, small_arrays(step), {})
    assert store.steps() == [52, 53]
    with pytest.raises(
        KerasdistError, match=r"step 50 cannot be saved: .* is a link or a file. Expected"
    ):
        store.save(50, small_arrays(50), {})
    assert contents(outside) == before
    assert stale.is_symlink()
    assert (folder / "step-00000050").is_symlink()
    assert not list(folder.glob(f"tmp-*-{os.getpid()}-*"))


@pytest.mark.parametrize("kind", ["link", "dangling link", "file"])
def test_a_folder_that_is_none_is_refused(folder, tmp_path, kind):
    store = Store(folder)
    if kind == "file":
        folder.write_text("text")
    else:
        folder.symlink_to(tmp_path / "target")
        if kind == "link":
            (tmp_path / "target").mkdir()
    for call in (lambda: Store(folder), store.newest, lambda: store.save(1, {}, {})):
        with pytest.raises(KerasdistError, match=r"is a link or a file. Expected a real folder"):
            call()
    assert names(tmp_path) == (["checkpoints", "target"] if kind == "link" else ["checkpoints"])


def test_a_run_folder_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    Store(tmp_path / "run" / "checkpoints").save(1, {}, {})
    assert Store(tmp_path / "disk" / "checkpoints").newest().step == 1


def test_the_example_runs():
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed
