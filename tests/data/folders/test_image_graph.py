"""The graph of a served model decodes files as the reader, with Pillow, does for a training."""

import io
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import kerasdist

READER = kerasdist.ImageReader((32, 40))
DECODE = tf.function(READER.decode, input_signature=[tf.TensorSpec([None], tf.string)])
# Of every bit depth there are at least two colours: a square on a ground.
GROUND, SQUARE = 0, 1
COLOURS = [(250, 120, 40), (20, 60, 200), (0, 0, 0), (90, 90, 90)]


def square(highest=SQUARE):
    indices = np.full((32, 40), GROUND, np.uint8)
    indices[8:24, 8:24] = highest
    return indices


def packed(indices, bits, multiple=1):
    """The rows of a picture with `bits` per pixel, filled up to a multiple of some bytes."""
    rows = []
    for row in indices.tolist():
        digits = "".join(f"{value:0{bits}b}" for value in row)
        size = -(-len(digits) // (8 * multiple)) * multiple
        rows.append(int(digits.ljust(8 * size, "0"), 2).to_bytes(size, "big"))
    return rows


def png(indices, bits, *, palette=None, transparent=None, exif=None):
    height, width = indices.shape
    kind = 0 if palette is None else 3
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0))]
    chunks += [] if palette is None else [(b"PLTE", np.uint8(palette).tobytes())]
    chunks += [] if transparent is None else [(b"tRNS", transparent)]
    chunks += [] if exif is None else [(b"eXIf", exif)]
    rows = b"".join(b"\0" + row for row in packed(indices, bits))
    chunks += [(b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def bmp(indices, bits, *, palette=COLOURS, downwards=False, named=0, core=False):
    """A BMP with a palette; `named` is how many of its colours the header names."""
    height, width = indices.shape
    size = 12 if core else 40
    colours = [(*palette[i][::-1], 0) if i < len(palette) else (0,) * 4 for i in range(2**bits)]
    table = b"".join(bytes(colour[: 3 if core else 4]) for colour in colours[: named or None])
    rows = packed(indices if downwards else indices[::-1], bits, multiple=4)
    sides = (width, -height if downwards else height)
    header = (
        struct.pack("<IHHHH", size, *sides, 1, bits)
        if core
        else struct.pack("<IiiHHIIiiII", size, *sides, 1, bits, 0, 0, 2835, 2835, named, 0)
    )
    start = 14 + size + len(table)
    length = start + sum(map(len, rows))
    return struct.pack("<2sIII", b"BM", length, 0, start) + header + table + b"".join(rows)


def photo(orientation):
    """A JPEG of a picture whose corners differ."""
    y, x = np.mgrid[:64, :80]
    pixels = np.stack([3 * y, 2 * x, y + x], axis=-1).astype(np.uint8)
    exif, content = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(content, "jpeg", quality=95, exif=exif)
    return content.getvalue()


def with_segments(content, *segments):
    """A JPEG with some segments before its others."""
    parts = (
        b"\xff" + bytes([kind]) + struct.pack(">H", 2 + len(data)) + data for kind, data in segments
    )
    return content[:2] + b"".join(parts) + content[2:]


def both(tmp_path, content):
    """`(what the reader makes of a file, what the graph makes of it)`."""
    (tmp_path / "file").write_bytes(content)
    decoded = DECODE(tf.constant([content]))[0].numpy()
    return READER.read(tmp_path / "file").astype(int), decoded.astype(int)


def assert_alike(tmp_path, content, most=1):
    read, decoded = both(tmp_path, content)
    assert np.ptp(read) > 50  # It is a picture of something.
    assert np.abs(read - decoded).max() <= most


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", ["gray", "palette"])
def test_png_of_few_bits(tmp_path, bits, kind):
    if kind == "gray":
        assert_alike(tmp_path, png(square(2**bits - 1), bits))
        assert_alike(tmp_path, png(square(2 ** (bits - 1)), bits))
    else:
        assert_alike(tmp_path, png(square(), bits, palette=COLOURS[: 2**bits]))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("alphas", [(0,), (255, 0), (128, 255)])
def test_png_of_few_bits_with_transparent_colours(tmp_path, bits, alphas):
    content = png(square(), bits, palette=COLOURS[: 2**bits], transparent=bytes(alphas))
    assert_alike(tmp_path, content)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("clear", ["ground", "square", "none"])
def test_gray_png_of_few_bits_with_a_transparent_gray(tmp_path, bits, clear):
    highest = 2**bits - 1
    gray = {"ground": 0, "square": highest, "none": highest // 2}[clear]
    read, decoded = both(tmp_path, png(square(highest), bits, transparent=struct.pack(">H", gray)))
    assert np.abs(read - decoded).max() <= 1


def test_palette_png_that_pillow_writes(tmp_path):
    """Pillow writes few colours with few bits."""
    content = io.BytesIO()
    image = Image.fromarray(np.uint8(COLOURS)[square()])
    image.quantize(4).save(content, "png")
    assert content.getvalue()[24] < 8
    assert_alike(tmp_path, content.getvalue())


@pytest.mark.parametrize("bits", [1, 4, 8])
@pytest.mark.parametrize("width", [40, 37])
@pytest.mark.parametrize(
    "options", [{}, {"downwards": True}, {"named": 2}, {"core": True}], ids=str
)
def test_bmp_with_a_palette(tmp_path, bits, width, options):
    assert_alike(tmp_path, bmp(square()[:, :width], bits, **options), most=2)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA"])
def test_bmp_that_pillow_writes(tmp_path, mode):
    content = io.BytesIO()
    image = Image.fromarray(np.uint8(COLOURS)[square()])
    image = image.quantize(256) if mode == "P" else image.convert(mode)
    image.save(content, "bmp")
    assert_alike(tmp_path, content.getvalue())


def bmp_with_masks(*, red=0xFF0000, alpha=0xFF000000):
    """A BMP with a header that says which bits are which colour, as GIMP writes it."""
    pixels = np.uint8(COLOURS)[square()][::-1, :, ::-1]
    alphas = np.where(square()[::-1, :, None] == SQUARE, 255, 100).astype(np.uint8)
    content = np.concatenate([pixels, alphas], axis=-1).tobytes()
    masks = struct.pack("<IIII", red, 0xFF00, 0xFF, alpha)
    header = struct.pack("<IiiHHIIiiII", 108, 40, 32, 1, 32, 3, len(content), 1, 1, 0, 0) + masks
    start = 14 + 108
    return (
        struct.pack("<2sIII", b"BM", start + len(content), 0, start)
        + header.ljust(108, b"\0")
        + content
    )


@pytest.mark.parametrize("alpha", [0, 0xFF000000])
def test_bmp_with_masks(tmp_path, alpha):
    assert_alike(tmp_path, bmp_with_masks(alpha=alpha))


def test_bmp_of_other_kinds_is_refused():
    compressed, cut = bytearray(bmp(square(), 8)), bmp(square(), 8)[:-50]
    compressed[30] = 1
    for content in (bytes(compressed), bmp_with_masks(red=0xFF)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="Save it as PNG"):
            DECODE(tf.constant([content]))
        with pytest.raises(tf.errors.InvalidArgumentError, match="Save it as PNG"):
            READER.decode(tf.constant([content]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"cut short.*Replace it"):
        DECODE(tf.constant([cut]))


PHOTOSHOP = (0xED, b"Photoshop 3.0\0" + bytes(186))


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
@pytest.mark.parametrize(
    "segments",
    [
        [],
        [PHOTOSHOP],
        [PHOTOSHOP, (0xE2, b"ICC_PROFILE\0\1\1" + bytes(60_000)), (0xFE, b"a comment")],
        [(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta/>")],
        # Not EXIF data, but a comment that has its name.
        [(0xFE, b"Exif\0\0II*\0" + bytes([0x12, 1, 3, 0, 1, 0, 0, 0, 5, 0, 0, 0]))],
    ],
    ids=["none", "photoshop", "many", "xmp", "comment"],
)
def test_jpeg_with_segments_before_its_exif_data(tmp_path, orientation, segments):
    assert_alike(tmp_path, with_segments(photo(orientation), *segments), most=3)


def test_jpeg_with_filled_space_between_its_segments(tmp_path):
    content = photo(6)
    assert_alike(tmp_path, content[:2] + b"\xff\xff\xff" + content[2:], most=3)


def test_jpeg_without_exif_data(tmp_path):
    content = io.BytesIO()
    Image.fromarray(np.uint8(COLOURS)[square()]).save(content, "jpeg", quality=95)
    assert_alike(tmp_path, content.getvalue(), most=6)
