"""The command line: parse, call, exit codes. TensorFlow is imported where a command needs it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from kerasdist import __version__
from kerasdist.cli.quiet import load_command
from kerasdist.errors import DivergedError, KerasdistError, RunFailedError, closest

USAGE, FAILED, DIVERGED, INTERRUPTED = 2, 1, 3, 130

HELP = """\
usage: kerasdist COMMAND ...

Train Keras models on several devices: the same maths on any number of them.

commands:
  fit RECIPE         train; also --model FILE.py:Class --data FILE.py:Class
  launch … fit …     train on several workers (--workers 2, or --hosts a:2222,b:2222 --index 0)
  evaluate RUN       loss and metrics of a trained run, by class and by group
  predict RUN FILE…  what the model says about files, or a folder of them
  export RUN         write the model for other programs (--format keras, saved_model, litert, onnx)
  runs [DIR]         list runs; runs RUN RUN compares them, --html FILE as a page
  new NAME           a recipe to start from (--template image, audio)
  verify RECIPE      show that N devices compute what one does (--counts 1,2,4)
  bench RECIPE       how fast N devices train, and what holds them up (--against keras)
  devices            what is here, and what "auto" takes
  doctor             what is installed, and whether a training works here
  completion SHELL   a script with which bash, zsh or fish complete all of this

  kerasdist COMMAND --help shows the options, kerasdist fit RECIPE --help a recipe's own.
  kerasdist --version shows the version.

examples:
  kerasdist fit cifar10
  kerasdist fit recipes/cifar10 --devices 2 --batch-size 256
  kerasdist predict runs/cifar10/0001 photo.png
  kerasdist export runs/cifar10/0001 --format onnx
"""


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if argv[0] == "--version":
        print(f"kerasdist {__version__}")
        return 0
    name, rest = argv[0], argv[1:]
    debug = "--debug" in rest
    if name not in ("fit", "launch"):
        os.environ.pop("TF_CONFIG", None)  # The others need no workers, which would be waited for.
    try:
        return _command(name)(rest)
    except DivergedError as error:
        return _fail(error, DIVERGED, debug)
    except KerasdistError as error:
        has_started = isinstance(error, RunFailedError) or getattr(error, "during_run", False)
        return _fail(error, FAILED if has_started else USAGE, debug)
    except SystemExit as stop:  # After --help, and after an error of the option library.
        return int(stop.code or 0)
    except KeyboardInterrupt:
        if debug:
            traceback.print_exc()
        print("kerasdist: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader left, as `| head` does. What is still in the buffer must not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001 - the last resort of a command
        if debug:
            traceback.print_exc()
        else:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            print(
                f"kerasdist: {type(error).__name__}: {reason[0]} (--debug shows the traceback)",
                file=sys.stderr,
            )
        return FAILED


def _fail(error: Exception, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    if not getattr(error, "is_told", False):
        print(f"kerasdist: {error}", file=sys.stderr)
    return code


def _command(name: str) -> Callable[[list[str]], int]:
    commands = {
        "fit": _fit,
        "launch": _launch,
        "evaluate": _evaluate,
        "predict": _predict,
        "export": _export,
        "runs": _runs,
        "new": _new,
        "verify": _verify,
        "bench": _bench,
        "devices": _devices,
        "doctor": _doctor,
        "completion": _completion,
    }
    if name == "--complete":  # asked by the scripts of `kerasdist completion`
        return lambda words: _complete(words, list(commands))
    if name not in commands:
        raise KerasdistError(
            f"Received the command {name!r}. Expected one of {', '.join(commands)}."
            f"{closest(name, commands)} `kerasdist --help` shows them."
        )
    return commands[name]


def _launch(argv: list[str]) -> int:
    from kerasdist.cli.commands import launch

    return launch.launch(argv)


def _fit(argv: list[str]) -> int:
    from kerasdist.cli import options
    from kerasdist.devices import cluster
    from kerasdist.runs.folder import check_usable

    parsed = options.parse_fit(argv)
    if (found := cluster.current()) is not None and cluster.REPORT not in os.environ:
        from kerasdist.cli.commands import launch

        # A worker that TF_CONFIG names is watched, too.
        return launch.supervise(launch.Start(found.timeout, found), argv)
    if parsed.run["run_dir"]:
        check_usable(parsed.run["run_dir"], resume=parsed.run["resume"])
    return load_command("commands.fit", parsed.run["verbose"]).fit(parsed)


def _verify(argv: list[str]) -> int:
    from kerasdist.cli import options

    parsed = options.parse_fit(argv, "kerasdist verify", options.VERIFY_OPTIONS)
    return load_command("commands.verify", parsed.run["verbose"]).verify(parsed)


def _bench(argv: list[str]) -> int:
    from kerasdist.cli import options

    parsed = options.parse_fit(argv, "kerasdist bench", options.BENCH_OPTIONS)
    return load_command("bench.command", parsed.run["verbose"]).bench(parsed, argv)


def _evaluate(argv: list[str]) -> int:
    from kerasdist.cli import run_options

    run, parsed = run_options.parse_evaluate(argv)
    _check_run(run, parsed["which"])
    return load_command("commands.evaluate", parsed["verbose"]).evaluate(run, parsed)


def _predict(argv: list[str]) -> int:
    from kerasdist.cli import run_options

    run, files, parsed = run_options.parse_predict(argv)
    _check_run(run, parsed["which"])
    return load_command("commands.predict", parsed["verbose"]).predict(run, files, parsed)


def _export(argv: list[str]) -> int:
    from kerasdist.cli import run_options
    from kerasdist.model_files import export_target

    run, parsed = run_options.parse_export(argv)
    _check_run(run, parsed["which"])
    target = export_target.target(run, parsed["format"], parsed["output"])
    return load_command("commands.export", parsed["verbose"]).export(run, target, parsed)


def _check_run(run: Path, which: str) -> None:
    from kerasdist.runs import catalog

    if which == "final":
        catalog.check_finished(run)
    else:
        catalog.check_run(run)


def _runs(argv: list[str]) -> int:
    from kerasdist.cli.commands import runs as listing

    return listing.show(*listing.parse(argv))


def _new(argv: list[str]) -> int:
    from kerasdist.cli.commands import new

    return new.new(argv)


def _devices(argv: list[str]) -> int:
    from kerasdist.cli import options

    parsed = options.parse_options({}, argv, "kerasdist devices")
    return load_command("commands.devices", parsed["verbose"]).devices(parsed)


def _doctor(argv: list[str]) -> int:
    from kerasdist.cli import options

    parsed = options.parse_options({}, argv, "kerasdist doctor")
    return load_command("commands.doctor", parsed["verbose"]).doctor(parsed)


def _completion(argv: list[str]) -> int:
    from kerasdist.cli import completion

    print(completion.SCRIPTS[completion.parse(argv)], end="")
    return 0


def _complete(words: list[str], commands: list[str]) -> int:
    from kerasdist.cli import completion

    print(*completion.complete(words, commands), sep="\n")
    return 0
