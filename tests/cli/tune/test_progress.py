"""What a terminal shows while trials run."""

from kerasdist.cli.tune.progress import showing
from kerasdist.phases.lines import plain
from kerasdist.phases.phase import shown_by


class Seen:
    """A display that keeps what it is asked to show."""

    def __init__(self):
        self.phases = []

    def begin(self, phase):
        self.phases.append(phase)

    def end(self, phase):
        pass

    def text(self):
        return plain(self.phases[-1:])


def test_the_line_names_the_trial_and_its_epochs_and_the_bar_moves_with_them():
    seen = Seen()
    with shown_by(seen), showing(4, 1, 2) as progress:
        progress.begin(2)
        assert seen.text().startswith("trial 2 of 4, starting, 25%")
        progress.epoch(2, 1)
        assert seen.text().startswith("trial 2 of 4, 1 of 2 epochs, 38%")
        progress.end(2)
        assert seen.text().startswith("2 of 4 trials, 50%")


def test_trials_at_the_same_time_share_the_line():
    seen = Seen()
    with shown_by(seen), showing(4, 0, None) as progress:
        progress.begin(1)
        progress.begin(2)
        progress.epoch(1, 5)
        assert seen.text().startswith("trials 1, 2 of 4, 0%")
        progress.end(1)
        assert seen.text().startswith("trial 2 of 4, starting, 25%")
