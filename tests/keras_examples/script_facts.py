"""What one script asks of Keras, read from its syntax tree without running it."""

import ast
from dataclasses import dataclass, field

import keras

CALLS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
OWN_METHODS = (
    *CALLS,
    "train_step",
    "test_step",
    "predict_step",
    "compute_loss",
    "compute_metrics",
    "make_train_function",
    "make_test_function",
    "make_predict_function",
)
# Other libraries have a `fit`, too. Theirs is not Keras's.
OTHER_FITS = ("KMeans", "LabelEncoder", "TSNE", "PCA", "Scaler", "Binarizer", "Tokenizer")


@dataclass(frozen=True)
class KerasCall:
    """A call of one of the methods that kerasdist replaces."""

    method: str
    num_positional: int
    keywords: tuple[str, ...]
    line: int


@dataclass
class ScriptFacts:
    """What was found in a script. `features` are names of the table in `support.py`."""

    calls: list[KerasCall] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    features: set[str] = field(default_factory=set)
    torch_names: set[str] = field(default_factory=set)
    backend: str = ""


def dotted(node):
    """`a.b.c` as text; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else node.attr
    return ""


def read(source):
    """The facts of a script's text."""
    tree = ast.parse(source)
    facts = ScriptFacts()
    other_objects = _objects_of_other_libraries(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            facts.imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            facts.imports |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ClassDef):
            _read_class(node, facts)
        elif isinstance(node, ast.Call):
            _read_call(node, facts, other_objects)
        elif isinstance(node, ast.Attribute):
            _read_name(dotted(node), facts)
        elif isinstance(node, ast.Name):
            _read_name(node.id, facts)
        elif isinstance(node, ast.Assign):
            _read_backend(node, facts)
    _read_generators(tree, facts)
    _read_scopes(tree, facts)
    return facts


def _objects_of_other_libraries(tree):
    """Names of variables that hold an estimator of another library."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = dotted(node.value.func)
            if made.endswith(OTHER_FITS):
                found |= {dotted(target) for target in node.targets}
    return found


def _read_backend(node, facts):
    for target in node.targets:
        if isinstance(target, ast.Subscript) and "KERAS_BACKEND" in ast.unparse(target):
            facts.backend = ast.unparse(node.value).strip("'\"")
            if facts.backend in ("jax", "torch"):
                facts.features.add("KERAS_BACKEND set to another backend")


def _read_class(node, facts):
    bases = {dotted(base).rsplit(".", 1)[-1] for base in node.bases}
    if bases & {"PyDataset", "Sequence"}:
        facts.features.add("data: PyDataset")
    if any("Callback" in base for base in bases):
        facts.features.add("custom callback")
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
                if inner.func.attr == "predict":
                    facts.features.add("predict in a callback")
                elif inner.func.attr == "evaluate":
                    facts.features.add("evaluate in a callback")
        return
    optimizers = {"Optimizer", "Adam", "AdamW", "SGD", "RMSprop"}
    if bases & optimizers:
        facts.features.add("custom optimizer")
        return
    if bases & {"Metric", "Loss"} or bases <= {"Layer", "object"}:
        return
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name in OWN_METHODS:
            facts.features.add(f"own {method.name}")
            if method.name.endswith("_step"):
                _read_step(method, facts)


def _read_step(method, facts):
    """What a custom step does besides one tape and one update."""
    arguments = [argument.arg for argument in method.args.args]
    if arguments[1:3] == ["state", "data"]:
        facts.features.add("jax: a step with its state as an argument")
    names = [dotted(node) for node in ast.walk(method) if isinstance(node, ast.Attribute)]
    updates = [name for name in names if name.endswith((".apply_gradients", ".apply"))]
    if len(updates) > 1:
        facts.features.add("several updates in a step")
    if any(name.startswith("tf.random.") for name in names):
        facts.features.add("tf.random in a step")
    if any(name.endswith((".backward", ".zero_grad")) for name in names):
        facts.features.add("torch: a step with `backward`")
    if any(name.endswith(("get_scaled_loss", "get_unscaled_gradients")) for name in names):
        facts.features.add("Keras 2: `get_scaled_loss`")
    for node in ast.walk(method):
        if isinstance(node, ast.Call) and dotted(node.func) in ("tf.cond", "tf.while_loop"):
            inside = " ".join(ast.unparse(argument) for argument in node.args)
            if "apply" in inside:
                facts.features.add("an update inside tf.cond")
        if isinstance(node, ast.For | ast.While) and "apply" in ast.unparse(node):
            facts.features.add("updates in a loop")


def _read_call(node, facts, other_objects):
    name = dotted(node.func)
    last = name.rsplit(".", 1)[-1]
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    if isinstance(node.func, ast.Attribute) and last in CALLS:
        receiver = dotted(node.func.value)
        estimator = any(word in ast.unparse(node.func.value) for word in OTHER_FITS)
        if receiver not in other_objects and not estimator and receiver != "super":
            given = tuple(str(keyword.arg) for keyword in node.keywords if keyword.arg)
            facts.calls.append(KerasCall(last, len(node.args), given, node.lineno))
    if last == "compile":
        for option in ("run_eagerly", "jit_compile", "steps_per_execution", "auto_scale_loss"):
            if option in keywords:
                facts.features.add(f"compile({option})")
    for option in ("gradient_accumulation_steps", "ema_overwrite_frequency", "use_ema"):
        if option in keywords and ast.unparse(keywords[option]) not in ("None", "False"):
            facts.features.add(f"optimizer({option})")
    if last == "GradientTape" and "persistent" in keywords:
        facts.features.add("a persistent tape")
    for option in ("stateful", "synchronized", "sparse", "ragged"):
        if option in keywords and ast.unparse(keywords[option]) == "True":
            facts.features.add(f"layer({option})")
    if last in vars(keras.callbacks) and last != "Callback":
        facts.features.add(f"callback: {last}")
    if last in vars(keras.optimizers) and last[0].isupper() and last != "Optimizer":
        facts.features.add(f"optimizer: {last}")


_NAMES = {
    "add_loss": "add_loss",
    "from_tensor_slices": "data: tf.data",
    "image_dataset_from_directory": "data: tf.data",
    "text_dataset_from_directory": "data: tf.data",
    "from_generator": "data: tf.data",
    "TextVectorization": "strings into the model",
    "StringLookup": "strings into the model",
    "FeatureSpace": "strings into the model",
    "RaggedTensor": "data: ragged",
    "SparseTensor": "data: sparse",
    "DataLoader": "data: torch DataLoader",
    "enable_lora": "enable_lora",
    "LossScaleOptimizer": "optimizer: LossScaleOptimizer",
    "set_dtype_policy": "mixed precision",
    "set_global_policy": "mixed precision",
    "CTC": "loss: CTC",
    "MirroredStrategy": "a scope of tf.distribute",
    "set_distribution": "jax: keras.distribution",
    "DataParallel": "jax: keras.distribution",
    "ModelParallel": "jax: keras.distribution",
    "stateless_call": "jax: stateless_call",
    "compiled_loss": "compiled_loss, compiled_metrics",
    "compiled_metrics": "compiled_loss, compiled_metrics",
    "SeedGenerator": "a SeedGenerator",
}


def _read_name(name, facts):
    if name.startswith("torch."):
        facts.torch_names.add(name.split(".")[1])
    last = name.rsplit(".", 1)[-1]
    if last in _NAMES:
        facts.features.add(_NAMES[last])


def _read_generators(tree, facts):
    """A function with `yield` whose result goes to `fit` by name or by call."""
    generators = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(inner, ast.Yield) for inner in ast.walk(node))
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func).rsplit(".", 1)[-1] == "fit":
            for argument in node.args[:1]:
                if isinstance(argument, ast.Call) and dotted(argument.func) in generators:
                    facts.features.add("data: a generator")


def _read_scopes(tree, facts):
    """Strategies of `tf.distribute`. A TPU that is only tried may be missing."""
    tried = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "TPUStrategy":
            facts.features.add("a scope of tf.distribute" if id(node) in tried else "TPUs")
        if isinstance(node, ast.With) and any(
            ast.unparse(item.context_expr).endswith(".scope()") for item in node.items
        ):
            facts.features.add("a scope of tf.distribute")
            inner = [call for call in ast.walk(node) if isinstance(call, ast.Call)]
            if any(isinstance(c.func, ast.Attribute) and c.func.attr == "fit" for c in inner):
                facts.features.add("fit inside a scope of tf.distribute")
