"""The networks of `keras.applications` by name, and the image size that each was made for."""

from __future__ import annotations

from typing import NamedTuple

from kerasdist.errors import KerasdistError, closest


class Application(NamedTuple):
    """A network: its class and module in `keras.applications`, its image size, the smallest."""

    kind: str
    module: str
    size: int = 224
    smallest: int = 32


_EFFICIENT = {
    "b0": 224,
    "b1": 240,
    "b2": 260,
    "b3": 300,
    "b4": 380,
    "b5": 456,
    "b6": 528,
    "b7": 600,
}
_EFFICIENT_V2 = {"b0": 224, "b1": 240, "b2": 260, "b3": 300, "s": 384, "m": 480, "l": 480}

APPLICATIONS: dict[str, Application] = {
    "mobilenet": Application("MobileNet", "mobilenet"),
    "mobilenet_v2": Application("MobileNetV2", "mobilenet_v2"),
    "mobilenet_v3_small": Application("MobileNetV3Small", "mobilenet_v3"),
    "mobilenet_v3_large": Application("MobileNetV3Large", "mobilenet_v3"),
    **{
        f"efficientnet_{k}": Application(f"EfficientNet{k.upper()}", "efficientnet", size)
        for k, size in _EFFICIENT.items()
    },
    **{
        f"efficientnet_v2_{k}": Application(f"EfficientNetV2{k.upper()}", "efficientnet_v2", size)
        for k, size in _EFFICIENT_V2.items()
    },
    **{f"resnet{n}": Application(f"ResNet{n}", "resnet") for n in (50, 101, 152)},
    **{f"resnet{n}_v2": Application(f"ResNet{n}V2", "resnet_v2") for n in (50, 101, 152)},
    **{f"densenet{n}": Application(f"DenseNet{n}", "densenet") for n in (121, 169, 201)},
    **{f"vgg{n}": Application(f"VGG{n}", f"vgg{n}") for n in (16, 19)},
    **{
        f"convnext_{k}": Application(f"ConvNeXt{name}", "convnext")
        for k, name in {
            "tiny": "Tiny",
            "small": "Small",
            "base": "Base",
            "large": "Large",
            "xlarge": "XLarge",
        }.items()
    },
    "inception_v3": Application("InceptionV3", "inception_v3", 299, 75),
    "inception_resnet_v2": Application("InceptionResNetV2", "inception_resnet_v2", 299, 75),
    "xception": Application("Xception", "xception", 299, 71),
    "nasnet_mobile": Application("NASNetMobile", "nasnet"),
    "nasnet_large": Application("NASNetLarge", "nasnet", 331),
}


def application(name: str) -> Application:
    """The network of a name."""
    if name not in APPLICATIONS:
        raise KerasdistError(
            f"Received the backbone {name!r}. Expected a network of keras.applications: "
            f"{', '.join(sorted(APPLICATIONS))}.{closest(name, APPLICATIONS)} Choose one of them."
        )
    return APPLICATIONS[name]


def backbone_size(name: str, wanted: int | None = None) -> int:
    """The side of the images for a backbone. Does not import TensorFlow.

    Args:
        name: A network of `keras.applications`, such as "mobilenet_v3_small".
        wanted: Another side. It is checked.

    Returns:
        The side that was wanted, or the one that the network was made for.

    Raises:
        KerasdistError: If the network does not exist, or does not take images of this size.

    Example:
        >>> import kerasdist
        >>> kerasdist.backbone_size("efficientnet_b1")
        240
    """
    found = application(name)
    if wanted is not None and wanted < found.smallest:
        raise KerasdistError(
            f"Received images of {wanted} x {wanted} for the backbone {name!r}. Expected at least "
            f"{found.smallest} x {found.smallest}. Give a larger `image_size`."
        )
    return found.size if wanted is None else wanted
