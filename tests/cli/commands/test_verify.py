"""`kerasdist verify`: several devices are compared with one."""

import re


def test_verify_shows_that_the_devices_agree(command, tiny):
    done = command("verify", "tiny", "--counts", "1,2", "--deterministic", "--steps", 3)
    assert (done.code, done.err) == (0, "")
    assert "tiny: 3 steps, 4 shards" in done.out
    rows = re.findall(r"│ (\d) +│ (\S+) +│ (\S+) +│ (\w{16}) +│ (\w+) +│", done.out)
    assert [(row[0], row[4]) for row in rows] == [("1", "yes"), ("2", "yes")]
    assert rows[0][3] == rows[1][3]
    assert "allowed" not in done.out


def test_verify_shows_how_much_is_allowed(command, tiny):
    done = command("verify", "tiny", "--counts", "1,2", "--steps", 1)
    assert (done.code, done.err) == (0, "")
    rows = re.findall(r"│ (\d) +│ (\S+) \((\S+)\) +│ (\S+) \((\S+)\) +│ (\w+) +│", done.out)
    assert len(rows) == 2
    for _, weights, weights_allowed, metrics, metrics_allowed, agrees in rows:
        assert 0 < float(weights_allowed) < 0.01
        assert float(metrics_allowed) >= 1e-4
        assert float(weights) <= float(weights_allowed)
        assert float(metrics) <= float(metrics_allowed)
        assert agrees == "yes"
    assert "allowed: 0.0001 of the largest weight" in done.out


def test_verify_exits_with_1_where_the_devices_disagree(command, tiny):
    """A loss that depends on the number of replicas, as a hand-written tower's did."""
    with open(tiny / "model.py", "a") as file:
        file.write(
            "\n\nclass Towers(Tiny):\n"
            "    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):\n"
            "        import tensorflow as tf\n"
            "        towers = tf.distribute.get_strategy().num_replicas_in_sync\n"
            "        return keras.ops.mean((y - y_pred) ** 2) * towers\n\n\n"
            "def build_model(config):\n"
            "    return Towers(config.units, 0.01)\n"
        )
    done = command("verify", "tiny", "--counts", "1,2", "--json", "--steps", 2)
    assert done.code == 1
    (found,) = done.objects
    assert found["agree"] is False
    assert [row["agrees"] for row in found["rows"]] == [True, False]
    assert found["rows"][1]["weights_difference"] > 1e-3


def test_verify_reads_a_provider_from_its_beginning_each_time(command, bare):
    longer = ("--data.count", 100)
    done = command("verify", *bare, *longer, "--counts", "1,2", "--steps", 3, "--json")
    assert done.objects[0]["agree"] is True
    assert done.code == 0
