"""The one table of what kerasdist accepts. Every entry is asked of kerasdist itself.

Arguments come from the signatures of Keras's methods and of kerasdist's functions. Every other
feature has a tiny program in `probes.py`, which runs with `kerasdist.enable(devices=2)`: it works,
or its error is the reason. So the census cannot claim more than the code does.
"""

import importlib
import inspect
from dataclasses import dataclass, field

import keras

from tests.keras_examples import probes

# A script that imports one of these needs another backend, whatever trains it.
OTHER_BACKENDS = ("jax", "flax", "optax", "libtpu")
# These exist for Keras 2 only: such a script does not run with Keras 3 at all.
KERAS_2 = (
    "tensorflow_addons",
    "tensorflow_decision_forests",
    "tensorflow_similarity",
    "tf_keras",
    "transformers.TF",
)
# What a script may use of torch beside another backend's model.
TORCH_DATA = {"utils", "from_numpy", "tensor", "Tensor", "float32", "manual_seed"}


@dataclass
class Support:
    """Why each feature fails ("" if it works), and the arguments that each method takes."""

    failures: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, list[str]] = field(default_factory=dict)
    keras_arguments: dict[str, list[str]] = field(default_factory=dict)

    def reasons(self, facts):
        """Why a script needs an edit; empty if it needs none."""
        found = set()
        for call in facts.calls:
            found |= set(self._refused_arguments(call))
        for feature in facts.features:
            why = self.failures.get(feature, "")
            if why:
                found.add(f"{feature}: {why}")
        return sorted(found)

    def _refused_arguments(self, call):
        names = self.keras_arguments[call.method]
        given = [*names[: call.num_positional], *call.keywords]
        for name in given:
            if name in names and name not in self.arguments[call.method]:
                yield f"{call.method}({name})"

    def refused_by_keras(self, facts):
        """Arguments that Keras 3 itself does not take."""
        for call in facts.calls:
            for name in call.keywords:
                if name not in self.keras_arguments[call.method]:
                    yield f"{call.method}({name})"


def other_reason(facts):
    """Why a script cannot run with Keras 3 and TensorFlow, or None. kerasdist has no say in it."""
    for name in sorted(facts.imports):
        if name.split(".")[0] in OTHER_BACKENDS:
            return "not for TensorFlow", f"it imports {name.split('.')[0]}"
    for feature in sorted(facts.features):
        if feature.startswith(("jax:", "torch:")):
            return "not for TensorFlow", feature
    if facts.torch_names - TORCH_DATA:
        return "not for TensorFlow", "its model or its loop is written with torch"
    for name in sorted(facts.imports):
        if name.startswith(KERAS_2):
            return "not for Keras 3", f"it imports {name.split('.')[0]}"
    for feature in sorted(facts.features):
        if feature.startswith("Keras 2:"):
            return "not for Keras 3", feature
    return None


def _own_arguments(method):
    """The arguments of kerasdist's function that stands in for a method of Keras."""
    from kerasdist.training import keras_calls

    function = getattr(keras_calls, method, None)  # `fit`, `evaluate` and `predict`.
    if function is None:
        try:
            program = importlib.import_module("kerasdist.programs.program").Program
        except ImportError:
            return []
        function = getattr(program, method)
    return list(inspect.signature(function).parameters)


def ask(only=None):
    """Asks Keras and kerasdist. `only` limits the features that are tried."""
    support = Support()
    for method in ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch"):
        names = inspect.signature(getattr(keras.Model, method)).parameters
        support.keras_arguments[method] = [name for name in names if name not in ("self", "kwargs")]
        support.arguments[method] = _own_arguments(method)
    names = inspect.signature(keras.Model.predict_on_batch).parameters
    support.keras_arguments["predict_on_batch"] = [name for name in names if name != "self"]
    support.arguments["predict_on_batch"] = _own_arguments("predict_on_batch")
    features = set(probes.PROBES) if only is None else set(only)
    for feature in sorted(features):
        support.failures[feature] = probes.failure(feature)
    return support
