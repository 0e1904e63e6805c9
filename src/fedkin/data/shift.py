"""Planted differences between groups of clients: turned images, permuted labels."""

from __future__ import annotations

import math

import numpy as np

from fedkin.data.partition import Array, Rows
from fedkin.errors import FedkinError


def shift_groups(num_clients: int, turns: int, permutations: int) -> tuple[Rows, Rows, Rows]:
    """Each client's rotation group, label group and joint group, in blocks of equal size."""
    if turns * permutations > num_clients:
        raise FedkinError(
            f"{turns * permutations} groups need as many clients but there are {num_clients}; "
            "raise num_clients or lower rotation_groups or label_groups"
        )
    joint = np.arange(num_clients) * (turns * permutations) // num_clients
    return joint // permutations, joint % permutations, joint


def rotate(images: Array, degrees: float) -> Array:
    """Images [n, c, h, w] turned counter-clockwise: exactly by right angles, else interpolated."""
    if degrees == 0:
        return images
    if images.ndim != 4 or images.shape[2] != images.shape[3]:
        raise FedkinError(
            f"rotation_groups needs square images but a sample has shape {images.shape[1:]}; "
            "set rotation_groups to 1"
        )
    if degrees % 90 == 0:
        return np.rot90(images, int(degrees // 90), axes=(2, 3))
    from scipy import ndimage  # here: importing it takes a fifth of a second

    turned: Array = ndimage.rotate(images, degrees, axes=(3, 2), reshape=False, order=1)
    return turned


def permute_labels(
    num_classes: int | None, permutations: int, rng: np.random.Generator
) -> list[Rows]:
    """Different relabellings of the classes, one per group; the first leaves them as they are."""
    if permutations == 1:
        return [np.arange(num_classes or 0)]
    if num_classes is None:
        raise FedkinError(
            "label_groups permutes classes but the target is a number; set label_groups to 1"
        )
    # Beyond 12! no user's number of groups is reached: spare the factorial.
    if permutations > math.factorial(min(num_classes, 12)):
        raise FedkinError(
            f"{num_classes} classes do not have {permutations} different orders; lower label_groups"
        )
    maps = [np.arange(num_classes)]
    while len(maps) < permutations:
        drawn = rng.permutation(num_classes)
        if not any((drawn == known).all() for known in maps):
            maps.append(drawn)
    return maps
