"""`kerasdist devices`."""

from tests.conftest import Outcome


def test_devices_prints_a_table(command):
    done = command("devices")
    assert (done.code, done.err) == (0, "")
    assert "CPU:5" in done.out
    assert 'used by "auto"' in done.out
    objects = command("devices", "--json").objects
    assert [o["name"] for o in objects if o["used_by_auto"]] == ["CPU:0"]
    assert command("devices", "--quiet") == Outcome(0, "", "")
