import json
import sys

import pytest

from kerasdist import KerasdistError, Table
from kerasdist.tables.files.opening import open_table


@pytest.fixture
def written(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    def write(**columns):
        path = tmp_path / "table.parquet"
        pq.write_table(pa.table(columns), path)
        return open_table(path)

    return write


def test_values_become_text_and_missing_ones_nothing(written):
    from datetime import date

    file = written(
        n=[1, None, 3],
        x=[0.5, float("nan"), None],
        s=["a", None, "c"],
        b=[True, False, None],
        d=[date(2024, 2, 29), None, None],
    )
    assert file.names == ("n", "x", "s", "b", "d")
    (block,) = file.blocks()
    assert block.columns[0] == ("1", "", "3")
    assert block.columns[1][0] == "0.5"
    assert block.columns[2] == ("a", "", "c")
    assert block.columns[3] == ("true", "false", "")
    assert block.columns[4] == ("2024-02-29", "", "")
    assert block.places == (1, 2, 3)


def test_rows_come_in_blocks(written):
    assert [len(block) for block in written(n=list(range(5000))).blocks()] == [4096, 904]


def test_a_column_of_lists_is_named(written):
    with pytest.raises(KerasdistError, match=r"has the column 'bad' of the type list"):
        list(written(n=[1], bad=[[1, 2]]).blocks())


def test_a_damaged_file_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "table.parquet"
    path.write_bytes(b"PAR1 but no more")
    with pytest.raises(KerasdistError, match="cannot be read as Parquet"):
        open_table(path)


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    path = tmp_path / "table.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(KerasdistError, match=r"pip install 'kerasdist\[parquet\]'"):
        open_table(path)


def test_a_name_that_comes_twice_is_refused(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "twice.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    with pytest.raises(KerasdistError, match="2 columns with the name 'a'"):
        open_table(path)


def indexed(tmp_path, index, **columns):
    """A file as pandas writes it, with its index at the end."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table(columns)
    if index is not None:
        told = json.dumps({"index_columns": index}).encode()
        table = table.replace_schema_metadata({b"pandas": told})
    pq.write_table(table, tmp_path / "index.parquet")
    return tmp_path / "index.parquet"


N = 60
COLUMNS = {"x": [i * i % 37 for i in range(N)], "kind": ["ab"[i % 2] for i in range(N)]}


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("__index_level_0__", ["__index_level_0__"]),
        ("__index_level_0__", None),
        ("customer", ["customer"]),
    ],
)
def test_the_index_of_pandas_is_left_out(tmp_path, name, index):
    columns = {**COLUMNS, name: [i * i + 0.5 for i in range(N)]}
    table = Table(indexed(tmp_path, index, **columns))
    assert table.schema.target.name == "kind"
    assert [column.name for column in table.schema.columns] == ["x"]
    assert table.describe()["left out"] == f"{name} (the index of pandas)"
    used = Table(table.path, target="kind", numbers=[name])
    assert [column.name for column in used.schema.columns] == ["x", name]


@pytest.mark.parametrize("index", [[], [{"kind": "range", "start": 0, "stop": N}], {"a": 1}])
def test_a_file_without_an_index_column_has_all_columns(tmp_path, index):
    assert open_table(indexed(tmp_path, index, **COLUMNS)).indexes == ()
