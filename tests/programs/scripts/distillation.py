"""Knowledge distillation: `compute_loss` mixes the labels' loss with the teacher's."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(13)
rng = np.random.default_rng(13)


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.teacher = teacher
        self.student = student

    def compile(
        self, optimizer, metrics, student_loss_fn, distillation_loss_fn, alpha=0.1, temperature=3
    ):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = student_loss_fn
        self.distillation_loss_fn = distillation_loss_fn
        self.alpha = alpha
        self.temperature = temperature

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        teacher_pred = self.teacher(x, training=False)
        student_loss = self.student_loss_fn(y, y_pred)
        distillation_loss = self.distillation_loss_fn(
            ops.softmax(teacher_pred / self.temperature, axis=1),
            ops.softmax(y_pred / self.temperature, axis=1),
        ) * (self.temperature**2)
        return self.alpha * student_loss + (1 - self.alpha) * distillation_loss

    def call(self, x):
        return self.student(x)


def classifier(width, name):
    return keras.Sequential(
        [
            keras.Input(shape=(8, 8, 1)),
            layers.Conv2D(width, (3, 3), strides=(2, 2), padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.MaxPooling2D(pool_size=(2, 2), strides=(1, 1), padding="same"),
            layers.Flatten(),
            layers.Dense(4),
        ],
        name=name,
    )


teacher = classifier(16, "teacher")
student = classifier(4, "student")
student_scratch = keras.models.clone_model(student)
x_train = rng.normal(size=(80, 8, 8, 1)).astype("float32")
y_train = (x_train.mean(axis=(1, 2, 3)) * 8 % 4).astype("int64")
x_test, y_test = x_train[:30], y_train[:30]

teacher.compile(
    optimizer=keras.optimizers.Adam(),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
teacher_history = teacher.fit(x_train, y_train, epochs=2, batch_size=24, shuffle=False, verbose=2)
teacher_score = teacher.evaluate(x_test, y_test, verbose=0)

distiller = Distiller(student=student, teacher=teacher)
distiller.compile(
    optimizer=keras.optimizers.Adam(),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
    student_loss_fn=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    distillation_loss_fn=keras.losses.KLDivergence(),
    alpha=0.1,
    temperature=10,
)
history = distiller.fit(x_train, y_train, epochs=2, batch_size=24, shuffle=False, verbose=2)
score = distiller.evaluate(x_test, y_test, verbose=0)

student_scratch.compile(
    optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
)
student_scratch.fit(x_train, y_train, epochs=1, shuffle=False, verbose=0)
scratch_loss = student_scratch.evaluate(x_test, y_test, verbose=0)
print(teacher_score, score, scratch_loss)
