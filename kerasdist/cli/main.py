"""The command line: finds the command, runs it, and turns errors into exit codes."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from kerasdist import __version__, versions
from kerasdist.cli.quiet import start_tensorflow, starting, tensorflow_messages, warnings_as_lines
from kerasdist.cli.shells import COMPLETE
from kerasdist.errors import (
    DivergedError,
    KerasdistError,
    RunFailedError,
    causes,
    closest,
    first_line,
)
from kerasdist.phases import displays
from kerasdist.phases.prose import say
from kerasdist.recipes.importing import where_raised

FAILED, USAGE, DIVERGED, INTERRUPTED = 1, 2, 3, 130
# Errors of code. Others, such as a ValueError, may be about the data that it reads.
_MISTAKES = (NameError, AttributeError, TypeError, ImportError, SyntaxError)

HELP = """\
usage: kerasdist COMMAND ...

Train Keras models on several devices, with the same maths on any number of them.

commands:
  fit RECIPE           train; also a folder of your images, WAV files or texts, one folder per
                       class, or a table (people.csv --target survived);
                       or --model FILE.py:Class --data FILE.py:Class
  run SCRIPT.py        run a Keras script as it is, on several devices
  launch ... fit ...   train on several workers (--workers 2, or --hosts a:2222,b:2222 --index 0);
                       `launch ... run SCRIPT.py` runs a script on them
  evaluate RUN         loss and metrics of a trained run, per class and per group
  predict RUN FILE...  run the model on files, or on all files in a folder
  export RUN           write the model for other programs: Keras, TensorFlow, LiteRT, ONNX
  runs [DIR]           list runs; `runs RUN RUN` compares them, --html writes a page
  board [DIR]          a live page about all runs, in the browser of this machine
  new NAME             write a recipe to start from (--from FOLDER or TABLE, or --template)
  tune RECIPE          search settings over many trials (--trials 20 --search units=16:128)
  verify RECIPE        check that several devices compute the same as one (--counts 1,2,4)
  bench RECIPE         measure how fast several devices train, and what slows them down
  devices              list the devices, and which of them `--devices auto` uses
  doctor               check the installation with a short training; --gpu checks the GPUs
  completion SHELL     print a completion script for bash, zsh or fish

  kerasdist COMMAND --help lists the options of a command.
  kerasdist fit RECIPE --help also lists the settings of a recipe.
  kerasdist --version prints the version.

examples:
  kerasdist fit photos
  kerasdist fit cifar10
  kerasdist fit recipes/cifar10 --devices 2 --batch-size 256
  kerasdist run --devices 2 train.py
  kerasdist predict runs/cifar10/0001 photo.png
  kerasdist export runs/cifar10/0001 --format saved_model
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
    if name not in ("fit", "run", "launch"):
        # Only these use several workers. TensorFlow would wait for them.
        os.environ.pop("TF_CONFIG", None)
    if name != "run" and isinstance(sys.stdout, io.TextIOWrapper):
        # Names of files and classes need not fit the terminal's encoding. Python's stderr does so.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        versions.check_system(sys.platform)
        with warnings_as_lines():
            return _command(name)(rest)
    except DivergedError as error:
        return _fail(error, DIVERGED, debug)
    except KerasdistError as error:
        has_begun = isinstance(error, RunFailedError)
        return _fail(error, FAILED if has_begun else USAGE, debug)
    except SystemExit as stop:  # tyro printed the help, or an error.
        return int(stop.code or 0)
    except KeyboardInterrupt:
        if debug:
            traceback.print_exc()
        print("kerasdist: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe, as `| head` does. The rest of the buffer must not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if "tensorflow" in sys.modules:  # A help or a list may end early; not a training.
            say("kerasdist: stopped, because the reader of its output was closed", sys.stderr)
        return FAILED
    except Exception as error:  # noqa: BLE001 - people see one line, not a traceback
        if debug:
            traceback.print_exc()
        else:
            reason = f"{type(error).__name__}: {first_line(error)}"
            where = f"{found}; " if (found := where_raised(error)) else ""
            say(f"kerasdist: {reason} ({where}--debug shows the traceback)", sys.stderr)
        return FAILED


def _fail(error: Exception, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    if not getattr(error, "is_told", False):
        # A mistake in the recipe's code, such as in the model's `call`, may have been translated.
        mistakes = (cause for cause in causes(error) if isinstance(cause, _MISTAKES))
        found = next(filter(None, map(where_raised, mistakes)), "")
        where = f" ({found}; --debug shows the traceback)" if found and not debug else ""
        say(f"kerasdist: {error}{where}", sys.stderr)
    return code


def _command(name: str) -> Callable[[list[str]], int]:
    if name == COMPLETE:
        return _without_tensorflow("completion:print_candidates")
    if name not in COMMANDS:
        raise KerasdistError(
            f"Unknown command {name!r}. Expected one of {', '.join(COMMANDS)}."
            f"{closest(name, COMMANDS)} `kerasdist --help` describes them."
        )
    return COMMANDS[name]


def _find(name: str) -> Callable[..., Any]:
    """Imports a function, such as "commands.new:new", from `kerasdist.cli`."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(f"kerasdist.cli.{module}"), function)
    return found


def _find_with_tensorflow(name: str, *, verbose: bool) -> Callable[..., Any]:
    """Imports a function, and TensorFlow, whose messages are hidden without `-v`."""
    versions.check()
    with starting(), tensorflow_messages(shown=verbose):
        found = _find(name)
        start_tensorflow()
    return found


def _without_tensorflow(run: str) -> Callable[[list[str]], int]:
    """A command that takes its arguments as they are."""
    return lambda argv: int(_find(run)(argv))


def _tune(argv: list[str]) -> int:
    """Each of its trials is a process with its own TensorFlow. This one needs none."""
    options = _find("tune.arguments:parse_tune")(argv)
    versions.check()
    with _showing_phases(argv):
        return int(_find("tune.command:tune")(options))


def _parsed(parse: str, argv: list[str]) -> Any:
    """Parses and checks arguments. A terminal shows at once that TensorFlow will start."""
    is_shown = displays.can_redraw(sys.stderr) and not {"-h", "--help", *_SILENT} & {*argv}
    output = displays.of_command() if is_shown else None
    with displays.shown_on(output), starting():
        return _find(parse)(argv)


_VERBOSE, _SILENT = ("-v", "--verbose"), ("--quiet", "--json")


def _with_tensorflow(parse: str, run: str) -> Callable[[list[str]], int]:
    """A command whose arguments are parsed and checked before TensorFlow is imported."""

    def start(argv: list[str]) -> int:
        arguments = _parsed(parse, argv)
        with _showing_phases(argv) as verbose:
            return int(_find_with_tensorflow(run, verbose=verbose)(*arguments))

    return start


@contextlib.contextmanager
def _showing_phases(argv: list[str]) -> Iterator[bool]:
    """Shows what the command is doing. Yields whether TensorFlow's messages are to be shown."""
    verbose = any(word in argv for word in _VERBOSE)
    output = displays.of_command(quiet="--quiet" in argv, json="--json" in argv, verbose=verbose)
    with displays.shown_on(output):
        yield verbose


def _fit(argv: list[str]) -> int:
    from kerasdist.cli.finding.choice import finder
    from kerasdist.devices import cluster
    from kerasdist.runs.folder import check_usable

    options = _parsed("fit_arguments:parse_fit", argv)
    if (found := finder(options.run)) is not None:
        return _run_finder(*found, options, argv)
    if (worker := cluster.current()) is not None and cluster.REPORT not in os.environ:
        from kerasdist.devices.launcher import Start, supervise

        # TF_CONFIG says that this is a worker: it is supervised as if `launch` had started it.
        return supervise(Start(worker.timeout, worker), ["fit", *argv], options.run["devices"])
    if options.run["run_dir"]:
        check_usable(options.run["run_dir"], resume=options.run["resume"])
    with _showing_phases(argv) as verbose:
        return int(_find_with_tensorflow("commands.fit:fit", verbose=verbose)(options))


def _run_finder(name: str, needs_tensorflow: bool, options: Any, argv: list[str]) -> int:
    with _showing_phases(argv) as verbose:
        if not needs_tensorflow:
            return int(_find(name)(options, argv))
        return int(_find_with_tensorflow(name, verbose=verbose)(options, argv))


def _run(argv: list[str]) -> int:
    from kerasdist.devices import cluster

    script = _parsed("script_arguments:parse_run", argv)
    if (found := cluster.current()) is not None and cluster.REPORT not in os.environ:
        from kerasdist.devices.launcher import Start, supervise

        devices = script.options["devices"]
        return supervise(Start(found.timeout, found), ["run", *argv], devices)
    # Words after the script are the script's, also `-v`. What it prints stays what it is.
    own = ["-v"] if script.options["verbose"] else []
    with _showing_phases(own) as verbose:
        run = _find_with_tensorflow("commands.run:run", verbose=verbose)
    return int(run(script))


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "fit": _fit,
    "run": _run,
    "launch": _without_tensorflow("commands.launch:launch"),
    "evaluate": _with_tensorflow("run_options:parse_evaluate", "commands.evaluate:evaluate"),
    "predict": _with_tensorflow("run_options:parse_predict", "commands.predict:predict"),
    "export": _with_tensorflow("run_options:parse_export", "commands.export:export"),
    "runs": _without_tensorflow("commands.runs:runs"),
    "board": _without_tensorflow("commands.board:board"),
    "new": _without_tensorflow("commands.new:new"),
    "tune": _tune,
    "verify": _with_tensorflow("fit_arguments:parse_verify", "commands.verify:verify"),
    "bench": _with_tensorflow("fit_arguments:parse_bench", "bench.command:bench"),
    "devices": _with_tensorflow("options:parse_devices", "commands.devices:devices"),
    "doctor": _with_tensorflow("options:parse_doctor", "commands.doctor:doctor"),
    "completion": _without_tensorflow("completion:print_script"),
}
