"""`main` shows phases for the commands whose trials have their own processes."""

import pytest

from kerasdist.cli import main
from kerasdist.phases.phase import is_shown


@pytest.mark.parametrize("argv", [["tune", "cifar10"], ["fit", "cifar10", "--find-batch-size"]])
def test_trials_in_their_own_processes_show_phases(argv, monkeypatch):
    seen = []
    found = main._find

    def find(name):
        if name in ("tune.command:tune", "finding.batch_size:find"):
            return lambda *_: seen.append(is_shown()) or 0
        return found(name)

    monkeypatch.setattr(main, "_find", find)
    assert main.main(argv) == 0
    assert seen == [True]
