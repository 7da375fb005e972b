"""`kerasdist run`: runs a Keras script on several devices, as it is."""

from __future__ import annotations

import os
import sys
from typing import Any

import keras

from kerasdist.cli.script_arguments import ScriptArguments, misplaced
from kerasdist.devices import cluster, gpus, visible_gpus
from kerasdist.devices.names import expected_gpus, logical_cpus_for
from kerasdist.devices.placement import Placement, place
from kerasdist.programs import switch
from kerasdist.programs.chief import is_chief
from kerasdist.programs.notes import tell
from kerasdist.programs.script import run_script

_OF_ENABLE = (
    "devices",
    "run_dir",
    "deterministic",
    "shards",
    "jit",
    "clip_norm",
    "ema",
    "keep",
    "on_nan",
    "allow_nan",
    "sync_batch_norm",
)


def run(given: ScriptArguments) -> int:
    """`kerasdist run [options] SCRIPT.py [its own arguments]`."""
    options = given.options
    placement = _prepare(options)
    if options["debug"]:
        keras.config.disable_traceback_filtering()
    if options["precision"] is not None:
        keras.config.set_dtype_policy(options["precision"])
    if options["seed"] is not None:
        keras.utils.set_random_seed(options["seed"])
    if not is_chief():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    chosen = {name: options[name] for name in _OF_ENABLE}
    chosen["allow_nan"] = options["allow_nan"] or "warn"  # As `kerasdist.enable` does.
    switch.enable(save_every=options["save_every"], **chosen)
    switch.tell_devices()
    if (note := misplaced(given)) is not None:
        tell(note)
    code = run_script(given.script, given.arguments, debug=options["debug"])
    if placement is not None and code == 0:
        placement.wait()  # A worker that leaves early counts as lost.
    return code


def _prepare(options: dict[str, Any]) -> Placement | None:
    """Sets up the devices, without starting TensorFlow: the script may set it up, too.

    Only workers start it, because they must connect first.
    """
    devices = options["devices"]
    logical_cpus_for(devices)
    chosen = expected_gpus(devices)
    growth, limit = options["memory_growth"], options["memory_limit"]
    has_gpu = gpus.set_memory(growth, limit, chosen=chosen)
    if not has_gpu and (growth or limit is not None):
        print("--memory-growth and --memory-limit have no effect without a GPU", file=sys.stderr)
    visible_gpus.keep(chosen)
    return None if cluster.current() is None else place(devices)
