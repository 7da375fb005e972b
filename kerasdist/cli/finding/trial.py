"""The process of one trial of `kerasdist fit --find-batch-size`.

It reads its request from the standard input, and answers with lines of JSON: what it found about
devices and data, then what happened. It may be killed, or abort, without harm to anything else.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

# Before TensorFlow is imported: nobody reads its messages.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from kerasdist.cli.commands.fit import on_trial
from kerasdist.cli.fit_arguments import parse_fit
from kerasdist.devices.placement import place
from kerasdist.errors import KerasdistError
from kerasdist.finders import batch_trial

Say = Callable[[dict[str, Any]], None]


def serve(request: dict[str, Any], say: Say) -> None:
    """Runs one trial. The arguments of the request have the batch size already."""
    try:
        training, title, names = on_trial(parse_fit(request["argv"]))
        placement = place(names)
        size = request["batch_size"]
        say(
            {
                "title": title,
                "devices": placement.titles,
                "is_gpu": placement.is_gpu,
                "limit": batch_trial.memory_limit(placement),
                "least": training.step.shards or placement.num_replicas,
                "examples": batch_trial.num_examples(training, size),
            }
        )
        # Not by replacing the batch size: a recipe may use it when it builds its data.
        given = training.data.batch_size
        trial = batch_trial.attempt(training, placement, given, request["seconds"])
    except KerasdistError as error:
        say({"error": str(error)})
        return
    say({"trial": {**vars(trial), "batch_size": size}})


def main() -> None:
    """Answers on the standard output, and sends everything else to the standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(content: dict[str, Any]) -> None:
        print(json.dumps(content), file=answers, flush=True)

    serve(json.loads(sys.stdin.readline()), say)


if __name__ == "__main__":
    main()
