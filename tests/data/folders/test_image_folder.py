"""Folders of images: every kind of file, in threads, and files that cannot be decoded."""

import doctest
import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import kerasdist
from kerasdist import KerasdistError
from kerasdist.data.folders import file_source, image_folder, image_reader
from tests.own_data import write_images


def test_the_examples_run():
    for module in (file_source, image_folder, image_reader):
        assert doctest.testmod(module).failed == 0


@pytest.fixture(scope="module")
def smooth():
    """A picture without sharp edges: how it is resized matters little."""
    y, x = np.mgrid[:60, :80]
    return np.stack([2 * y + 40, 2 * x + 30, y + x + 20], axis=-1).astype(np.uint8)


def turned(image, form, orientation, **options):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(image, form, exif=exif, **options)


def jpeg_turned(image, orientation):
    return turned(image, "jpeg", orientation, quality=95)


def saved(image, form, **options):
    content = io.BytesIO()
    image.save(content, form, **options)
    return content.getvalue()


def gray16(smooth):
    return Image.fromarray(smooth[..., 0].astype(np.uint16) * 257)


def half_transparent(smooth):
    alpha = np.full((*smooth.shape[:2], 1), 128, np.uint8)
    return Image.fromarray(np.concatenate([smooth, alpha], axis=-1))


def gif_with_a_hole(**options):
    """A GIF with a transparent half, a black quarter and a gray quarter, and what it shows."""
    indices = np.zeros((60, 80), np.uint8)
    indices[30:, :40], indices[30:, 40:] = 1, 2
    image = Image.fromarray(indices, "P")
    image.putpalette([9, 9, 9, 0, 0, 0, 128, 128, 128])
    shown = np.array([255, 0, 128], np.uint8)[indices][..., None].repeat(3, axis=2)
    return saved(image, "gif", transparency=0, **options), shown, 50  # It has sharp edges.


def gif_with_its_own_colours():
    """The same GIF with the table of colours at its frame, as some programs write it."""
    content, shown, off = gif_with_a_hole()
    flags = content[10]
    table, blocks = (
        content[13 : 13 + 3 * 2 ** (flags % 8 + 1)],
        content[13:][3 * 2 ** (flags % 8 + 1) :],
    )
    frame = blocks.index(b",") + 9
    moved = blocks[:frame] + bytes([blocks[frame] | flags & 0x87]) + table + blocks[frame + 1 :]
    return content[:10] + bytes([0]) + content[11:13] + moved, shown, off


def animated_with_a_hole():
    """Only the first frame counts. Later frames are often transparent where nothing changes."""
    frames = [Image.new("P", (60, 80)) for _ in range(2)]
    for frame in frames:
        frame.putpalette([0, 0, 0, 255, 255, 255])
    frames[1].paste(1, (10, 10, 20, 20))
    content = saved(frames[0], "gif", save_all=True, append_images=frames[1:], loop=0)
    assert b"NETSCAPE" in content
    return content, np.zeros((80, 60, 3), np.uint8), 1


# For each kind of file: its bytes, the picture that it shows, and how far pixels may be off.
KINDS = {
    "rgb.png": lambda s: (saved(Image.fromarray(s), "png"), s, 1),
    "gray.png": lambda s: (saved(Image.fromarray(s[..., 0]), "png"), s[..., [0, 0, 0]], 1),
    "gray16.png": lambda s: (saved(gray16(s), "png"), s[..., [0, 0, 0]], 1),
    "palette.png": lambda s: (saved(Image.fromarray(s).quantize(256), "png"), s, 12),
    "rgba.png": lambda s: (saved(half_transparent(s), "png"), s // 2 + 127, 2),
    "rgb.jpg": lambda s: (saved(Image.fromarray(s), "jpeg", quality=95), s, 4),
    "gray.jpg": lambda s: (saved(Image.fromarray(s[..., 0]), "jpeg"), s[..., [0, 0, 0]], 4),
    "cmyk.jpg": lambda s: (saved(Image.fromarray(s).convert("CMYK"), "jpeg", quality=95), s, 6),
    "turned.jpg": lambda s: (jpeg_turned(Image.fromarray(s), 6), np.rot90(s, -1), 4),
    "mirrored.jpg": lambda s: (jpeg_turned(Image.fromarray(s), 2), s[:, ::-1], 4),
    "upside_down.jpg": lambda s: (jpeg_turned(Image.fromarray(s), 3), s[::-1, ::-1], 4),
    "transposed.jpg": lambda s: (jpeg_turned(Image.fromarray(s), 5), s.transpose(1, 0, 2), 4),
    "rgb.bmp": lambda s: (saved(Image.fromarray(s), "bmp"), s, 1),
    "rgb.gif": lambda s: (saved(Image.fromarray(s), "gif"), s, 40),
    "hole.gif": lambda s: gif_with_a_hole(),
    "hole_and_comment.gif": lambda s: gif_with_a_hole(comment=b"!" * 600),
    "hole_and_own_colours.gif": lambda s: gif_with_its_own_colours(),
    "animated.gif": lambda s: animated_with_a_hole(),
    "turned.png": lambda s: (turned(Image.fromarray(s), "png", 6), np.rot90(s, -1), 1),
    "upside_down.png": lambda s: (
        turned(half_transparent(s), "png", 3),
        (s // 2 + 127)[::-1, ::-1],
        2,
    ),
    "turned.webp": lambda s: (turned(Image.fromarray(s), "webp", 8, lossless=True), np.rot90(s), 1),
    "transposed.webp": lambda s: (
        turned(half_transparent(s), "webp", 5, lossless=True),
        (s // 2 + 127).transpose(1, 0, 2),
        2,
    ),
    "rgb.webp": lambda s: (saved(Image.fromarray(s), "webp", lossless=True), s, 1),
    "rgba.webp": lambda s: (saved(half_transparent(s), "webp", lossless=True), s // 2 + 127, 2),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_image_is_read(tmp_path, smooth, name):
    content, shown, off = KINDS[name](smooth)
    (tmp_path / name).write_bytes(content)
    size = (shown.shape[0] // 2, shown.shape[1] // 2)
    reader = kerasdist.ImageReader(size)
    found = reader.read(tmp_path / name)
    expected = shown.astype(float).reshape(size[0], 2, size[1], 2, 3).mean(axis=(1, 3))
    inside = np.s_[1:-1, 1:-1]
    assert np.abs(found.astype(float) - expected)[inside].max() <= off + 2


def test_every_kind_of_image_is_decoded_in_a_graph(tmp_path, smooth):
    reader = kerasdist.ImageReader((30, 36))
    knows_webp = hasattr(tf.io, "decode_webp")  # From TensorFlow 2.20 on.
    names = [name for name in KINDS if knows_webp or not name.endswith("webp")]
    contents = [KINDS[name](smooth)[0] for name in names]
    found = tf.function(reader.decode)(tf.constant(contents)).numpy().astype(int)
    for name, content, image in zip(names, contents, found, strict=True):
        (tmp_path / name).write_bytes(content)
        difference = np.abs(reader.read(tmp_path / name) - image).max()
        # Both convert the four inks in other ways.
        assert difference <= (30 if name == "cmyk.jpg" else 3), name


def test_a_large_jpeg_is_decoded_smaller(tmp_path):
    y, x = np.mgrid[:800, :1000]
    image = np.stack([y / 4, x / 4, (y + x) / 8], axis=-1).astype(np.uint8)
    Image.fromarray(image).save(tmp_path / "a.jpg", quality=95)
    found = kerasdist.ImageReader((40, 50)).read(tmp_path / "a.jpg")
    expected = image.astype(float).reshape(40, 20, 50, 20, 3).mean(axis=(1, 3))
    assert np.abs(found - expected).max() < 4


def test_the_splits_are_sources_for_fit(tmp_path):
    folder = kerasdist.ImageFolder(write_images(tmp_path / "data", 5, (".png", ".jpg", ".gif")))
    assert (len(folder.train), len(folder.validation), folder.test) == (12, 3, None)
    assert len(folder.all) == 15
    both = folder.train.__getitems__([3, 0, 11])
    assert [int(label) for _, label in both] == [folder.train.labels[i] for i in (3, 0, 11)]
    for (image, _), index in zip(both, (3, 0, 11), strict=True):
        np.testing.assert_array_equal(image, folder.train[index][0])
    assert both[0][0].shape == (24, 28, 3)
    np.testing.assert_array_equal(folder.train[-1][0], folder.train[11][0])
    assert len(list(folder.validation)) == 3
    assert folder.describe() == {
        "found": "images of 3 classes: bar 5, disc 5, ring 5",
        "sizes": "28 x 24; resized to 28 x 24",
        "split": "12 for training, 3 for validation (0.2 of each class, drawn)",
    }


def test_training_files_stay_for_training_when_files_come(tmp_path):
    path = write_images(tmp_path / "data", 10)
    folder = kerasdist.ImageFolder(path)
    assert kerasdist.ImageFolder(path, validation_split=0).split == {}
    for name in ("bar", "disc", "ring"):
        for i in range(10):
            (path / name / f"new{i}.png").write_bytes((path / name / f"{i}.png").read_bytes())
    later = kerasdist.ImageFolder(path, class_names=folder.class_names, split=folder.split)
    assert later.split == folder.split
    assert {*folder.train.names} <= {*later.train.names}
    assert {*folder.validation.names} <= {*later.validation.names}


@pytest.mark.parametrize(("highest", "levels"), [(4095, "16 of 256"), (255, "1 of 256")])
def test_few_gray_levels_of_16_bits_are_said(tmp_path, highest, levels):
    """As of a microscope with 12 bits."""
    random = np.random.default_rng(0)
    for i in range(20):
        gray = random.integers(0, highest + 1, (12, 12)).astype(np.uint16)
        gray[0, 0] = highest
        path = tmp_path / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(gray).save(path)
    careful = kerasdist.ImageFolder(tmp_path).describe()["careful"]
    assert careful.startswith(f"images of 16 bits with values up to {highest:,}: the upper 8 bits")
    assert f"{levels} gray levels" in careful
    assert careful.endswith(f"multiplied by {65535 // highest}")
    for path in tmp_path.glob("*/*.png"):  # All levels are used.
        Image.fromarray(np.full((12, 12), 60_000, np.uint16)).save(path)
    assert "careful" not in kerasdist.ImageFolder(tmp_path).describe()


def test_photos_may_be_swapped_unless_a_class_names_a_side(tmp_path):
    assert not kerasdist.ImageFolder(write_images(tmp_path / "png", 2)).flips
    photos = write_images(tmp_path / "jpg", 2, (".jpg",))
    assert kerasdist.ImageFolder(photos).flips
    (photos / "bar").rename(photos / "Left_turn")
    assert not kerasdist.ImageFolder(photos).flips


@pytest.fixture
def damaged(tmp_path):
    """A file that is empty, and one that only decoding finds."""
    folder = write_images(tmp_path / "data", 5)
    (folder / "bar" / "3.png").write_bytes(b"")
    content = bytearray((folder / "disc" / "1.png").read_bytes())
    half = len(content) // 2
    content[half : half + 60] = bytes(60)
    (folder / "disc" / "1.png").write_bytes(content)
    return folder


def test_bad_files_are_refused(damaged):
    with pytest.raises(KerasdistError, match=r"1 of 15 files in .* bar/3.png is empty.*skip_bad"):
        kerasdist.ImageFolder(damaged)
    (damaged / "bar" / "3.png").unlink()
    folder = kerasdist.ImageFolder(damaged)
    with pytest.raises(KerasdistError, match=r"disc/1.png' cannot be decoded .*`--skip-bad`"):
        list(folder.all)
    with pytest.raises(KerasdistError, match=r"disc/1.png' cannot be decoded .* Repair it"):
        kerasdist.ImageReader((8, 8)).read(damaged / "disc" / "1.png")


def test_bad_files_are_left_out(damaged, capsys):
    whole = write_images(damaged.parent / "whole", 5)
    folder, expected = kerasdist.ImageFolder(damaged, skip_bad=True), kerasdist.ImageFolder(whole)
    assert folder.skipped == {"bar/3.png": "is empty"}
    assert folder.describe()["skipped"] == "1 file: bar/3.png is empty"
    # The other files keep their split.
    assert {*folder.train.names} == {*expected.train.names} - {"bar/3.png"}
    index = folder.all.names.index("disc/1.png")
    image, label = folder.all[index]
    following = folder.all.names[index + 1]
    np.testing.assert_array_equal(image, folder.all[index + 1][0])
    assert (int(label), following.split("/")[0]) == (1, "disc")
    assert "disc/1.png cannot be decoded" in capsys.readouterr().err
    assert [folder.all.name_of(i) for i in (index, 0)] == [following, folder.all.names[0]]
    folder.all[index]
    assert capsys.readouterr().err == ""  # Once is enough.


def test_a_class_without_a_good_file_is_refused(tmp_path):
    folder = write_images(tmp_path / "data", 2)
    for path in (folder / "bar").iterdir():
        path.write_bytes(b"")
    with pytest.raises(KerasdistError, match="None of the training files of bar in"):
        kerasdist.ImageFolder(folder, skip_bad=True)


def test_a_class_whose_files_cannot_be_decoded_is_refused(damaged):
    folder = kerasdist.ImageFolder(damaged, skip_bad=True)
    bad = (damaged / "disc" / "1.png").read_bytes()
    for path in (damaged / "disc").iterdir():
        path.write_bytes(bad)
    index = folder.all.names.index("disc/1.png")
    with pytest.raises(KerasdistError, match=r"No file of the class of 'disc/1\.png'"):
        folder.all[index]


@pytest.mark.parametrize("size", [0, (8,), (8, -1), (8, True), "8"])
def test_a_wrong_size_is_refused(tmp_path, size):
    with pytest.raises(KerasdistError, match=r"Received `image_size=.*Expected a side of at least"):
        kerasdist.ImageFolder(tmp_path, image_size=size)


def test_a_plain_keras_model_learns_from_a_folder(tmp_path):
    import keras

    folder = kerasdist.ImageFolder(write_images(tmp_path / "data", 8), image_size=12)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = kerasdist.fit(
        model, folder.train, validation_data=folder.validation, batch_size=4, progress=False
    )
    assert np.isfinite(history.history["val_loss"][0])
