"""Folders of runs as `fit` leaves them, made of plain files."""

import json

ENVIRONMENT = {
    "time": "2026-11-16T09:00:00+00:00",
    "devices": ["CPU:0"],
    "packages": {"keras": "3.15.1"},
    "python": "3.11.7",
    "git": {"commit": "0123456789abcdef", "changed": True},
    "earlier": [],
}


def lines(num_epochs, steps_per_epoch=2, validation=True, loss=1.0, **fields):
    """Of metrics.jsonl: the loss is divided by the step, and the accuracy grows."""
    for step in range(1, num_epochs * steps_per_epoch + 1):
        value = loss / step
        yield {"kind": "step", "step": step, "loss": value, "examples_per_second": 50.0, **fields}
        if step % steps_per_epoch == 0:
            epoch = step // steps_per_epoch
            own = {"loss": value, "accuracy": 1 - value}
            seen = {f"val_{k}": v + 0.01 for k, v in own.items()} if validation else {}
            yield {"kind": "epoch", "step": step, "epoch": epoch, **own, **seen}


def write(folder, *, logged=None, config=None, result=None, environment=ENVIRONMENT, **files):
    """Writes a run; without a result it has not ended."""
    folder.mkdir(parents=True)
    content = {"config": {"kerasdist": "0.1.0", **(config or {})}, "environment": environment}
    content |= {"result": result} if result is not None else {}
    for name, value in {**content, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    if logged is not None:
        text = "".join(f"{json.dumps(line)}\n" for line in logged)
        (folder / "metrics.jsonl").write_text(text)
    return folder


def finished(folder, *, num_epochs=3, recipe="cifar10", settings=None, loss=1.0, **files):
    """A finished run of a recipe."""
    logged = list(lines(num_epochs, loss=loss))
    last = {k: v for k, v in logged[-1].items() if k not in ("kind", "step", "epoch")}
    result = {
        "status": "finished",
        "steps": num_epochs * 2,
        "epochs": num_epochs,
        "examples_seen": num_epochs * 20,
        **last,
        "examples_per_second": 123.4,
        "devices": ["CPU:0"],
        "dataset": "files",
        "weights_sha256": "0" * 64,
        "saved": "model",
    }
    options = {"epochs": num_epochs, "steps": None, "monitor": None, "run_dir": str(folder)}
    config = {"recipe": recipe, "settings": settings or {"units": 8}, "options": options}
    return write(folder, logged=logged, config=config, result=result, **files)
