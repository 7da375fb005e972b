"""Two sessions side by side: what Keras passes, what kerasdist passes, and why the rest fails."""

import re
from collections import defaultdict


def cause_of(error):
    """The error without its numbers, names in quotes and values: what two failures share."""
    error = re.sub(r"(['\"`])(?:(?!\1).)*\1", r"\1…\1", error)
    error = re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?(e[+-]?\d+)?", "N", error)
    return error[:110]


def compare(keras_session, kerasdist_session):
    """Counts and failures of two sessions as a dict that JSON can hold."""
    by_keras = keras_session.passed()
    by_both = by_keras & kerasdist_session.passed()
    endings = kerasdist_session.endings
    groups = defaultdict(list)
    for name in sorted(by_keras - by_both):
        ending = endings.get(name)
        error = ending.error if ending and ending.error else "it did not run"
        place = ending.place if ending else ""
        groups[cause_of(error)].append({"test": name, "error": error, "place": place})
    causes = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return {
        "passed_by_keras": len(by_keras),
        "passed_with_kerasdist": len(by_both),
        "reached_kerasdist": sum(
            1 for name in by_keras if name in endings and endings[name].engines
        ),
        "share": len(by_both) / len(by_keras) if by_keras else 0.0,
        "failed_or_skipped_by_keras": len(keras_session.endings) - len(by_keras),
        "causes": [{"cause": cause, "failures": failures} for cause, failures in causes],
        "files": _by_file(by_keras, by_both),
    }


def _by_file(by_keras, by_both):
    files = {}
    for name in sorted(by_keras):
        row = files.setdefault(name.split("::")[0], [0, 0])
        row[0] += 1
        row[1] += name in by_both
    return files


def print_comparison(comparison):
    """The table that `python -m tests.keras_own.run` prints."""
    print(f"{'file':38} {'Keras':>6} {'kerasdist':>10}")
    for name, (keras_passes, both_pass) in comparison["files"].items():
        print(f"{name:38} {keras_passes:6} {both_pass:10}")
    print(f"{'all':38} {comparison['passed_by_keras']:6} {comparison['passed_with_kerasdist']:10}")
    print(f"\nshare of what Keras passes: {comparison['share']:.1%}")
    print(f"tests that made an engine of kerasdist: {comparison['reached_kerasdist']}")
    print(f"not counted, because Keras fails or skips: {comparison['failed_or_skipped_by_keras']}")
    for group in comparison["causes"]:
        print(f"\n{len(group['failures'])} × {group['cause']}")
        for failure in group["failures"]:
            print(f"  {failure['test']}\n    {failure['error'][:300]}\n    at {failure['place']}")
