"""How many shards a batch is cut into, and on how many devices they run."""

from __future__ import annotations

import numbers

from kerasdist.errors import KerasdistError


def resolve_shards(shards: int | None, num_replicas: int, deterministic: bool) -> int:
    """The number of shards: as given, or one per replica (at least 4 if deterministic)."""
    if shards is None:
        if not deterministic:
            return num_replicas
        shards = num_replicas
        while shards < 4:
            shards *= 2
        return shards
    if not isinstance(shards, (int, numbers.Integral)) or isinstance(shards, bool) or shards < 1:
        raise KerasdistError(
            f"Received `shards={shards!r}`. Expected a whole number of at least 1. Use a multiple "
            f"of the number of devices, for example `shards={num_replicas}`."
        )
    if shards % num_replicas:
        fitting = [n for n in range(1, shards + 1) if shards % n == 0]
        raise KerasdistError(
            f"Received `shards={shards}` on {num_replicas} devices. Expected a multiple of the "
            f"number of devices. {shards} shards run on {_listed(fitting)} devices; or use "
            f"`shards={num_replicas * -(-shards // num_replicas)}`."
        )
    if deterministic and num_replicas > 1 and not _is_power_of_two(shards // num_replicas):
        fitting = [
            n
            for n in range(1, shards + 1)
            if shards % n == 0 and (n == 1 or _is_power_of_two(shards // n))
        ]
        raise KerasdistError(
            f"Received `shards={shards}` on {num_replicas} devices with `deterministic=True`. "
            "Expected shards / devices to be a power of two, or one device: only then is the order "
            f"of additions the same. {shards} shards run on {_listed(fitting)} devices."
        )
    return shards


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _listed(numbers: list[int]) -> str:
    return ", ".join(str(n) for n in numbers)
