"""Warnings about a run's folder that cannot be written."""

import os

from kerasdist.runs.checkpoints.write_failures import WriteFailures


def test_another_trouble_is_told_and_the_same_one_only_after_success(capsys):
    failures = WriteFailures(print)
    for number, name in ((28, "a"), (28, "b"), (30, "a"), (28, "c")):
        failures.failed("x", OSError(number, os.strerror(number), name))
    assert capsys.readouterr().out.count("could not write") == 2
    failures.failed("y", OSError(28, "other words, with the time of day"))
    failures.failed("x", RuntimeError("Unable to flush (time = 1)"))
    assert capsys.readouterr().out.count("Unable to flush. The training") == 1
    failures.failed("x", RuntimeError("Unable to flush (time = 2)"))
    failures.worked("x")
    assert capsys.readouterr().out == ""
    failures.worked("y")
    failures.worked("y")
    assert capsys.readouterr().out.count("works again") == 1
    failures.failed("x", OSError(28, os.strerror(28)))
    assert capsys.readouterr().out.count("could not write") == 1
