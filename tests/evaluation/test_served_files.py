"""What is said of the outputs of an exported file."""

import pytest

from kerasdist.evaluation.classes import Classes
from kerasdist.evaluation.served_files import logits_in_words


@pytest.mark.parametrize(
    ("classes", "signature", "expected"),
    [
        (None, None, None),
        (Classes(("cat", "dog")), None, None),
        (
            Classes(("cat", "dog", "eel"), from_logits=True),
            "serve_files",
            "logits of cat, dog, eel (in this order), not probabilities: apply a softmax, "
            "or use serve_files, which gives probabilities",
        ),
        (
            Classes(("no", "yes"), is_binary=True, from_logits=True),
            None,
            "the logit of yes (not of no), not a probability: apply a sigmoid",
        ),
    ],
)
def test_only_logits_are_told(classes, signature, expected):
    assert logits_in_words(classes, signature) == expected


def test_of_many_classes_some_are_named():
    classes = Classes(tuple(f"c{i}" for i in range(1020)), from_logits=True)
    assert "c18, c19 and 1,000 more (in this order)" in logits_in_words(classes, None)
