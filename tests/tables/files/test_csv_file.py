import pytest

from kerasdist import KerasdistError
from kerasdist.tables.files.csv_file import CsvFile
from kerasdist.tables.files.opening import open_table
from kerasdist.tables.files.source import Expected


@pytest.fixture
def written(tmp_path):
    def write(content, **options):
        path = tmp_path / "table.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return CsvFile(path, **options)

    return write


def rows(file):
    return [row for block in file.blocks() for row in zip(*block.columns, strict=True)]


def places(file):
    return [place for block in file.blocks() for place in block.places]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found(written, delimiter):
    file = written(delimiter.join("abc") + "\n" + delimiter.join("123") + "\n")
    assert file.names == ("a", "b", "c")
    assert rows(file) == [("1", "2", "3")]


def test_decimal_commas_between_semicolons_are_no_delimiters(written):
    file = written("size;price\n1,5;2,25\n3,5;4,75\n")
    assert file.names == ("size", "price")
    assert rows(file)[0] == ("1,5", "2,25")
    assert file.decimal_commas
    assert file.notes == ("semicolons between the columns",)


def test_quotes_hold_delimiters_quotes_and_lines(written):
    file = written('a,b\n"x, ""y""","two\nlines"\n1,2\n')
    assert rows(file) == [('x, "y"', "two\nlines"), ("1", "2")]
    assert places(file) == [2, 4]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("name,n\nZürich,1\n".encode("utf-8-sig"), "Zürich"),
        ("name,n\nZürich,1\n".encode("latin-1"), "Zürich"),
        ("name,n\nZürich,1\n".encode("utf-16"), "Zürich"),
    ],
)
def test_the_encoding_is_found(written, content, expected):
    file = written(content)
    assert file.names == ("name", "n")
    assert rows(file) == [(expected, "1")]


def test_it_says_that_a_file_is_not_utf8(written):
    assert "Latin-1" in written("name,n\nZürich,1\n".encode("latin-1")).notes[0]


def test_latin1_after_the_first_megabyte_is_found(written):
    content = b"name,n\n" + b"Bern,1\n" * 200_000 + "Zürich,2\n".encode("latin-1")
    assert rows(written(content))[-1] == ("Zürich", "2")


def test_a_damaged_byte_costs_its_own_character(written):
    content = "name,n\nZürich,1\nGenève,2\nZürich,3\nBiel,n?te\n".encode().replace(b"?", b"\xe9")
    file = written(content)
    assert [name for name, _ in rows(file)] == ["Zürich", "Genève", "Zürich", "Biel"]
    assert rows(file)[-1] == ("Biel", "n\ufffdte")
    assert file.notes == ("UTF-8 with damaged characters, the first in line 5",)
    many = b"name,n\n" + "Zürich,1\r\n".encode() * 200_000 + b"Gen\xe8ve,2\r\n"
    assert written(many).notes[0].endswith("in line 200002")
    assert rows(written(b"\xef\xbb\xbf" + content))[0] == ("Zürich", "1")
    assert written("name,n\nn\ufffdte,1\nZürich,2\n".encode()).notes == ()
    assert rows(written("n,name\n1,Bern\n2,Gen\xe8".encode("latin-1")))[1] == ("2", "Genè")


def test_blank_lines_and_delimiters_at_the_end_are_read_over(written):
    file = written("a,b,\r\n\r\n1,2,\r\n  \r\n3,4,\r\n")
    assert file.names == ("a", "b")
    assert rows(file) == [("1", "2"), ("3", "4")]
    assert places(file) == [3, 5]


def test_row_names_without_a_name_are_a_column(written):
    file = written('"a","b"\n"one",1,2\n"two",3,4\n')
    assert file.names == ("unnamed", "a", "b")


def test_many_rows_come_in_blocks(written):
    file = written("a,b\n" + "1,2\n" * 10_000)
    assert [len(block) for block in file.blocks()] == [4096, 4096, 1808]
    assert len(rows(file)) == 10_000  # It can be read again.


def test_a_row_of_another_length_is_named_by_its_line(written):
    file = written("a,b\n1,2\n\n1,2,3\n")
    with pytest.raises(KerasdistError, match=r"Line 4 of .* has 3 fields, but there are 2 columns"):
        rows(file)
    with pytest.raises(KerasdistError, match=r"Line 2 of .* has 1 field"):
        rows(written("a,b\nx\n1,2\n"))


def test_bad_rows_can_be_skipped(written):
    file = written("a,b\n1,2\n1,2,3\nx\n3,4\n", skip_bad=True)
    assert rows(file) == [("1", "2"), ("3", "4")]
    assert file.num_skipped == 2


def test_a_quote_that_is_never_closed_is_named(written):
    with pytest.raises(KerasdistError, match=r"Line 3 of .*a quote may be missing"):
        rows(written('a,b\n1,2\n"x,2\n' + "1,2\n" * 10))


STRAY = [f"{i},al,x\n" for i in range(1000)]
STRAY[100], STRAY[900] = '100,"bob,x\n', '900,"x",y\n'


def test_a_stray_quote_swallows_no_rows(written):
    content = "a,name,label\n" + "".join(STRAY)
    with pytest.raises(KerasdistError, match=r"Line 102 of .* cannot be read"):
        rows(written(content))
    file = written(content, skip_bad=True)
    found = rows(file)
    assert (len(found), file.num_skipped) == (999, 1)
    assert found[99:101] == [("99", "al", "x"), ("101", "al", "x")]
    assert found[899 - 1 : 900] == [("899", "al", "x"), ("900", "x", "y")]
    assert places(file)[99:101] == [101, 103]


def test_a_stray_quote_that_is_never_closed_can_be_skipped(written):
    file = written('a,b\n1,2\n"x,2\n' + "1,2\n" * 10, skip_bad=True)
    assert len(rows(file)) == 11
    assert file.num_skipped == 1
    file = written('a,b\n1,2\n"x\ny,2\n3,"4\n5"\n', skip_bad=True)
    assert rows(file) == [("1", "2"), ("y", "2"), ("3", "4\n5")]
    assert places(file) == [2, 4, 5]


def test_quotes_in_a_file_with_tabs_may_be_text(written):
    lines = [f"ham\thello {i}\n" for i in range(50)]
    lines[20] = 'spam\t"win now\n'
    lines[30] = 'spam\t"free" for all\n'
    file = written("label\ttext\n" + "".join(lines))
    found = rows(file)
    assert len(found) == 50
    assert (found[20], found[30]) == (("spam", '"win now'), ("spam", '"free" for all'))
    assert file.notes == ("tabs between the columns", "quotes are part of the text")
    lines[20], lines[30] = 'spam\t"win\nnow"\n', 'spam\t"""free"" for all"\n'
    file = written("label\ttext\n" + "".join(lines))
    assert (rows(file)[20], rows(file)[30]) == (("spam", "win\nnow"), ("spam", '"free" for all'))


def test_a_long_quoted_text_between_tabs(written):
    text = "word\n" * 40_000
    assert rows(written(f'a\tb\n1\t"{text}"\n')) == [("1", text)]


def test_blanks_around_quotes(written):
    file = written('a, "b, c", label\n0.91, "0.9, 2" , "y"\n 1,"2"  ,x\n')
    assert file.names == ("a", "b, c", "label")
    assert rows(file)[0] == ("0.91", "0.9, 2", "y")
    assert [value.strip() for value in rows(file)[1]] == ["1", "2", "x"]
    assert rows(written('a,b\n1, "hello" she said\n')) == [("1", ' "hello" she said')]


@pytest.mark.parametrize("delimiter", ["\t", ";"])
def test_empty_fields_stay_empty(written, delimiter):
    content = "a|b|c\n||3\n |2|\n1|| \n".replace("|", delimiter)
    found = [tuple(value.strip() for value in row) for row in rows(written(content))]
    assert found == [("", "", "3"), ("", "2", ""), ("1", "", "")]


def test_a_field_without_an_end_is_named(written, monkeypatch):
    monkeypatch.setattr("kerasdist.tables.files.csv_rows.LONGEST_FIELD", 100)
    file = written('a,b\n1,2\n"' + "x" * 200 + '",2\n')
    with pytest.raises(KerasdistError, match=r"Line 3 of .* cannot be read \(field larger"):
        rows(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("just text\nmore text\n", "has one column only: its first line is 'just text'"),
        (b"PK\x03\x04\0\0\0\0", "is not text"),
        ("a,b,a\n1,2,3\n", "has 2 columns with the name 'a'"),
        ("1,2,1\n3,4,5\n", "has 2 columns with the name '1'.*`--no-header`"),
        ("a,,c\n1,2,3\n", "has no name for column 2"),
        ("5.1,3.5,setosa\n4.9,3.0,setosa\n", r"holds values \('5.1', '3.5', 'setosa'\)"),
        ("150,4,setosa,versicolor\n5.1,3.5,1.4,0\n4.9,3.0,1.4,0\n", "holds values"),
        ("1.5,2.5,?\n3.5,4.5,1\n5.5,1.5,0\n", "holds values.*use `--header`"),
    ],
)
def test_what_is_not_a_table_is_refused(written, content, message):
    with pytest.raises(KerasdistError, match=message):
        written(content)


def test_numbers_that_count_are_names(written):
    assert written("0,1,2,digit\n5,6,7,8\n").names == ("0", "1", "2", "digit")
    assert written("country,2019,2020\nx,1,2\n").names == ("country", "2019", "2020")


SPECTRA = ",".join(f"{1100 + 2.5 * i}" for i in range(20))


@pytest.mark.parametrize(
    "header",
    [
        f"{SPECTRA},label",
        f"sample,{SPECTRA}",
        "protein,4000.1,3998.2,3996.4",
        "gdp,1990,1995,2005",
    ],
)
def test_numbers_that_go_up_are_names(written, header):
    names = tuple(header.split(","))
    row = ",".join(str(0.1 * i) for i in range(len(names)))
    assert written(f"{header}\n{row}\n{row}\n").names == names


def test_a_header_of_numbers_can_be_said(written):
    content = "country,1990,1995,2005,label\nx,1,2,3,a\ny,1,2,4,b\n"
    with pytest.raises(KerasdistError, match="holds values"):
        written(content)
    names = ("country", "1990", "1995", "2005", "label")
    assert written(content, has_header=True).names == names
    assert written(content, expected=Expected(frozenset({"label"}))).names == names
    assert len(rows(written(content, has_header=True))) == 2


@pytest.mark.parametrize("line", ["sep=;", "SEP=;;;", "sep=;\n"])
def test_a_line_that_tells_the_delimiter_is_no_header(written, line):
    file = written(f"{line}\nsize,m;price\n1,5;2,25\n1;2\n")
    assert file.names == ("size,m", "price")
    assert rows(file)[0] == ("1,5", "2,25")
    assert places(file)[-1] == 4 + line.count("\n")
    assert written("sep=^\na^b\n1^2\n").names == ("a", "b")
    assert written("sep=\t\na\tb\n1\t2\n").names == ("a", "b")


LEARNT = Expected(frozenset({"text", "label"}), is_learnt=True, target="label")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("text\nhello\nyou\n", ["hello", "you"]),
        ('text\n"hello, you; all"\n"a\nb"\n', ["hello, you; all", "a\nb"]),
        ("text\nhello, you\nand, you, too\n", ["hello, you", "and, you, too"]),
        ('text\nx\n""\ny\n\n', ["x", "", "y"]),
    ],
)
def test_a_model_may_need_one_column_only(written, content, expected):
    file = written(content, expected=LEARNT)
    assert file.names == ("text",)
    assert [text for (text,) in rows(file)] == expected


def test_one_column_that_nobody_needs_is_refused(written):
    with pytest.raises(KerasdistError, match=r"one column only.*only one that the model reads"):
        written("texts\nhello\nyou\n", expected=LEARNT)
    with pytest.raises(KerasdistError, match="has one column only"):
        written("text\nhello\nyou\n")


def test_columns_without_names_keep_their_places(written):
    """Without the target, the others keep their names; nothing shifts."""
    learnt = Expected(is_learnt=True, target="column_1", width=4)
    assert written("a,1,2,9\nb,3,4,9\n", has_header=False, expected=learnt).names[0] == "column_1"
    file = written("1,2,9\n3,4,9\n", has_header=False, expected=learnt)
    assert file.names == ("column_2", "column_3", "column_4")
    message = r"has 2 columns without names. Expected 4, .* or 3 without the target 'column_1'"
    with pytest.raises(KerasdistError, match=message):
        written("1,2\n3,4\n", has_header=False, expected=learnt)
    one = Expected(is_learnt=True, target="column_2", width=2)
    assert written("hello\nyou\n", has_header=False, expected=one).names == ("column_1",)


def test_a_table_without_a_header_numbers_its_columns(written):
    file = written("5.1,3.5,setosa\n4.9,3.0,setosa\n", has_header=False)
    assert file.names == ("column_1", "column_2", "column_3")
    assert len(rows(file)) == 2


def test_other_files_are_refused(tmp_path):
    with pytest.raises(KerasdistError, match=r"table.xlsx.*ends in \.csv, \.tsv, \.parquet"):
        open_table(tmp_path / "table.xlsx")
    with pytest.raises(KerasdistError, match="does not exist"):
        open_table(tmp_path / "table.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(KerasdistError, match="is a folder"):
        open_table(tmp_path / "folder.csv")


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    path.write_text("a,b\n")

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("kerasdist.tables.files.opening.CsvFile", refuse)
    with pytest.raises(KerasdistError, match="cannot be read: Permission denied"):
        open_table(path)
