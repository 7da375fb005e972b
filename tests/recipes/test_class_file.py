"""Constructor arguments read from the source of a file."""

from typing import Literal

import pytest

from kerasdist import KerasdistError
from kerasdist.recipes.class_file import REQUIRED, ClassFile


@pytest.fixture
def arguments(tmp_path):
    def read(source, name="Thing"):
        path = tmp_path / "thing.py"
        path.write_text(source)
        found = ClassFile.parse(f"{path}:{name}", "--model").arguments()
        return {a.name: (a.type, a.default) for a in found}

    return read


ANY = int | float | str


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("a", (ANY, REQUIRED)),
        ("a=3", (int, 3)),
        ("a=-3", (int, -3)),
        ("a=0.5", (float, 0.5)),
        ("a=True", (bool, True)),
        ("a='x'", (str, "x")),
        ("a=None", (ANY | None, None)),
        ("a=(3, 3)", (tuple[int, ...], (3, 3))),
        ("a=['x']", (list[str], ["x"])),
        ("a: int", (int, REQUIRED)),
        ("a: float = 1", (float, 1)),
        ("a: 'int' = 1", (int, 1)),
        ("a: int = None", (int | None, None)),
        ("a: int | None = None", (int | None, None)),
        ("a: Optional[float] = None", (float | None, None)),
        ("a: typing.Optional[int] = 3", (int | None, 3)),
        ("a: Union[int, str] = 3", (int | str, 3)),
        ("a: os.PathLike | str = 'x'", (str, "x")),
        ("a: Literal['same', 'valid'] = 'same'", (Literal["same", "valid"], "same")),
        ("a: list[int] = None", (list[int] | None, None)),
        ("a: Sequence[int] = (1, 2)", (list[int], (1, 2))),
        ("a: tuple[int, int] = (1, 2)", (tuple[int, ...], (1, 2))),
        ("*, a=3", (int, 3)),
        ("a=3, /", (int, 3)),
        ("a=3, *args, **kwargs", (int, 3)),
    ],
)
def test_types_and_defaults(arguments, declared, expected):
    source = f"class Thing:\n    def __init__(self, {declared}): pass"
    assert arguments(source) == {"a": expected}


@pytest.mark.parametrize("declared", ["a=make()", "a=[]", "a={'x': 1}", "a=CONSTANT", "a=(1, 'x')"])
def test_what_no_text_can_be_is_no_option(arguments, declared):
    assert arguments(f"class Thing:\n    def __init__(self, {declared}, b=1): pass") == {
        "b": (int, 1)
    }


def test_a_constructor_is_found_in_a_base_class_of_the_file(arguments):
    source = "class Base:\n    def __init__(self, a=1): pass\n\n\nclass Thing(Base):\n    pass"
    assert arguments(source) == {"a": (int, 1)}
    assert arguments("class Thing(Thing):\n    pass") == {}
    assert arguments("import x\n\n\nclass Thing(x.Base):\n    pass") == {}


def test_the_fields_of_a_dataclass_are_arguments(arguments):
    source = (
        "@dataclasses.dataclass(frozen=True)\nclass Thing:\n    a: int\n    b: str = 'x'\n"
        "    c: ClassVar[int] = 3\n"
    )
    assert arguments(source) == {"a": (int, REQUIRED), "b": (str, "x")}


def test_meanings_come_from_the_docstrings(tmp_path):
    path = tmp_path / "thing.py"
    path.write_text(
        '''
class Thing:
    """A thing. Note: this is no argument.

    Args:
        a: One
            two.
        b (int, optional): Three: four.

    Example:
        c: not indented further
    """

    def __init__(self, a=1, b=2, c=3, d=4):
        """Makes one.

        Args:
            d: Five.
        """
'''
    )
    found = ClassFile.parse(f"{path}:Thing", "--model").arguments()
    assert {a.name: a.help for a in found} == {
        "a": "One two.",
        "b": "Three: four.",
        "c": "not indented further",
        "d": "Five.",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("thing.py", "Expected FILE.py:Class"),
        (":Thing", "Expected FILE.py:Class"),
        ("nowhere.py:Thing", "no file 'nowhere.py'"),
        (
            "thing.py:Thin",
            "does not define the class 'Thin'. Expected one of Thing. Did you mean 'Thing'?",
        ),
        ("empty.py:Thing", "it has no classes"),
        ("broken.py:Thing", "not valid Python: .* in line 2"),
    ],
)
def test_errors_name_what_is_wrong(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thing.py").write_text("class Thing: pass")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "broken.py").write_text("x = 1\nclass :\n")
    with pytest.raises(KerasdistError, match=message):
        ClassFile.parse(text, "--model").arguments()


def test_load_imports_the_file_once_with_its_neighbours(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    (tmp_path / "neighbour.py").write_text("VALUE = 3")
    (tmp_path / "late_neighbour.py").write_text("VALUE = 4")
    (tmp_path / "thing.py").write_text(
        "import neighbour\n\n\nclass Thing:\n    value = neighbour.VALUE\n\n"
        "    def later(self):\n        import late_neighbour\n"
        "        return late_neighbour.VALUE\n\n\nclass Other:\n    thing = Thing\n"
    )
    thing = ClassFile.parse(f"{tmp_path / 'thing.py'}:Thing", "--model").load()
    other = ClassFile.parse(f"{tmp_path / 'thing.py'}:Other", "--data").load()
    assert thing.value == 3
    assert thing().later() == 4
    assert other.thing is thing


def test_a_file_that_fails_to_import_is_imported_anew(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    path = tmp_path / "flaky_thing.py"
    path.write_text("class Thing: pass\nraise ValueError('not yet')")
    source = ClassFile.parse(f"{path}:Thing", "--model")
    with pytest.raises(ValueError, match="not yet"):
        source.load()
    path.write_text("class Thing: value = 1\n")
    assert source.load().value == 1


def test_files_of_one_name_in_two_folders_are_two(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.py").write_text(f"class Thing: value = {folder!r}")
    values = [
        ClassFile.parse(f"{tmp_path / folder / 'same.py'}:Thing", "--model").load().value
        for folder in ("a", "b", "a")
    ]
    assert values == ["a", "b", "a"]
