"""What is expected of each program of the corpus: its reference, and where it cannot run."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Program:
    """One script of `scripts/`.

    Attributes:
        name: its file without ".py".
        compares_with: "keras": no draws and nothing by shard, so kerasdist must give Keras's own
            result on any number of devices. "one device": BatchNorm by shard or random draws, so
            the reference is kerasdist on one device with the same shards.
        refused: a word of the message with which kerasdist may refuse it; otherwise it must run.
        float64: whether Keras can run it in float64.
        tolerance: the largest difference, relative to max(1, |value|).
        keras_hub: whether it needs KerasHub.
        torch: whether it needs PyTorch.
        quick: whether the quick tests run it.
        own_step: whether it overrides `train_step`.
        why: what of it depends on the shards, for "one device", or needs the tolerance.
    """

    name: str
    compares_with: Literal["keras", "one device"] = "keras"
    refused: str = ""
    float64: bool = True
    tolerance: float = 1e-9
    keras_hub: bool = False
    torch: bool = False
    quick: bool = False
    own_step: bool = False
    why: str = ""

    @property
    def floatx(self):
        return "float64" if self.float64 else "float32"


DRAWS = "random draws in the step"
_PROGRAMS = [
    Program("adversarial_training", own_step=True),
    Program("anomaly_detection"),
    Program("barlow_twins", own_step=True),
    Program("batch_norm_cnn", "one device", why="BatchNorm by shard", quick=True),
    Program("batch_norm_synchronized"),
    Program("bidirectional_masking"),
    Program("callbacks"),
    Program("class_and_sample_weights"),
    Program("clipped_step", own_step=True, quick=True),
    Program("conditional_gan", "one device", own_step=True, why=DRAWS),
    Program("contrastive_views", own_step=True),
    Program("convolutional_lstm"),
    Program("ctc", tolerance=1e-6, why="Keras computes the CTC loss in float32"),
    Program("custom_loss"),
    Program("custom_metric"),
    Program("deep_and_cross"),
    Program("denoising_autoencoder"),
    Program("diffusion", "one device", own_step=True, why=DRAWS),
    Program("distillation"),
    Program("endpoint_layer"),
    Program("focal_loss"),
    Program("forecasting"),
    Program("functional", quick=True),
    Program("gan", "one device", own_step=True, why=DRAWS),
    Program("gan_loop", quick=True),
    Program("generator_data"),
    Program("gradient_accumulation", refused="gradient_accumulation_steps"),
    Program("graph_network"),
    Program("hub_causal_lm", keras_hub=True),
    Program(
        "hub_causal_lm_text",
        keras_hub=True,
        tolerance=1e-6,
        why="KerasHub computes softmax in float32, and Adam enlarges gradients that are rounding",
    ),
    Program("hub_masked_lm", keras_hub=True),
    Program("hub_text_classifier", keras_hub=True),
    Program("image_augmentation", "one device", why=DRAWS),
    Program("learning_rate_schedules"),
    Program("low_rank_adaptation", tolerance=1e-6, why="Keras multiplies LoRA in float32"),
    Program("masked_language_model", own_step=True),
    Program("meta_learning", own_step=True),
    # A batch is `(2, classes, …)`: its first axis is not the examples.
    Program("metric_learning", own_step=True),
    Program("miniature_gpt"),
    Program("missing_values"),
    # In bfloat16 a last bit of a sum is 1/256 of the value.
    Program("mixed_precision", "one device", float64=False, tolerance=1e-2, why="bfloat16"),
    Program("mixture_density"),
    Program("mixup"),
    Program("momentum_encoder", own_step=True),
    Program("multi_input"),
    Program("multi_output"),
    Program("normalizing_flow", own_step=True),
    Program("optimizer_averages"),
    Program("physics_informed", own_step=True),
    Program("policy_gradient"),
    Program("py_dataset"),
    Program("quantile_regression"),
    Program("segmentation"),
    Program("sequence_to_sequence"),
    Program("sequential"),
    Program("sharpness_aware", own_step=True),
    Program("siamese_triplet", own_step=True),
    Program("skip_gram"),
    Program("staged_freezing"),
    Program("stateful_rnn", refused="stateful"),
    Program("style_transfer", own_step=True),
    Program("subclassed"),
    Program("supervised_contrastive"),
    Program("tabular_dataset_map"),
    Program("tabular_inside_model"),
    Program("text_vectorization", quick=True),
    Program("torch_loader", torch=True),
    # Keras 3.15 calls the base with training=True all the same.
    Program("transfer_learning", "one device", why="BatchNorm by shard"),
    Program("transformer_classifier", "one device", why=DRAWS),
    Program("two_tower_retrieval"),
    Program("variational_autoencoder", "one device", own_step=True, why=DRAWS),
    Program("variational_autoencoder_layer", "one device", why=DRAWS),
    Program("vector_quantized_autoencoder", own_step=True),
    Program("vision_transformer"),
    Program("wasserstein_gan", "one device", own_step=True, why=DRAWS),
    Program("wasserstein_gan_noise_data", own_step=True, quick=True),
    Program("wide_and_deep"),
]
PROGRAMS = {program.name: program for program in _PROGRAMS}
QUICK = [program.name for program in _PROGRAMS if program.quick]
