"""What the census reads in a script."""

import pytest

from tests.keras_examples import script_facts
from tests.keras_examples.support import Support, other_reason


def features(text):
    return script_facts.read(text).features


def test_calls_are_read_with_their_arguments():
    (call,) = script_facts.read("model.fit(x, y, epochs=3, **more)").calls
    assert (call.method, call.num_positional, call.keywords) == ("fit", 2, ("epochs",))


def test_estimators_of_other_libraries_are_not_keras():
    text = "encoder = sklearn.LabelEncoder()\nencoder.fit(y)\nKMeans(2).fit(x)\nsuper().fit(x)"
    assert [call.line for call in script_facts.read(text).calls] == [4]


@pytest.mark.parametrize(
    ("text", "feature"),
    [
        ("class A(keras.Model):\n  def train_step(self, data): pass", "own train_step"),
        ("class A(keras.utils.PyDataset): pass", "data: PyDataset"),
        ("model.compile(run_eagerly=True)", "compile(run_eagerly)"),
        ("keras.layers.LSTM(3, stateful=True)", "layer(stateful)"),
        ("keras.optimizers.Lion()", "optimizer: Lion"),
        ("keras.callbacks.EarlyStopping()", "callback: EarlyStopping"),
        ("def rows():\n  yield 1\nmodel.fit(rows())", "data: a generator"),
        ("with strategy.scope():\n  model.fit(x)", "fit inside a scope of tf.distribute"),
        ("strategy = tf.distribute.TPUStrategy(tpu)", "TPUs"),
        ("with tf.GradientTape(persistent=True) as tape: pass", "a persistent tape"),
        ("self.compiled_loss(y, y_pred)", "compiled_loss, compiled_metrics"),
    ],
)
def test_a_feature_is_found(text, feature):
    assert feature in features(text)


def test_a_step_is_read():
    text = """
class A(keras.Model):
    def train_step(self, data):
        noise = tf.random.normal((2,))
        for _ in range(3):
            self.d_optimizer.apply_gradients(a)
        self.g_optimizer.apply_gradients(b)
"""
    assert features(text) >= {
        "own train_step",
        "several updates in a step",
        "tf.random in a step",
        "updates in a loop",
    }


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("import jax", "not for TensorFlow"),
        ("import torch\ntorch.nn.Linear(1, 2)", "not for TensorFlow"),
        ("import tensorflow_addons as tfa", "not for Keras 3"),
        ("import torch\ntorch.utils.data.DataLoader(d)", None),
        ("import os\nos.environ['KERAS_BACKEND'] = 'jax'", None),
    ],
)
def test_scripts_that_nobody_can_run_here_are_counted_apart(text, verdict):
    found = other_reason(script_facts.read(text))
    assert (found and found[0]) == verdict


def test_an_edit_has_its_reasons():
    arguments = {"fit": ["x", "y", "epochs"]}
    known = {"fit": ["x", "y", "batch_size", "epochs"]}
    support = Support({"add_loss": "refused", "data: tf.data": ""}, arguments, known)
    facts = script_facts.read(
        "model.fit(x, y, 32)\nself.add_loss(1)\ntf.data.from_tensor_slices(x)"
    )
    assert support.reasons(facts) == ["add_loss: refused", "fit(batch_size)"]
    assert list(support.refused_by_keras(script_facts.read("model.fit(x, workers=2)"))) == [
        "fit(workers)"
    ]
