"""What must be the same when a run is resumed, and what may only change its bits."""

import pytest
import tensorflow as tf

import kerasdist
from kerasdist.runs import provenance
from kerasdist.runs.intervals import Every
from tests.runs.checkpoints.saving import handed_over


@pytest.mark.parametrize("deterministic", [False, True])
def test_other_versions_or_hardware_are_a_warning_and_no_reason_to_refuse(
    make, monkeypatch, capsys, deterministic
):
    """Threads and processor only where the same bits were asked for."""
    every = Every(steps=5)
    handed_over(make(every, deterministic=deterministic), 5)
    make(every, deterministic=deterministic).load()
    assert capsys.readouterr().out == ""
    now = provenance.made_with()
    other = {**now, "keras": "4.0", "threads": now["threads"] + 1, "processor": "Z80"}
    monkeypatch.setattr(provenance, "made_with", lambda: other)
    resumed = make(every, deterministic=deterministic)
    assert resumed.load().step == 5
    out = capsys.readouterr().out
    assert f"keras was {now['keras']!r} and is '4.0'" in out
    more = f"threads was {now['threads']} and is {now['threads'] + 1}; processor was "
    assert (more in out) == ("Z80" in out) == deterministic
    handed_over(resumed, 10)
    make(every, deterministic=deterministic).load()
    assert capsys.readouterr().out == ""


def test_xla_is_part_of_what_a_run_is(make, monkeypatch):
    every = Every(steps=5)
    handed_over(make(every), 5)
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit")
    with pytest.raises(kerasdist.KerasdistError, match="xla was None and is 'auto_jit=2'"):
        make(every).load()
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_auto_jit=0")
    monkeypatch.setattr(tf.config.optimizer, "get_jit", lambda: "autoclustering")
    with pytest.raises(kerasdist.KerasdistError, match="xla was None and is 'autoclustering'"):
        make(every).load()
    monkeypatch.setattr(tf.config.optimizer, "get_jit", lambda: "")
    assert make(every).load().step == 5
