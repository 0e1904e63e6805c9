"""What the clients' data look like: a table, a few numbers, a picture, a checksum."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin.data.clients import ClientData, Examples
from fedkin.data.columns import Column, DateColumn, NumberColumn
from fedkin.data.notes import by_column
from fedkin.data.partition import Array
from fedkin.errors import FedkinError, visible

if TYPE_CHECKING:
    import pandas as pd


def class_counts(data: ClientData) -> Array:
    """Training samples of each client (rows) and class (columns)."""
    assert data.num_classes is not None
    client = np.repeat(np.arange(data.num_clients), data.train.sizes.numpy())
    cells = client * data.num_classes + data.train.y.numpy()
    counts = np.bincount(cells, minlength=data.num_clients * data.num_classes)
    return counts.reshape(data.num_clients, data.num_classes)


def describe(data: ClientData) -> pd.DataFrame:
    """One row per client: sizes, group, and classes with their skew (or the target's mean).

    `skew` is the total variation distance between the client's class shares and everybody's:
    0 is like everybody, 1 shares no class with the others.
    """
    import pandas as pd  # here: importing it takes a second

    columns: dict[str, Any] = {"train": data.train.sizes.numpy()}
    if data.validation is not None:
        columns["validation"] = data.validation.sizes.numpy()
    columns["test"] = data.test.sizes.numpy()
    if data.groups is not None:
        columns["group"] = data.groups.numpy()
    if data.num_classes is None:
        own = [data.train[i][1].numpy() for i in range(data.num_clients)]
        columns["target_mean"] = [y.mean() for y in own]
        columns["target_std"] = [y.std() for y in own]
    else:
        counts = class_counts(data)
        shares = counts / counts.sum(1, keepdims=True)
        top = counts.argmax(1)
        columns["classes"] = (counts > 0).sum(1)
        columns["top_class"] = [data.class_names[c] if data.class_names else str(c) for c in top]
        columns["top_share"] = shares.max(1)
        columns["skew"] = np.abs(shares - counts.sum(0) / counts.sum()).sum(1) / 2
    return pd.DataFrame(columns, index=pd.Index(data.names, name="client"))


def describe_columns(data: ClientData) -> pd.DataFrame | None:
    """What was understood of a table, column by column; None where data are no table."""
    import pandas as pd  # here: importing it takes a second

    if data.preparation.columns is None:
        return None
    said, rows = by_column(data.notes), []
    for column in data.preparation.columns:
        rows.append([column.name, _understood(column), column.width, said.pop(column.name, "")])
    rows += [[name, "not used", 0, why] for name, why in said.items()]
    return pd.DataFrame(rows, columns=["column", "what it is", "inputs", "note"])


def _understood(column: Column) -> str:
    if isinstance(column, NumberColumn):
        return f"number, mean {column.mean:.4g}, deviation {column.deviation:.4g}"
    if isinstance(column, DateColumn):
        return "date: time, season, day of the week" + (", hour" if column.hours else "")
    shown = ", ".join(column.values[:5]) + (", ..." if len(column.values) > 5 else "")
    return f"category of {len(column.values)}: {shown}"


def target_words(data: ClientData) -> str:
    """What is predicted, in a sentence."""
    if data.num_classes is None:
        mean, deviation = data.preparation.target or (0.0, 1.0)
        y = data.train.y.double()
        mean, deviation = float(y.mean()) * deviation + mean, float(y.std()) * deviation
        return f"target: a number, mean {mean:.4g}, deviation {deviation:.4g} in training"
    counts = class_counts(data).sum(0)
    names = data.class_names or [str(c) for c in range(data.num_classes)]
    shares = [
        f"{name} {count / counts.sum():.1%}" for name, count in zip(names, counts, strict=True)
    ]
    more = ", ..." if len(shares) > 8 else ""
    return f"target: {data.num_classes} classes, {', '.join(shares[:8])}{more} in training"


def summary(data: ClientData) -> dict[str, float]:
    """The clients in a few numbers: how many, how large, how skewed."""
    table = describe(data)
    numbers = {
        "clients": data.num_clients,
        "train": int(table.train.sum()),
        "test": int(table.test.sum()),
        "smallest": int(table.train.min()),
        "median": float(table.train.median()),
        "largest": int(table.train.max()),
    }
    if data.num_classes is not None:
        numbers["classes"] = data.num_classes
        numbers["classes_per_client"] = float(table.classes.mean())
        numbers["skew"] = float(table["skew"].mean())
    return numbers


def plot(data: ClientData, path: str | Path) -> None:
    """Draw training samples per client, stacked by class, into a picture file."""
    import matplotlib
    from matplotlib.figure import Figure  # no pyplot: nothing global, no window system
    from matplotlib.ticker import MaxNLocator

    counts = data.train.sizes.numpy()[:, None]
    if data.num_classes is not None:
        counts = class_counts(data)
    few = counts.shape[1] <= 20
    palette = "tab10" if counts.shape[1] <= 10 else "tab20" if few else "turbo"
    colours = matplotlib.colormaps[palette]
    edges = np.arange(data.num_clients + 1) - 0.5
    figure = Figure(figsize=(min(4 + 0.15 * data.num_clients, 16), 4), layout="constrained")
    axes = figure.subplots()
    bottom = np.zeros(data.num_clients)
    for c in range(counts.shape[1]):
        top = bottom + counts[:, c]
        colour = colours(c if few else c / (counts.shape[1] - 1))
        label = data.class_names[c] if data.class_names else str(c)
        # One area per class, not one bar per cell: 500 clients x 100 classes stay quick.
        low, high = (np.append(level, level[-1]) for level in (bottom, top))
        axes.fill_between(edges, low, high, step="post", color=colour, label=label, linewidth=0)
        bottom = top
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="client", ylabel="training samples", xlim=(edges[0], edges[-1]))
    axes.set_ylim(bottom=0)
    if few and data.num_classes is not None:
        legend = axes.legend(title="class", loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
        for text in legend.get_texts():  # names, which may have dollars and any length
            text.set_parse_math(False)
            text.set_text(visible(text.get_text())[:40])
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:  # no such folder, no such picture format
        raise FedkinError(f"the picture '{path}' cannot be written ({error})") from None


def checksum(data: ClientData) -> str:
    """SHA-256 of all clients' samples, names and numbers: equal if and only if the data are."""
    digest = hashlib.sha256(repr((data.num_classes, data.names)).encode())
    for part in (data.train, data.validation, data.test):
        if part is not None:
            _add(digest, part)
    return digest.hexdigest()


def _add(digest: hashlib._Hash, part: Examples) -> None:
    for tensor in (part.offsets, part.x, part.y):
        array = tensor.contiguous().numpy()
        digest.update(repr((array.dtype.str, array.shape)).encode())
        digest.update(array.reshape(-1).data)
