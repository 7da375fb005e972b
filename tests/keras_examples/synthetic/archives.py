"""Made-up texts and archives, by the name of the file that a script downloads."""

import io
import tarfile
import zipfile

import numpy as np

from tests.keras_examples.synthetic import tables
from tests.keras_examples.synthetic.words import sentences


def _zip(files):
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return written.getvalue()


def _tar(files):
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return written.getvalue()


def _random():
    return np.random.default_rng(0)


def long_text():
    return " ".join(sentences(400, _random())).encode()


def french_pairs():
    left, right = sentences(300, _random()), sentences(300, np.random.default_rng(1))
    lines = [f"{a}\t{b}\tby nobody" for a, b in zip(left, right, strict=True)]
    return _zip({"fra.txt": "\n".join(lines) + "\n", "_about.txt": "made up"})


def spanish_pairs():
    left, right = sentences(400, _random()), sentences(400, np.random.default_rng(1))
    lines = [f"{a}\t{b}" for a, b in zip(left, right, strict=True)]
    return _zip({"spa-eng/spa.txt": "\n".join(lines) + "\n"})


def movielens_small():
    random = _random()
    rows = 600
    ratings = {
        "userId": random.integers(1, 40, rows),
        "movieId": random.integers(1, 90, rows),
        "rating": random.integers(1, 6, rows),
        "timestamp": random.integers(1, 10**6, rows),
    }
    movies = {
        "movieId": list(range(1, 120)),
        "title": [f"Film {i}" for i in range(1, 120)],
        "genres": ["Drama|Comedy" if i % 2 else "Action" for i in range(1, 120)],
    }
    return _zip(
        {
            "ml-latest-small/ratings.csv": tables.text_table(ratings),
            "ml-latest-small/movies.csv": tables.text_table(movies),
        }
    )


def movielens_million():
    random = _random()
    users = [
        f"{i}::{'MF'[i % 2]}::{[1, 18, 25][i % 3]}::{i % 20}::{10000 + i}" for i in range(1, 61)
    ]
    films = [f"{i}::Film {i} (1995)::{'Drama|Comedy' if i % 2 else 'Action'}" for i in range(1, 91)]
    ratings = [
        f"{random.integers(1, 61)}::{random.integers(1, 91)}::{random.integers(1, 6)}::{i}"
        for i in range(1500)
    ]
    return _zip(
        {
            "ml-1m/users.dat": "\n".join(users) + "\n",
            "ml-1m/movies.dat": "\n".join(films) + "\n",
            "ml-1m/ratings.dat": "\n".join(ratings) + "\n",
        }
    )


def cora():
    random = _random()
    subjects = ["Case_Based", "Neural_Networks", "Theory", "Rule_Learning"]
    subjects += ["Genetic_Algorithms", "Probabilistic_Methods", "Reinforcement_Learning"]
    papers = [
        "\t".join([str(1000 + i), *map(str, random.integers(0, 2, 1433)), subjects[i % 7]])
        for i in range(300)
    ]
    links = [
        f"{1000 + random.integers(0, 300)}\t{1000 + random.integers(0, 300)}" for _ in range(900)
    ]
    return _tar(
        {
            "cora/cora.content": ("\n".join(papers) + "\n").encode(),
            "cora/cora.cites": ("\n".join(links) + "\n").encode(),
        }
    )


def weather_zip():
    return _zip({"jena_climate_2009_2016.csv": tables.weather()})


def bank_zip():
    inner = _zip({"bank-additional/bank-additional.csv": tables.bank_marketing()})
    return _zip({"bank-additional.zip": inner})


FILES = {
    "nietzsche.txt": long_text,
    "fra-eng.zip": french_pairs,
    "spa-eng.zip": spanish_pairs,
    "ml-latest-small.zip": movielens_small,
    "ml-1m.zip": movielens_million,
    "cora.tgz": cora,
    "jena_climate_2009_2016.csv.zip": weather_zip,
    "bank+marketing.zip": bank_zip,
}
