"""Image segmentation: a small U-Net with MeanIoU, masks from a PyDataset."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(29)
rng = np.random.default_rng(29)
img_size, num_classes = (16, 16), 3
images = rng.random((37, *img_size, 3))
masks = (images.mean(axis=-1, keepdims=True) * num_classes).astype("uint8")


class Pets(keras.utils.PyDataset):
    def __init__(self, batch_size, images, masks, **kwargs):
        super().__init__(**kwargs)
        self.batch_size = batch_size
        self.images = images
        self.masks = masks

    def __len__(self):
        return -(-len(self.images) // self.batch_size)

    def __getitem__(self, index):
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        return self.images[rows].astype(keras.config.floatx()), self.masks[rows]


def get_model():
    inputs = keras.Input(shape=(*img_size, 3))
    x = layers.Conv2D(8, 3, strides=2, padding="same")(inputs)
    x = layers.GroupNormalization(groups=4)(x)
    x = previous = layers.Activation("relu")(x)
    x = layers.SeparableConv2D(12, 3, padding="same")(x)
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    x = layers.Conv2DTranspose(8, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Concatenate()([x, previous])
    x = layers.UpSampling2D(2)(x)
    outputs = layers.Conv2D(num_classes, 3, activation="softmax", padding="same")(x)
    return keras.Model(inputs, outputs)


model = get_model()
model.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss="sparse_categorical_crossentropy",
    metrics=[keras.metrics.MeanIoU(num_classes, sparse_y_pred=False, name="iou"), "accuracy"],
)
history = model.fit(
    Pets(10, images[:27], masks[:27]),
    validation_data=Pets(10, images[27:], masks[27:]),
    epochs=2,
    shuffle=False,
    verbose=2,
)
val_preds = model.predict(Pets(10, images[27:], masks[27:]), verbose=0)
print(val_preds.shape, history.history["val_iou"])
