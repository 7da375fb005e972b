"""A small convolutional network, or a trained one with a new last layer."""

from __future__ import annotations

import keras

import kerasdist


def build_model(config) -> keras.Model:
    """The untrained network, compiled."""
    image = keras.Input((*config.shape, 3), dtype="uint8", name="image")
    logits = keras.layers.Dense(len(config.class_names), dtype="float32", name="logits")
    outputs = features(config, image) if config.backbone is None else tuned(config, image)
    model = keras.Model(image, logits(outputs), name="images")
    frozen = config.freeze if isinstance(config.freeze, int) else None
    compile_model(model, config, config.learning_rate, frozen or config.epochs)
    return model


def compile_model(model: keras.Model, config, learning_rate: float, epochs: int) -> None:
    """Compiles the network for some epochs."""
    steps = kerasdist.count_steps(config.num_train, config.batch_size, epochs)
    model.compile(
        optimizer=kerasdist.optimizer(config, learning_rate=learning_rate, total_steps=steps),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def tuned(config, image):
    """The features of a backbone. If it is trained, its BatchNorms keep their statistics."""
    network = kerasdist.backbone(config.backbone, config.shape)
    if config.lora is not None:
        add_lora(network, config.lora)
    elif config.is_trained:  # Otherwise all of it trains.
        set_trainable(network, config.freeze is None)
    outputs = network(image)
    return keras.layers.Dropout(config.dropout)(outputs)


def set_trainable(network: keras.Model, value: bool) -> None:
    """Lets a trained network train, or not. Its BatchNorms never do: they keep their statistics.

    (`network(image, training=False)` does not do this: in a functional model, `fit` overrides it.)
    """
    network.trainable = value
    for layer in network.layers:
        if hasattr(layer, "layers"):
            set_trainable(layer, value)
        elif isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False


def add_lora(network: keras.Model, rank: int) -> None:
    """Trains two small matrices beside each kernel. Of the rest, only the biases train."""
    for layer in network.layers:
        if hasattr(layer, "layers"):
            add_lora(layer, rank)
        elif hasattr(layer, "enable_lora"):
            layer.enable_lora(rank)
        else:
            layer.trainable = False


def load_initial(config, model: keras.Model) -> None:
    """Loads the weights to start a new training from."""
    if config.weights is not None:
        kerasdist.load_backbone(model.get_layer("backbone"), config.backbone, config.weights)


def build_stages(config):
    """After `freeze` epochs, all layers train at a lower rate."""
    if not isinstance(config.freeze, int):
        return []

    def unfreeze(model: keras.Model) -> None:
        set_trainable(model.get_layer("backbone"), True)
        rate = config.learning_rate * config.unfreeze_rate
        compile_model(model, config, rate, config.epochs - config.freeze)

    return [(config.freeze, unfreeze)]


def features(config, image):
    """Convolutions that halve the image and double the filters."""
    layers = keras.layers
    outputs = layers.Rescaling(1 / 127.5, offset=-1)(image)
    side, filters = min(config.shape), config.width
    if side >= 64:  # A large image is halved at once, which takes a quarter of the time.
        outputs = layers.Conv2D(filters, 5, strides=2, padding="same", use_bias=False)(outputs)
        side //= 2
    else:
        outputs = layers.Conv2D(filters, 3, padding="same", use_bias=False)(outputs)
    while True:
        outputs = layers.BatchNormalization(momentum=0.9)(outputs)
        outputs = layers.ReLU()(outputs)
        outputs = layers.MaxPooling2D(padding="same")(outputs)
        side, filters = side // 2, 2 * filters
        if side < 4 or filters > 8 * config.width:
            break
        outputs = layers.Conv2D(filters, 3, padding="same", use_bias=False)(outputs)
    outputs = layers.GlobalMaxPooling2D()(outputs)
    return layers.Dropout(config.dropout)(outputs)
