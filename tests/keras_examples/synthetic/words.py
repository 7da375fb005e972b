"""Made-up sentences."""

_TEXT = (
    "the a this that film book movie story music actor was is looks seems very quite not really "
    "good bad great dull long short bright dark new old funny sad and but or because while"
)
WORDS = tuple(_TEXT.split())


def sentences(rows, random, length=12):
    """A list of `rows` sentences of about `length` words."""
    return [
        " ".join(random.choice(WORDS, size=random.integers(3, length + 1))) + "."
        for _ in range(rows)
    ]
