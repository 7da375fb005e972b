"""Runs programs of the corpus, each in its own process, by plain Keras or through kerasdist.

python -m tests.programs.harness gan --engine kerasdist --devices 2 --floatx float64
"""

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "scripts"
ENGINES = ("keras", "kerasdist")


@dataclass(frozen=True)
class Setup:
    """How programs are run."""

    engine: str = "keras"
    devices: int = 1
    shards: int | None = None
    deterministic: bool = False
    floatx: str = "float32"

    def options(self):
        """The command-line options that make it."""
        options = ["--engine", self.engine, "--devices", self.devices, "--floatx", self.floatx]
        options += [] if self.shards is None else ["--shards", self.shards]
        return [str(option) for option in options] + ["--deterministic"] * self.deterministic


@dataclass(frozen=True)
class Result:
    """How one program ended: its values by name, or its error."""

    name: str
    seconds: float
    values: dict = field(default_factory=dict)
    sha256: str = ""
    error: str = ""  # "KerasdistError: its message", or empty.
    refused: bool = False  # Whether kerasdist raised it.
    printed: str = ""  # What all programs of the process printed.


def run(names, setup, timeout=1200):
    """Runs programs one after the other, each in its own process; name → Result."""
    # The tests' own would set the CPUs before the harness does.
    environment = {k: v for k, v in os.environ.items() if k != "KERASDIST_LOGICAL_CPUS"}
    with tempfile.TemporaryDirectory() as folder:
        module = [sys.executable, "-m", "tests.programs.harness"]
        done = subprocess.run(
            [*module, *names, *setup.options(), "--out", folder],
            cwd=ROOT,
            env=environment | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        return {name: _read(Path(folder), name, done) for name in names}


def _read(folder, name, done):
    import numpy as np

    summary = folder / f"{name}.json"
    if not summary.exists():
        error = "Process: it was killed before it ended"
        return Result(name, 0.0, error=error, printed=done.stdout)
    with np.load(folder / f"{name}.npz") as arrays:
        values = dict(arrays)
    return Result(values=values, printed=done.stdout, **json.loads(summary.read_text()))


def execute(name, setup):
    """Runs one program in this process; returns its globals."""
    if setup.engine == "kerasdist":
        import kerasdist

        kerasdist.logical_cpus(setup.devices)  # Before TensorFlow starts.
        kerasdist.enable(
            devices=setup.devices, shards=setup.shards, deterministic=setup.deterministic
        )
    import keras

    if setup.engine == "keras":
        _use_dense_gradients(keras)
    keras.config.set_floatx(setup.floatx)
    keras.config.set_dtype_policy(setup.floatx)
    path = str(SCRIPTS / f"{name}.py")
    sys.argv = [path]
    return runpy.run_path(path, run_name="__main__")


def _use_dense_gradients(keras):
    """Keras's optimizers get the gradient of an embedding as one tensor, as on JAX and PyTorch.

    On TensorFlow they get one slice for each time that a row is used, and Keras 3.15 squares slices
    one by one: Adam and its like then compute something else than their formula.
    """
    import tensorflow as tf

    apply = keras.optimizers.Optimizer.apply

    def dense_apply(self, grads, trainable_variables=None):
        dense = [None if g is None else tf.convert_to_tensor(g) for g in grads]
        return apply(self, dense, trainable_variables)

    keras.optimizers.Optimizer.apply = dense_apply


def record(name, setup, folder):
    """Runs one program and writes NAME.npz (its values) and NAME.json; returns its error."""
    import numpy as np

    from tests.programs import outcome

    values, error, refused, began = {}, "", False, time.perf_counter()
    try:
        values = outcome.collect(execute(name, setup))
    except Exception as problem:  # noqa: BLE001 Any error of a program is its result.
        traceback.print_exc()
        error = f"{type(problem).__name__}: {problem}"
        refused = "KerasdistError" in {kind.__name__ for kind in type(problem).__mro__}
    summary = {
        "seconds": round(time.perf_counter() - began, 3),
        "sha256": outcome.sha256_of_weights(values),
        "error": error,
        "refused": refused,
    }
    np.savez(folder / f"{name}.npz", **values)
    (folder / f"{name}.json").write_text(json.dumps({"name": name} | summary))
    shown = error.splitlines()[0] if error else f"weights {summary['sha256'][:16]}"
    print(f"{name}: {summary['seconds']:.1f} s, {len(values)} values, {shown}", flush=True)
    return error


def fork(name, setup, folder):
    """Runs one program in a copy of this process, which has imported Keras; whether it passed.

    Importing takes longer than most programs. Programs that shared one process, with
    `keras.backend.clear_session()` between them, ended once with a segmentation fault whose cause
    is not known (TensorFlow 2.21).
    """
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            code = 1 if record(name, setup, folder) else 0
        except BaseException:  # noqa: BLE001 The copy must end here.
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitpid(process, 0)[1] == 0


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", help="programs: file names without .py")
    parser.add_argument("--engine", choices=ENGINES, default="keras")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--shards", type=int)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--floatx", choices=["float32", "float64"], default="float32")
    parser.add_argument("--out", type=Path, help="folder for NAME.npz and NAME.json")
    options = vars(parser.parse_args(argv))
    names, out = options.pop("names"), options.pop("out")
    setup = Setup(**options)
    if setup.engine == "kerasdist":
        pass
    import keras

    assert keras.backend.backend() == "tensorflow", keras.backend.backend()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (out or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        passed = [fork(name, setup, folder) for name in names]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
