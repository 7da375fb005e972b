"""An audit on fake GPUs: operations without a GPU kernel, and copies to and from the host.

`python -m tests.gpu.audit` trains each model of the zoo for two steps on two fake GPUs with each
policy. It exits with 1 if a model fails, or if it finds something that kerasdist itself does.
"""

import argparse
import gc
import json
import os
import sys
import time
import traceback
import warnings
from collections import defaultdict

POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")
BATCH_SIZE, NUM_GPUS = 8, 2
# A smaller copy is a number, a seed or a shape, which has to be on the host or the device.
FEW_BYTES = 64
_ON_PURPOSE = (
    "Cut._sliced",
    "_joined",
    "_sum",
    "_sum_of_pack",
    "_on_each",
    "Engine._flags",
)

_WRITERS = ("write_by_choice", "write_in_branch")


def audit(case, policy):
    """Trains a case for two steps. Returns what was found, and how many authors are unknown."""
    import keras

    import kerasdist
    from kerasdist.devices import private_tensorflow
    from tests.gpu.authors import Authors
    from tests.gpu.graphs import Step, of_steps

    keras.utils.set_random_seed(3)
    private_tensorflow.collect_graphs()
    try:
        with Authors().collecting() as authors:
            kerasdist.fit(
                case.build,
                case.data,
                batch_size=BATCH_SIZE,
                steps=2,
                devices=NUM_GPUS,
                precision=policy,
                seed=0,
                progress=False,
                **case.options,
            )
        steps = of_steps()
    finally:
        private_tensorflow.stop_collecting_graphs()
    if len(steps) != 1:
        raise RuntimeError(f"expected the graphs of one training loop, found {len(steps)}")
    step = Step(steps[0], authors, BATCH_SIZE // NUM_GPUS)
    return step.findings(), step.num_unknown()


def report(found):
    """Groups the findings of all models: those of one kind, operation, dtypes and author."""
    groups = defaultdict(list)
    for (model, policy), findings in found.items():
        for finding in findings:
            key = (finding.kind, finding.op, finding.dtypes, finding.author)
            groups[key].append((model, policy, finding))
    rows = []
    for (kind, op, dtypes, author), members in groups.items():
        largest = max((f for _, _, f in members), key=lambda f: f.num_bytes)
        rows.append(
            {
                "owner": author.owner,
                "kind": kind,
                "op": op,
                "dtypes": list(dtypes),
                "from": str(author),
                "place": author.place,
                "models": sorted({model for model, _, _ in members}),
                "policies": sorted({policy for _, policy, _ in members}),
                "largest_bytes": largest.num_bytes,
                "shape": largest.shape,
                "example": largest.name,
            }
        )
    return sorted(rows, key=lambda row: (row["owner"], row["kind"], row["op"], row["from"]))


def is_counted(finding):
    """Whether it is worth a line: an operation that moved, or more than a few bytes."""
    from tests.gpu.graphs import ELSEWHERE, NO_KERNEL

    if finding.author.if_not_finite:
        return False
    if finding.kind in (NO_KERNEL, ELSEWHERE):
        return True
    # To exchange sums, to send the batch and to tell what is not finite is what these are for.
    if finding.is_ours and finding.author.place.endswith(_ON_PURPOSE):
        return False
    # The flags of a step: they are empty if it is finite.
    is_flags = finding.dtypes == ("bool",) and finding.shape == (None, None)
    if finding.is_ours and is_flags and finding.author.place.endswith(_WRITERS):
        return False
    # A size that is not known while tracing grows with the batch.
    is_known = finding.shape is not None and None not in finding.shape
    return finding.num_bytes > FEW_BYTES or (not is_known and finding.dtypes != ("",))


def run(names, policies, found, small, errors):
    """Audits models. Yields after each; fills in counted findings, small copies and errors."""
    from tests.gpu.zoo_of_others import ALL, SLOW

    for name in names or [n for n in ALL if n not in SLOW]:
        for policy in policies:
            began = time.perf_counter()
            try:
                findings, num_unknown = audit(ALL[name](), policy)
            except Exception as error:  # noqa: BLE001 the others still run
                errors[f"{name} {policy}"] = "".join(traceback.format_exception(error)[-3:])
                print(f"{name} {policy}: {type(error).__name__}: {str(error)[:300]}")
                yield
                continue
            found[name, policy] = [f for f in findings if is_counted(f)]
            small[name, policy] = [
                f for f in findings if not is_counted(f) and not f.author.if_not_finite
            ]
            num_ours = sum(f.is_ours for f in found[name, policy])
            print(
                f"{name} {policy}: {len(found[name, policy])} findings, {num_ours} of kerasdist, "
                f"{len(small[name, policy])} small copies, {num_unknown} unknown operations on the "
                f"host, {time.perf_counter() - began:.1f} s",
                flush=True,
            )
            gc.collect()
            yield


def write(path, found, small, errors):
    content = {
        "runs": [list(key) for key in found],
        "errors": errors,
        "findings": report(found),
        "small_copies": report(small),
    }
    with open(path, "w") as file:
        json.dump(content, file, indent=1)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.audit", description=__doc__)
    parser.add_argument("--models", nargs="+", help="names in the zoo; default: all quick ones")
    parser.add_argument("--policies", nargs="+", default=POLICIES, choices=POLICIES)
    parser.add_argument("--json", help="write the findings into this file")
    options = parser.parse_args(arguments)
    os.environ["KERASDIST_FAKE_GPUS"] = str(NUM_GPUS)
    warnings.simplefilter("ignore")
    from tests.gpu import fake_gpu

    fake_gpu.load()
    found, small, errors = {}, {}, {}
    for _ in run(options.models, options.policies, found, small, errors):
        if options.json:  # After each model: a run of hours may be stopped.
            write(options.json, found, small, errors)
    rows = report(found)
    for row in rows:
        print(
            f"{row['owner']:<9} {row['kind']}: {row['op']} {','.join(row['dtypes'])} in "
            f"{row['from']} ({row['largest_bytes']} bytes; {', '.join(row['models'][:3])})"
        )
    ours = [row for row in rows if row["owner"] not in ("Keras", "model")]
    print(
        f"{len(found)} runs, {len(errors)} errors, {len(rows)} findings, {len(ours)} of kerasdist"
    )
    return 1 if ours or errors else 0


if __name__ == "__main__":
    sys.exit(main())
