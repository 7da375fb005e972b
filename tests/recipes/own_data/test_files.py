"""Looking at image and WAV files without decoding them."""

import doctest
import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from kerasdist import KerasdistError
from kerasdist.recipes.own_data import (
    bad_files,
    image_files,
    image_sizes,
    orientations,
    sound_files,
    sound_sizes,
)
from tests.own_data import write_wav

FORMATS = ("png", "jpg", "bmp", "gif", "webp")


def image(path, size=(40, 30), **options):
    random = np.random.default_rng(0)
    Image.fromarray(random.integers(0, 255, (*size[::-1], 3), np.uint8)).save(path, **options)
    return path


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_complete_image_has_no_problem_and_a_size(tmp_path, suffix):
    path = image(tmp_path / f"a.{suffix}")
    assert image_files.problem(path) is None
    assert image_files.size_of(path) == (30, 40)


@pytest.mark.parametrize("suffix", [s for s in FORMATS if s != "gif"])
@pytest.mark.parametrize("part", [0.5, 0.95])
def test_an_image_that_is_cut_short_is_found(tmp_path, suffix, part):
    path = image(tmp_path / f"a.{suffix}")
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    assert image_files.problem(path) == "is cut short"


def test_what_a_camera_appends_is_no_problem(tmp_path):
    path = image(tmp_path / "a.jpg")
    path.write_bytes(path.read_bytes() + bytes(5000))
    assert image_files.problem(path) is None
    png = image(tmp_path / "a.png")
    png.write_bytes(png.read_bytes() + bytes(5000))
    assert image_files.problem(png) is None


def test_a_thumbnail_is_not_the_end_of_a_jpeg(tmp_path):
    path = image(tmp_path / "a.jpg")
    content, thumbnail = path.read_bytes(), image(tmp_path / "t.jpg", (8, 8)).read_bytes()
    block = b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail
    path.write_bytes(content[:2] + block + content[2 : len(content) // 2])
    assert image_files.problem(path) == "is cut short"
    path.write_bytes(content[:2] + block + content[2:])
    assert image_files.problem(path) is None
    assert image_files.size_of(path) == (30, 40)


@pytest.mark.parametrize("form", [{"lossless": True}, {"quality": 80}])
def test_the_forms_of_webp(tmp_path, form):
    assert image_files.size_of(image(tmp_path / "a.webp", (77, 33), **form)) == (33, 77)
    both = Image.fromarray(np.zeros((33, 77, 4), np.uint8))
    both.save(tmp_path / "b.webp", **form)
    assert image_files.size_of(tmp_path / "b.webp") == (33, 77)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><p>404", "is not an image: it is an HTML page"),
        (b"<svg>", "is not an image: it is XML or SVG"),
        (b"hello, you", "is not an image: it begins with b'hello, y'"),
    ],
)
def test_what_is_not_an_image(tmp_path, content, expected):
    (tmp_path / "a.png").write_bytes(content)
    assert image_files.problem(tmp_path / "a.png") == expected
    assert image_files.size_of(tmp_path / "a.png") is None


def test_what_is_not_there():
    assert image_files.problem("/nowhere/a.png").startswith("cannot be opened: No such file")
    assert image_files.size_of("/nowhere/a.png") is None
    assert sound_files.problem("/nowhere/a.wav").startswith("cannot be opened: No such file")


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
@pytest.mark.parametrize("orientation", range(1, 10))
def test_the_size_is_that_of_the_upright_image(tmp_path, suffix, orientation):
    """As phones save photos in portrait. Pillow is what reads them."""
    exif = Image.Exif()
    exif[0x010F], exif[0x0112] = "a camera", orientation
    path = image(tmp_path / f"a.{suffix}", exif=exif)
    with Image.open(path) as opened:
        width, height = ImageOps.exif_transpose(opened).size
    assert image_files.size_of(path) == (height, width)
    assert image_sizes.in_words([path]) == ("30 x 40" if 5 <= orientation <= 8 else "40 x 30")


def test_exif_data_after_the_pixels_of_a_png(tmp_path):
    exif = b"II*\0" + struct.pack("<IH", 8, 1) + struct.pack("<HHIHH", 0x0112, 3, 1, 8, 0)
    path = image(tmp_path / "a.png")
    content = path.read_bytes()
    chunk = struct.pack(">I", len(exif)) + b"eXIf" + exif
    chunk += struct.pack(">I", zlib.crc32(b"eXIf" + exif))
    path.write_bytes(content[:-12] + chunk + content[-12:])
    assert image_files.size_of(path) == (40, 30)


def test_damaged_exif_data_turns_nothing(tmp_path):
    for exif in (b"Exif\0\0", b"II*\0", b"MM\0*" + bytes([0, 0, 0, 8, 0, 9]), b"nothing at all"):
        assert orientations.orientation_of(exif) == 1
        assert image_files.size_of(image(tmp_path / "a.jpg", exif=exif)) == (30, 40)
    assert doctest.testmod(orientations).failed == 0


def test_sizes_are_chosen_from_the_images(tmp_path):
    same = [image(tmp_path / f"{i}.png", (28, 20)) for i in range(3)]
    assert image_sizes.choose_size(same) == (20, 28)
    assert image_sizes.in_words(same) == "28 x 20"
    large = [image(tmp_path / f"l{i}.jpg", (400 + i, 200)) for i in range(3)]
    assert image_sizes.choose_size(large) == (48, 96)
    assert image_sizes.in_words([*same, *large]) == "28 x 20 to 402 x 200"
    assert image_sizes.choose_size([]) == (96, 96)
    assert image_sizes.in_words([]) == "unknown"


def wav(samples=100, *, kind=1, bits=16, channels=1, rate=8000, before=b"", size=None, extra=b""):
    content = bytes(samples * channels * bits // 8)
    form = struct.pack("<HHIIHH", kind, channels, rate, 0, 0, bits) + extra
    data = struct.pack("<I", len(content) if size is None else size) + content
    body = b"WAVE" + before + b"fmt " + struct.pack("<I", len(form)) + form + b"data" + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def header(tmp_path, content):
    (tmp_path / "a.wav").write_bytes(content)
    return sound_files.read_header(tmp_path / "a.wav")


def test_the_header_of_a_wav_file(tmp_path):
    found = header(tmp_path, wav(50, bits=24, channels=2, rate=44100))
    assert (found.rate, found.channels, found.bits, found.length) == (44100, 2, 24, 50)
    assert found.seconds == 50 / 44100
    assert (
        header(tmp_path, wav(before=b"LIST" + struct.pack("<I", 5000) + bytes(5000))).length == 100
    )
    assert header(tmp_path, wav(size=0xFFFFFFFF)).length == 100  # A pipe does not know the size.
    extra = struct.pack("<HHIH", 22, 16, 0, 3) + bytes(14)
    assert header(tmp_path, wav(kind=0xFFFE, bits=32, extra=extra)).is_float


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"ID3 an mp3", "is not a WAV file: it begins with b'ID3 '"),
        (wav(size=900), "is cut short"),
        (wav()[:30], "is cut short: it has no samples"),
        (wav(0), "has no samples"),
        (wav(kind=6, bits=8), r"is compressed \(A-law\)"),
        (wav(kind=77), r"is compressed \(format 77\)"),
        (wav(bits=12), "has 1 channels of 12 bits"),
        (b"RIFF    WAVEdata" + bytes(20), "its format is missing"),
    ],
)
def test_wav_files_that_cannot_be_used(tmp_path, content, expected):
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(sound_files.BadSoundError, match=expected):
        sound_files.read_header(tmp_path / "a.wav")


def test_rate_and_length_are_chosen_from_the_sounds(tmp_path):
    for i, rate in enumerate((44100, 8000, 8000)):
        write_wav(tmp_path / f"{i}.wav", np.zeros(int(rate * (0.3 + i / 10))), rate, channels=2)
    found = sound_sizes.headers([tmp_path / f"{i}.wav" for i in range(4)])
    assert len(found) == 3
    assert (sound_sizes.choose_rate(found), sound_sizes.choose_seconds(found)) == (8000, 0.5)
    expected = "0.3 to 0.5 s, 8,000 to 44,100 Hz, 16 bits, stereo"
    assert sound_sizes.in_words(found) == expected
    assert sound_sizes.choose_rate(found[:1]) == 16000
    assert (sound_sizes.choose_rate([]), sound_sizes.choose_seconds([])) == (16000, 1.0)
    assert sound_sizes.in_words([]) == "unknown"


def test_bad_files_are_named_with_their_number(tmp_path):
    for i in range(9):
        (tmp_path / f"{i}.png").write_bytes(
            b"" if i < 7 else image(io.BytesIO(), format="png").getvalue()
        )
    names = [f"{i}.png" for i in range(9)] + ["gone.png"]
    bad = bad_files.find_bad(tmp_path, names, image_files.problem)
    assert list(bad) == [*names[:7], "gone.png"]
    with pytest.raises(KerasdistError) as caught:
        bad_files.refuse(tmp_path, bad, len(names), "images")
    assert "8 of 10 files" in str(caught.value)
    assert "0.png is empty; 1.png is empty" in str(caught.value)
    assert "and 3 more. Expected complete images." in str(caught.value)
    assert "`--skip-bad`" in str(caught.value)
    bad_files.refuse(tmp_path, {}, 3, "images")


def test_a_file_that_changes_is_looked_at_again(tmp_path):
    path = image(tmp_path / "a.png")
    assert not bad_files.find_bad(tmp_path, ["a.png"], image_files.problem)
    path.write_bytes(b"")
    os.utime(path)
    assert bad_files.find_bad(tmp_path, ["a.png"], image_files.problem) == {"a.png": "is empty"}
