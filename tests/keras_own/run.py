"""Runs Keras's own tests of `fit` and callbacks with plain Keras and with kerasdist.

    git clone --branch v3.15.1 --depth 1 <Keras's repository> keras
    python -m tests.keras_own.run keras --devices 2

The tests come from a copy of Keras's repository that the user gives; none of them is stored here.
They run against the installed Keras. Use the same version.
"""

import argparse
import json
from pathlib import Path

from tests.keras_own import sessions, table


def parse(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.keras_own.run", description=__doc__)
    parser.add_argument("checkout", help="folder of a copy of Keras's repository")
    parser.add_argument("--devices", type=int, default=2, help="devices for kerasdist (2)")
    parser.add_argument("-k", default="", dest="keyword", help="only tests that match, as pytest")
    parser.add_argument("--json", default="", metavar="FILE", help="also write the numbers here")
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FOLDER",
        help="keep how each test ended here; the same command then runs only what is missing",
    )
    parser.add_argument("--only-keras", action="store_true", help="leave kerasdist's session out")
    parser.add_argument("--show-output", action="store_true", help="also print pytest's output")
    return parser.parse_args(argv)


def main(argv=None):
    arguments = parse(argv)
    kept = arguments.results
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
    plain = sessions.run_session(
        arguments.checkout, None, arguments.keyword, kept and kept / "keras.jsonl"
    )
    if arguments.show_output:
        print(plain.output)
    if arguments.only_keras:
        outcomes = [ending.outcome for ending in plain.endings.values()]
        print({outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))})
        return
    enabled = sessions.run_session(
        arguments.checkout,
        arguments.devices,
        arguments.keyword,
        kept and kept / f"kerasdist-{arguments.devices}.jsonl",
    )
    if arguments.show_output:
        print(enabled.output)
    comparison = table.compare(plain, enabled)
    table.print_comparison(comparison)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(comparison, file, indent=1)


if __name__ == "__main__":
    main()
