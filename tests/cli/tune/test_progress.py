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
        return plain(self.phases)


def test_the_line_names_the_trial_and_its_epochs_and_the_bar_moves_with_them():
    seen = Seen()
    with shown_by(seen), showing(4, 1, 2) as progress:
        progress.begin(2)
        assert seen.text().startswith("trials 1/4, trial 2, epoch 0/2, 25%")
        progress.epoch(2, 1)
        assert seen.text().startswith("trials 1/4, trial 2, epoch 1/2, 38%")
        progress.end(2)
        progress.begin(3)
        assert seen.text().startswith("trials 2/4, trial 3, epoch 0/2, 50%")


def test_trials_at_the_same_time_share_the_line():
    seen = Seen()
    with shown_by(seen), showing(4, 0, None) as progress:
        progress.begin(1)
        progress.begin(2)
        progress.epoch(1, 5)
        assert seen.text().startswith("trials 0/4, running 1, 2, 0%")
        progress.end(1)
        assert seen.text().startswith("trials 1/4, trial 2, epoch 0, 25%")


def test_the_time_left_follows_from_the_time_so_far():
    seen = Seen()
    with shown_by(seen), showing(4, 0, 2) as progress:
        now = seen.phases[0]._began
        for each in seen.phases:
            each._clock = lambda: now
        progress.begin(1)
        now += 10
        progress.epoch(1, 1)
        assert seen.text() == "trials 0/4, trial 1, epoch 1/2, 12%, 1:10 left"
