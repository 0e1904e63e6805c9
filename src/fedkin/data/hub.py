"""Hugging Face data sets by name, when the `hf` extra is installed."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin.data.config import DataConfig
from fedkin.data.partition import Array
from fedkin.data.pool import Pool, pixels
from fedkin.data.tables import TARGET_NAMES, table_pool
from fedkin.errors import FedkinError, unknown


def read_hub(config: DataConfig, rng: np.random.Generator) -> Pool:
    """The splits train and test of a data set on the hub: images with labels, or a table.

    A table's splits are put together: every client's own rows are split.
    """
    if config.path is None:
        raise FedkinError("data 'hf' need the data set's name on the hub: set path")
    try:
        import datasets
    except ImportError:
        raise FedkinError(
            "Hugging Face data sets need the package 'datasets': pip install 'fedkin[hf]'"
        ) from None
    try:
        # the newest revision, as its user asked for; what was read is in the run's checksum
        splits = datasets.load_dataset(config.path, config.subset)  # nosec B615
    except Exception as error:  # the package has no common error class
        reason = str(error).strip().split("\n")[0]
        raise FedkinError(
            f"data set '{config.path}' could not be read from the hub ({reason})"
        ) from None
    train = splits["train"] if "train" in splits else next(iter(splits.values()))
    features = train.features
    image = next((c for c, kind in features.items() if type(kind).__name__ == "Image"), None)
    if image is None:
        import pandas as pd

        frame = pd.concat([part.to_pandas() for part in splits.values()])
        return table_pool(frame, config, f"data set '{config.path}'")
    target = config.target_column or next((c for c in TARGET_NAMES if c in features), None)
    if target is None or target not in features:
        raise unknown("target column", target, features)
    names = tuple(getattr(features[target], "names", None) or ())
    x, y = _images(train, image, target)
    pool = Pool(x, y, len(names) or int(y.max()) + 1, names)
    if config.client_column is not None:
        if config.client_column not in features:
            raise unknown("client column", config.client_column, features)
        clients, numbers = np.unique(train[config.client_column], return_inverse=True)
        pool.clients = numbers.astype(np.int64)
        pool.client_names = tuple(str(c) for c in clients)
    elif "test" in splits:
        pool.test = _images(splits["test"], image, target)
    return pool


def _images(part: Any, image: str, target: str) -> tuple[Array, Array]:
    arrays = [np.asarray(picture) for picture in part[image]]
    if len({a.shape for a in arrays}) > 1 or not arrays or arrays[0].dtype != np.uint8:
        raise FedkinError("the data set's images are not all of one size and kind")
    return pixels(np.stack(arrays)), np.asarray(part[target], dtype=np.int64)
