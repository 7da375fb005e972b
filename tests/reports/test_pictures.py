"""PNG pictures of images and of frames."""

import numpy as np

from kerasdist.reports import pictures
from tests.reports.pages import decoded


def test_pictures_hold_what_was_drawn():
    random = np.random.default_rng(0)
    grey = random.integers(0, 256, (5, 7), dtype=np.uint8)
    colour = random.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert (decoded(pictures.png(grey))[..., 0] == grey).all()
    assert (decoded(pictures.of_image(colour)) == colour).all()
    assert (decoded(pictures.of_image(grey[..., None]))[..., 0] == grey).all()


def test_other_numbers_are_scaled():
    # From 0 to 1 as they are; everything else from the lowest to the highest.
    assert decoded(pictures.of_image(np.array([[0.2, 1.0]])))[0, :, 0].tolist() == [51, 255]
    assert decoded(pictures.of_image(np.array([[-3.0, 3.0]])))[0, :, 0].tolist() == [0, 255]
    assert decoded(pictures.of_image(np.full((1, 2), 7.0)))[0, :, 0].tolist() == [0, 0]
    assert decoded(pictures.of_image(np.array([[np.nan, 4.0]])))[0, :, 0].tolist() == [0, 255]


def test_frames_are_drawn_with_time_to_the_right_and_the_first_band_at_the_bottom():
    frames = np.zeros((3, 4), np.float32)  # three moments, four bands
    frames[2, 0] = 5.0
    picture = decoded(pictures.of_frames(frames)).astype(int).sum(axis=-1)
    assert picture.shape == (4, 3)
    assert np.unravel_index(picture.argmax(), picture.shape) == (3, 2)


def test_large_pictures_are_thinned():
    assert decoded(pictures.of_image(np.zeros((300, 500, 3), np.uint8))).shape == (75, 84, 3)
