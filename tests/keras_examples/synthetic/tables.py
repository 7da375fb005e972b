"""Made-up tables, by the name of the file that a script downloads."""

import gzip

import numpy as np

ROWS = 400


def _random():
    return np.random.default_rng(0)


def text_table(columns, header=True, separator=","):
    """`columns` is a dict of lists; the result is the bytes of a text table."""
    lines = [separator.join(columns)] if header else []
    lines += [separator.join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    return ("\n".join(lines) + "\n").encode()


def heart():
    random = _random()
    numbers = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang"]
    columns = {name: random.integers(0, 4, ROWS) for name in [*numbers, "oldpeak", "slope", "ca"]}
    columns["age"] = random.integers(29, 78, ROWS)
    columns["thal"] = random.choice(["fixed", "normal", "reversible", "1", "2"], ROWS)
    columns["target"] = random.integers(0, 2, ROWS)
    return text_table(columns)


ADULT = {
    "workclass": ["Private", "State-gov", "Self-emp-inc"],
    "fnlwgt": None,
    "education": ["Bachelors", "HS-grad", "Masters"],
    "education_num": None,
    "marital_status": ["Divorced", "Never-married", "Widowed"],
    "occupation": ["Sales", "Tech-support", "Other-service"],
    "relationship": ["Husband", "Wife", "Own-child"],
    "race": ["White", "Black", "Other"],
    "gender": ["Male", "Female"],
    "capital_gain": None,
    "capital_loss": None,
    "hours_per_week": None,
    "native_country": ["United-States", "Canada", "Japan"],
}


def _adult(ending):
    random = _random()
    columns = {"age": random.integers(18, 80, ROWS)}
    for name, values in ADULT.items():
        columns[name] = (
            random.integers(1, 100, ROWS)
            if values is None
            else [f" {value}" for value in random.choice(values, ROWS)]
        )
    columns["income_bracket"] = [f" {v}{ending}" for v in random.choice(["<=50K", ">50K"], ROWS)]
    return text_table(columns, header=False)


def forest_cover():
    random = _random()
    columns = {f"number_{i}": random.integers(0, 3000, ROWS) for i in range(10)}
    areas, soils = random.integers(0, 4, ROWS), random.integers(0, 40, ROWS)
    columns |= {f"area_{i}": (areas == i).astype(int) for i in range(4)}
    columns |= {f"soil_{i}": (soils == i).astype(int) for i in range(40)}
    columns["cover"] = random.integers(1, 8, ROWS)
    return gzip.compress(text_table(columns, header=False))


def ford():
    random = _random()
    columns = {"label": random.choice([-1, 1], 120)}
    columns |= {f"t{i}": random.normal(size=120).round(4) for i in range(500)}
    return text_table(columns, header=False, separator="\t")


def daily_noise(jump=0.0):
    """Three days of noise. `jump` is added for longer than the one day that scripts look at."""
    random = _random()
    rows = 288 * 3
    times = [
        f"2014-04-{1 + i // 288:02d} {i % 288 // 12:02d}:{i % 12 * 5:02d}:00" for i in range(rows)
    ]
    values = random.normal(40, 9, rows)
    values[300:700] += jump
    return text_table({"timestamp": times, "value": values.round(4)})


def weather():
    random = _random()
    rows = 6000  # Enough for windows of five days in each part.
    names = "p (mbar),T (degC),Tpot (K),Tdew (degC),rh (%),VPmax (mbar),VPact (mbar),VPdef (mbar)"
    names += ",sh (g/kg),H2OC (mmol/mol),rho (g/m**3),wv (m/s),max. wv (m/s),wd (deg)"
    columns = {
        "Date Time": [
            f"{1 + i // 1440:02d}.01.2009 {i // 60 % 24:02d}:{i % 60:02d}:00" for i in range(rows)
        ]
    }
    columns |= {name: random.normal(10, 2, rows).round(3) for name in names.split(",")}
    return text_table(columns)


def bank_marketing():
    random = _random()
    choices = {
        "job": ["admin.", "blue-collar"],
        "marital": ["single", "married"],
        "education": ["basic.9y", "university.degree"],
        "default": ["no", "unknown"],
        "housing": ["no", "yes"],
        "loan": ["no", "yes"],
        "contact": ["cellular", "telephone"],
        "month": ["may", "jun"],
        "day_of_week": ["mon", "fri"],
    }
    columns = {"age": random.integers(18, 90, ROWS)}
    columns |= {name: random.choice(values, ROWS) for name, values in choices.items()}
    for name in ("duration", "campaign", "pdays", "previous"):
        columns[name] = random.integers(0, 9, ROWS)
    columns["pdays"] = random.choice([3, 6, 999], ROWS)  # 999: never called before.
    columns["poutcome"] = random.choice(["failure", "nonexistent"], ROWS)
    for name in ("emp.var.rate", "cons.price.idx", "cons.conf.idx", "euribor3m", "nr.employed"):
        columns[name] = random.normal(size=ROWS).round(3)
    columns["y"] = random.choice(["no", "yes"], ROWS)
    return text_table(columns, separator=";")


FILES = {
    "heart.csv": heart,
    "adult.data": lambda: _adult(""),
    "adult.test": lambda: _adult("."),
    "covtype.data.gz": forest_cover,
    "FordA_TRAIN.tsv": ford,
    "FordA_TEST.tsv": ford,
    "art_daily_small_noise.csv": daily_noise,
    "art_daily_jumpsup.csv": lambda: daily_noise(jump=400.0),
}
