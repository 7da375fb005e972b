"""`ImageReader`: image files as arrays of one size, and the same in a TensorFlow graph."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kerasdist.data.folders.file_source import BadFileError
from kerasdist.errors import KerasdistError, first_line

if TYPE_CHECKING:
    import tensorflow as tf
    from PIL import Image

# A JPEG is decoded at a half, a quarter or an eighth of its size, if that is at least so many
# times the wanted size.
_SPARE = 2


@dataclass(frozen=True)
class ImageReader:
    """Reads image files as RGB images of one size: uint8 `[height, width, 3]`.

    Takes PNG, JPEG, BMP, GIF (the first frame) and WebP: gray, palette, CMYK, with 16 bits, and
    turned by the camera (EXIF). Transparent parts become white. Images are resized to the size,
    whatever their shape.

    Args:
        image_size: `(height, width)`.

    Example:
        >>> import numpy as np, tempfile, tensorflow as tf, kerasdist
        >>> path = tempfile.mkdtemp() + "/gray.png"
        >>> tf.io.write_file(path, tf.io.encode_png(np.full((40, 60, 1), 7, "uint8")))
        >>> reader = kerasdist.ImageReader((8, 12))
        >>> reader.read(path).shape, int(reader.read(path).max())
        ((8, 12, 3), 7)
        >>> reader.decode(tf.stack([tf.io.read_file(path)])).shape  # In a graph, too.
        TensorShape([1, 8, 12, 3])
    """

    image_size: tuple[int, int]

    def read(self, path: str | os.PathLike[str]) -> np.ndarray:
        """Reads a file.

        Args:
            path: The file.

        Returns:
            uint8 `[height, width, 3]`.
        """
        try:
            return self.decoded(Path(path))
        except BadFileError as error:
            raise KerasdistError(
                f"The file {str(path)!r} {error}. Expected a complete PNG, JPEG, BMP, GIF or WebP "
                "file. Repair it, or leave it out."
            ) from error

    def decoded(self, path: Path) -> np.ndarray:
        """`read`, with the error that says only what is wrong."""
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(path) as image:
                return self._resized(image)
        except UnidentifiedImageError as error:
            raise BadFileError("is not an image, or a damaged one") from error
        except Image.DecompressionBombError as error:
            raise BadFileError("has too many pixels") from error
        except (OSError, SyntaxError, ValueError, EOFError, struct.error) as error:
            raise BadFileError(f"cannot be decoded ({first_line(error)})") from error

    def _resized(self, image: Image.Image) -> np.ndarray:
        from PIL import Image

        height, width = self.image_size
        longer = _SPARE * max(height, width)
        image.draft(None, (longer, longer))  # Changes only JPEGs.
        image.load()  # Finds what is damaged.
        turned = as_rgb(_upright(image))
        if turned.size != (width, height):
            turned = turned.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=3.0)
        return np.array(turned)

    def decode(self, contents: Any) -> tf.Tensor:
        """Decodes the bytes of files in a TensorFlow graph, for a model that is served.

        WebP needs TensorFlow 2.20 or newer. Pixels may differ by one or two from those of `read`,
        because TensorFlow resizes and decodes JPEGs in another way.

        Args:
            contents: A string tensor `[n]`.

        Returns:
            A uint8 tensor `[n, height, width, 3]`.
        """
        from kerasdist.data.folders.image_graph import decode

        return decode(contents, self.image_size)


def _upright(image: Image.Image) -> Image.Image:
    """The image as the camera was held. Without a readable orientation, it stays as it is."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # noqa: BLE001 - damaged EXIF data raises anything; the pixels are complete
        return image


def as_rgb(image: Image.Image) -> Image.Image:
    """An image of any mode as RGB, on white where it is transparent."""
    from PIL import Image

    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):  # 16 bits, which older versions of Pillow read as 32.
        gray = np.clip(np.asarray(image).astype(np.int64) >> 8, 0, 255).astype(np.uint8)
        return Image.fromarray(gray).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        whole = image.convert("RGBA")
        white = Image.new("RGBA", whole.size, "white")
        return Image.alpha_composite(white, whole).convert("RGB")
    return image.convert("RGB")
