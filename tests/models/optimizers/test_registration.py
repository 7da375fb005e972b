"""`import kerasdist.optimizers` registers kerasdist's classes with Keras."""

import json
import subprocess
import sys

CHOSEN = ("SGD", "Adam", "AdamW", "RMSprop", "Lion", "Muon", "KernelMuon")
# With rates by layer.
RATED = ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lamb", "Lion")
RATED += ("Muon", "Nadam", "RMSprop", "SGD")
NAMES = {
    *CHOSEN,
    *(f"Rated{name}" for name in RATED),
    *(f"RatedChosen{name}" for name in CHOSEN),
    *("Schedule", "SmoothedCrossentropy"),
}
# As a file names the class that was saved when it was in another module.
OLD = {
    "module": "kerasdist.optimizers",
    "class_name": "AdamW",
    "registered_name": "kerasdist>AdamW",
    "config": {"learning_rate": 0.5, "weight_decay": 0.1, "weight_decay_on": "all"},
}


def in_new_process(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_import_registers_the_classes():
    code = (
        "import keras, json\n"
        "def known():\n"
        "    names = keras.saving.get_custom_objects()\n"
        "    return sorted(name for name in names if name.startswith('kerasdist>'))\n"
        "before = known()\n"
        "import kerasdist.optimizers\n"
        "print(json.dumps([before, known()]))\n"
    )
    before, after = json.loads(in_new_process(code))
    assert before == []
    assert set(after) == {f"kerasdist>{name}" for name in NAMES}


def test_a_class_that_has_moved_since_it_was_saved_is_found():
    code = (
        "import keras, kerasdist.optimizers\n"
        f"optimizer = keras.optimizers.deserialize({OLD!r})\n"
        "print(type(optimizer).__name__, optimizer.weight_decay_on)\n"
    )
    assert in_new_process(code) == "AdamW all\n"
