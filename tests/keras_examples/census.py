"""Which example scripts of Keras need an edit to be trained by kerasdist, and why.

    git clone --depth 1 <repository of Keras's examples> keras-io
    python -m tests.keras_examples.census keras-io

Counts every script under the folder that calls `.fit(`. Scripts are read, not run. What kerasdist
accepts comes from kerasdist itself (see `support.py`).
"""

import argparse
import collections
import json
import os
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def scripts_with_fit(folder):
    """The facts of every script that calls `.fit(`, by its path in the folder."""
    from tests.keras_examples import script_facts

    found = {}
    for path in sorted(Path(folder).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if ".fit(" not in source:
            continue
        facts = script_facts.read(source)
        if any(call.method == "fit" for call in facts.calls):
            found[str(path.relative_to(folder))] = facts
    return found


def judge(facts, support):
    """The verdict on one script, and its reasons."""
    from tests.keras_examples.support import other_reason

    other = other_reason(facts)
    if other is not None:
        return other[0], [other[1]]
    by_keras = sorted(set(support.refused_by_keras(facts)))
    if by_keras:
        return "not for Keras 3", by_keras
    reasons = support.reasons(facts)
    return ("edit", reasons) if reasons else ("no edit", [])


def take(folder):
    """The census as a dict that JSON can hold."""
    from tests.keras_examples import support

    scripts = scripts_with_fit(folder)
    used = {feature for facts in scripts.values() for feature in facts.features}
    used = {feature for feature in used if not feature.startswith(("jax:", "torch:", "Keras 2:"))}
    asked = support.ask(used)
    rows = []
    for name, facts in scripts.items():
        verdict, reasons = judge(facts, asked)
        rows.append(
            {
                "script": name,
                "verdict": verdict,
                "reasons": reasons,
                "features": sorted(facts.features),
                "backend": facts.backend,
            }
        )
    totals = collections.Counter(row["verdict"] for row in rows)
    runnable = totals["no edit"] + totals["edit"]
    return {
        "scripts": rows,
        "totals": dict(totals),
        "all": len(rows),
        "share_of_runnable": totals["no edit"] / runnable if runnable else 0.0,
        "share_of_all": totals["no edit"] / len(rows) if rows else 0.0,
        "features": {
            feature: {
                "scripts": sum(feature in row["features"] for row in rows),
                "failure": failure,
            }
            for feature, failure in sorted(asked.failures.items())
        },
    }


def print_census(census, with_scripts):
    if with_scripts:
        for row in census["scripts"]:
            print(f"{row['script']:82} {row['verdict']:18} {'; '.join(row['reasons'])}")
        print()
    print(f"{'feature':45} scripts  kerasdist, asked on two devices")
    for feature, found in census["features"].items():
        print(f"{feature:45} {found['scripts']:7}  {found['failure'] or 'works'}")
    print(f"\nscripts that call `.fit(`: {census['all']}")
    for verdict, count in sorted(census["totals"].items()):
        print(f"  {verdict:20} {count}")
    print(f"no edit, of those for Keras 3 and TensorFlow: {census['share_of_runnable']:.1%}")
    print(f"no edit, of all: {census['share_of_all']:.1%}")


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.keras_examples.census")
    parser.add_argument("folder", type=Path, help="a copy of the repository of Keras's examples")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--totals", action="store_true", help="leave out the row of each script")
    arguments = parser.parse_args(argv)
    if not arguments.folder.is_dir():
        raise SystemExit(
            f"there is no folder {str(arguments.folder)!r}: give a copy of Keras's examples"
        )

    import kerasdist

    kerasdist.logical_cpus(2)
    census = take(arguments.folder)
    if arguments.json:
        print(json.dumps(census, indent=1))
    else:
        print_census(census, not arguments.totals)


if __name__ == "__main__":
    main()
