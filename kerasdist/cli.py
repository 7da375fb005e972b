"""The command line: parse, call, exit codes. TensorFlow is imported where a command needs it."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator

from kerasdist import __version__
from kerasdist.errors import DivergedError, KerasdistError, closest

USAGE, FAILED, DIVERGED, INTERRUPTED = 2, 1, 3, 130

HELP = """\
usage: kerasdist COMMAND ...

Train Keras models on several devices: the same maths on any number of them.

commands:
  fit RECIPE         train; also --model FILE.py:Class --data FILE.py:Class
  evaluate RUN       loss and metrics of a trained run
  verify RECIPE      show that N devices compute what one does (--counts 1,2,4)
  devices            what is here, and what "auto" takes

  kerasdist COMMAND --help shows the options, kerasdist fit RECIPE --help a recipe's own.
  kerasdist --version shows the version.

examples:
  kerasdist fit cifar10
  kerasdist fit recipes/cifar10 --devices 2 --batch-size 256
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
    try:
        return _command(name)(rest)
    except DivergedError as error:
        return _fail(error, DIVERGED, debug)
    except KerasdistError as error:
        return _fail(error, FAILED if getattr(error, "during_run", False) else USAGE, debug)
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
    print(f"kerasdist: {error}", file=sys.stderr)
    return code


def _command(name: str) -> Callable[[list[str]], int]:
    commands = {"fit": _fit, "evaluate": _evaluate, "verify": _verify, "devices": _devices}
    if name not in commands:
        raise KerasdistError(
            f"Received the command {name!r}. Expected one of {', '.join(commands)}."
            f"{closest(name, commands)} `kerasdist --help` shows them."
        )
    return commands[name]


def _fit(argv: list[str]) -> int:
    from kerasdist import options, runs

    parsed = options.parse_fit(argv)
    if parsed.run["run_dir"]:
        runs.check_usable(parsed.run["run_dir"], resume=parsed.run["resume"])
    with tensorflow_messages(parsed.run["verbose"]):
        from kerasdist import commands
    return commands.fit(parsed)


def _verify(argv: list[str]) -> int:
    from kerasdist import options

    parsed = options.parse_fit(argv, "kerasdist verify", options.VERIFY_OPTIONS)
    with tensorflow_messages(parsed.run["verbose"]):
        from kerasdist import commands
    return commands.verify(parsed)


def _evaluate(argv: list[str]) -> int:
    from kerasdist import options, runs

    run, parsed = options.parse_evaluate(argv)
    runs.check_finished(run)
    with tensorflow_messages(parsed["verbose"]):
        from kerasdist import commands
    return commands.evaluate(run, parsed)


def _devices(argv: list[str]) -> int:
    from kerasdist import options

    parsed = options.parse_options({}, argv, "kerasdist devices")
    with tensorflow_messages(parsed["verbose"]):
        from kerasdist import commands
    return commands.devices(parsed)


@contextlib.contextmanager
def tensorflow_messages(shown: bool) -> Iterator[None]:
    """Keeps TensorFlow's own messages off the screen, unless they are asked for.

    Those of its start are written by C++ code before it reads its own log level, straight to file
    descriptor 2.
    """
    if shown:
        yield
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for name in ("tensorflow", "absl"):
        logging.getLogger(name).setLevel(logging.ERROR)
    sys.stderr.flush()
    with tempfile.TemporaryFile() as sink:
        kept = os.dup(2)
        os.dup2(sink.fileno(), 2)
        try:
            yield
        except Exception:
            os.dup2(kept, 2)
            sink.seek(0)
            sys.stderr.write(sink.read().decode(errors="replace"))
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
