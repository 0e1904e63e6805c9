"""From a pool of samples to clients: divide, split, shift, scale."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedkin.data import partition
from fedkin.data.clients import ClientData, Examples, Truth
from fedkin.data.config import DataConfig
from fedkin.data.partition import Array, Rows
from fedkin.data.pool import Pool
from fedkin.data.preparation import Preparation, learn_target
from fedkin.data.shift import permute_labels, rotate, shift_groups
from fedkin.data.split import assign_folds, assign_test, hold_out, take
from fedkin.errors import FedkinError

# 0 is the generators' own stream
PARTITION, TEST, VALIDATION, CAPS, SHIFT, UNSEEN, COMMON = range(1, 8)
TABLES = ("csv", "parquet", "npz")


def stream(seed: int, purpose: int) -> np.random.Generator:
    """Random numbers of their own for each purpose: a new test split keeps the partition."""
    if seed < 0:
        raise FedkinError(f"seed is {seed}; choose 0 or more")
    return np.random.default_rng([seed, purpose])


def streams(
    seed: int, purpose: int, names: tuple[str, ...], own: bool
) -> list[np.random.Generator]:
    """Random numbers for each client: one stream for all, or its `own` from (seed, name).

    With its own a client's rows are divided alike whoever else is there, and also by a site
    that has nothing but its own rows.
    """
    if not own:
        return [stream(seed, purpose)] * len(names)
    stream(seed, purpose)
    return [np.random.default_rng([seed, purpose, *name.encode()]) for name in names]


def build(pool: Pool, config: DataConfig, seed: int) -> ClientData:
    """Clients with training, validation and test examples, the same for the same seed.

    With an official test set (and `official_test`) the partition divides the training
    samples, and each client's test samples come from the official ones in the same class
    shares, so that a personal model is judged on its own client's distribution;
    `global_test` keeps the whole (neither turned nor relabelled). Otherwise each client's
    own samples are split, with the official test samples among them or without.
    """
    if pool.test is not None and config.official_test is not True:
        pool = _pooled(pool) if config.official_test is False else replace(pool, test=None)
    notes = list(pool.notes)
    strata = pool.y if pool.num_classes is not None else np.zeros(len(pool.y), dtype=np.int64)
    parts, names, groups = _partition(pool, config, seed, notes)

    seen, unseen = _unseen(len(parts), config.unseen, seed)
    # clients that the data name; others are numbers that a generator or a partition gave them
    own = config.name in TABLES and config.partition in (None, "column")
    own = own and pool.clients is not None

    rng = stream(seed, TEST)
    if config.folds is not None:
        train, test = _fold(pool, parts, strata, config, rng)
        test_strata = strata
    elif pool.test is None:
        assert config.test_fraction is not None
        rngs = streams(seed, TEST, names, own)
        train, test = hold_out(parts, strata, config.test_fraction, rngs, pool.people, pool.times)
        test_strata = strata
    else:
        train = parts
        test_strata = pool.test[1] if pool.num_classes is not None else np.zeros(len(pool.test[1]))
        test = _official(pool, parts, strata, test_strata.astype(np.int64), config, rng)

    rngs = streams(seed, VALIDATION, names, own)
    share = config.validation_fraction
    train, validation = hold_out(train, strata, share, rngs, pool.people, pool.times)
    rngs = streams(seed, CAPS, names, own)
    train = _capped(train, strata, config.train_per_client, rngs)
    test = _capped(test, test_strata, config.test_per_client, rngs)
    if config.common_test:
        rng = stream(seed, COMMON) if own else rngs[0]
        everybodys = np.unique(np.concatenate(test))
        common = rng.permutation(everybodys)[: config.common_test]
        test = [np.union1d(rows, common) for rows in test]

    untested = [name for name, rows in zip(names, test, strict=True) if not len(rows)]
    if untested and config.test_fraction and not config.folds:
        notes.append(f"{len(untested)} clients have no test samples (first: '{untested[0]}')")

    x, columns = pool.x, None
    if callable(x):
        x, columns, more = x(np.concatenate([train[i] for i in seen]))
        notes += more
    test_x, test_y = pool.test if pool.test is not None else (x, pool.y)
    whole = _stay_whole(x, config)
    sets = [
        _gather(x, pool.y, train, whole),
        _gather(x, pool.y, validation, whole),
        _gather(test_x, test_y, test, whole),
        _gather(test_x, test_y, [np.arange(len(test_y))] if pool.test is not None else [], whole),
    ]
    groups = _shift(sets[:3], [train, validation, test], pool.num_classes, config, seed, groups)
    preparation = Preparation(columns, x.dtype == np.uint8, unit_norm=config.unit_norm)
    learnt = np.isin(_owners(train), seen) if unseen else slice(None)
    if config.standardise and columns is None:  # tables were standardised, numbers only, above
        preparation.learn_scale(sets[0][0][learnt])
    if config.standardise_target and pool.num_classes is None:
        preparation.target = pool.target_scale or learn_target(sets[0][1][learnt])
    for values, _ in sets:
        preparation.scale(values)
    if pool.num_classes is None:
        sets = [(values, preparation.scaled_target(y)) for values, y in sets]
    examples = [
        _examples(s, rows) for s, rows in zip(sets[:3], (train, validation, test), strict=True)
    ]
    everybody = ClientData(
        train=examples[0],
        validation=examples[1] if config.validation_fraction > 0 else None,
        test=examples[2],
        num_classes=pool.num_classes,
        names=names,
        class_names=pool.class_names,
        groups=None if groups is None else torch.from_numpy(groups),
        notes=tuple(notes),
        global_test=_tensors(*sets[3]) if pool.test is not None else None,
        preparation=preparation,
        truth=_truth_of(pool, config, names),
    )
    return replace(everybody.only(seen), newcomers=everybody.only(unseen)) if unseen else everybody


def _fold(
    pool: Pool, parts: list[Rows], strata: Rows, config: DataConfig, rng: np.random.Generator
) -> tuple[list[Rows], list[Rows]]:
    """(kept, held out) rows of every client in one of the folds."""
    if config.fold is None:
        raise FedkinError(
            f"test = {config.test} is {config.folds} splits and not one: `fedkin run` and `fedkin "
            "compare` train on each and pool their scores; or choose one, as in fold = 1"
        )
    if pool.test is not None:
        raise FedkinError(
            f"the data '{config.name}' have test samples of their own, and test = {config.test} "
            "holds out training samples: set official_test to false or leave-out, or leave test out"
        )
    assert config.folds is not None
    held = assign_folds(parts, strata, config.folds, rng, pool.people) == config.fold - 1
    return [rows[~held[rows]] for rows in parts], [rows[held[rows]] for rows in parts]


def _unseen(count: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """The clients that train, and those kept out: at least one, where a share is."""
    if not share:
        return list(range(count)), []
    kept_out = max(1, round(share * count))
    if count - kept_out < 1:
        raise FedkinError(f"unseen = {share:g} of {count} clients leaves nobody to train; lower it")
    chosen = set(stream(seed, UNSEEN).choice(count, kept_out, replace=False).tolist())
    return [i for i in range(count) if i not in chosen], sorted(chosen)


def _owners(parts: list[Rows]) -> Rows:
    """The client of each row, all clients' rows one after the other."""
    return np.repeat(np.arange(len(parts)), [len(rows) for rows in parts])


def _truth_of(pool: Pool, config: DataConfig, names: tuple[str, ...]) -> Truth | None:
    """The true models of the clients by name; none where clients or samples were changed."""
    scaled = config.standardise or config.standardise_target or config.unit_norm
    changed = scaled or (config.label_groups or 1) > 1
    if pool.truth is None or changed or config.partition not in (None, "column"):
        return None
    place = {name: i for i, name in enumerate(pool.client_names)}
    return Truth(pool.truth.betas[[place[name] for name in names]], pool.truth.w)


def _pooled(pool: Pool) -> Pool:
    assert pool.test is not None
    assert not callable(pool.x)  # tables come without an official test set
    clients = pool.clients
    if clients is not None:
        missing = np.full(len(pool.test[1]), -1)
        clients = np.concatenate(
            [clients, pool.test_clients if pool.test_clients is not None else missing]
        )
    return Pool(
        np.concatenate([pool.x, pool.test[0]]),
        np.concatenate([pool.y, pool.test[1]]),
        pool.num_classes,
        pool.class_names,
        clients,
        pool.client_names,
        pool.groups,
        notes=pool.notes,
    )


def _partition(
    pool: Pool, config: DataConfig, seed: int, notes: list[str]
) -> tuple[list[Rows], tuple[str, ...], Rows | None]:
    """Each client's rows, name and planted group."""
    scheme = config.partition
    if scheme is None:
        scheme = "column" if pool.clients is not None else "dirichlet"
        if scheme == "dirichlet" and pool.num_classes is None:
            scheme = "iid"
    if scheme == "column":
        return _by_column(pool, config, notes)
    if pool.num_classes is None and scheme in ("dirichlet", "classes", "shards"):
        raise FedkinError(
            f"partition '{scheme}' needs classes but the target is a number; "
            "use iid, powerlaw or column"
        )
    n, rng, least = config.num_clients or 20, stream(seed, PARTITION), config.min_per_client
    match scheme:
        case "iid":
            parts = partition.iid(pool.y, n, rng)
        case "dirichlet":
            parts = partition.dirichlet(pool.y, n, config.alpha, rng, least)
        case "classes":
            power, ring = config.size_power or 0.0, config.class_order == "ring"
            parts = partition.by_classes(
                pool.y, n, config.classes_per_client, rng, power, ring, config.size_range
            )
        case "shards":
            parts = partition.shards(pool.y, n, config.shards_per_client, rng)
        case "powerlaw":
            power = 1.0 if config.size_power is None else config.size_power
            parts = partition.powerlaw(pool.y, n, power, rng, least)
    for client, rows in enumerate(parts):
        if len(rows) < (least or 1):
            raise FedkinError(
                f"client '{client}' has {len(rows)} samples, fewer than {least or 1}; "
                "lower num_clients or min_per_client"
            )
    return parts, tuple(str(i) for i in range(n)), None


def _by_column(
    pool: Pool, config: DataConfig, notes: list[str]
) -> tuple[list[Rows], tuple[str, ...], Rows | None]:
    if pool.clients is None:
        raise FedkinError(
            f"partition 'column' needs to know each sample's client but the data '{config.name}' "
            "do not say; choose another partition"
        )
    names = pool.client_names
    if config.num_clients not in (None, len(names)):
        raise FedkinError(
            f"num_clients is {config.num_clients} but the data have {len(names)} clients; "
            "leave num_clients out"
        )
    parts = partition.by_column(pool.clients, len(names))
    small = [i for i, rows in enumerate(parts) if len(rows) < (config.min_per_client or 0)]
    if len(small) == len(parts):
        raise FedkinError(f"no client has {config.min_per_client} samples; lower min_per_client")
    if small:
        notes.append(
            f"{len(small)} clients with fewer than {config.min_per_client} samples were left out: "
            + ", ".join(names[i] for i in small[:5])
            + (", ..." if len(small) > 5 else "")
        )
    kept = np.setdiff1d(np.arange(len(names)), small)
    groups = None if pool.groups is None else pool.groups[kept]
    return [parts[i] for i in kept], tuple(names[i] for i in kept), groups


def _official(
    pool: Pool,
    parts: list[Rows],
    strata: Array,
    test_strata: Rows,
    config: DataConfig,
    rng: np.random.Generator,
) -> list[Rows]:
    own = config.partition in (None, "column") and pool.test_clients is not None
    if not own:
        return assign_test(parts, strata, test_strata, rng)
    assert pool.test_clients is not None
    assert pool.clients is not None
    # Clients may have been left out above: find the remaining ones' numbers by their rows.
    theirs = partition.by_column(pool.test_clients, len(pool.client_names))
    return [theirs[pool.clients[rows[0]]] if len(rows) else rows for rows in parts]


def _capped(
    parts: list[Rows], labels: Array, cap: int | None, rngs: list[np.random.Generator]
) -> list[Rows]:
    if cap is None:
        return parts
    return [rows[take(labels[rows], cap, rng)] for rows, rng in zip(parts, rngs, strict=True)]


def _stay_whole(x: Array, config: DataConfig) -> bool:
    """Whether inputs stay whole numbers, as embeddings take them: neither pixels nor scaled."""
    changed = config.standardise or config.unit_norm or (config.rotation_groups or 1) > 1
    return x.dtype in (np.int32, np.int64) and not changed


def _gather(x: Array, y: Array, parts: list[Rows], whole: bool) -> tuple[Array, Array]:
    """The rows of all clients one after the other, as float32 (pixels in [0, 1]) or int64."""
    rows = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    if whole:
        return x[rows].astype(np.int64), y[rows]
    values = x[rows].astype(np.float32)
    if x.dtype == np.uint8:
        values /= 255
    return values, y[rows]


def _shift(
    sets: list[tuple[Array, Array]],
    parts: list[list[Rows]],
    num_classes: int | None,
    config: DataConfig,
    seed: int,
    groups: Rows | None,
) -> Rows | None:
    """Turn images and permute labels of the clients' groups, in place; the groups, if any."""
    turns, permutations = config.rotation_groups or 1, config.label_groups or 1
    if turns * permutations == 1:
        return groups
    turn, permutation, joint = shift_groups(len(parts[0]), turns, permutations)
    maps = permute_labels(num_classes, permutations, stream(seed, SHIFT))
    for (x, y), rows in zip(sets, parts, strict=True):
        ends = np.cumsum([len(r) for r in rows])
        for client, end in enumerate(ends):
            own = slice(end - len(rows[client]), end)
            x[own] = rotate(x[own], 360.0 * turn[client] / turns)
            if permutation[client]:
                y[own] = maps[permutation[client]][y[own]]
    return joint


def _tensors(x: Array, y: Array) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(x), torch.from_numpy(y)


def _examples(values: tuple[Array, Array], parts: list[Rows]) -> Examples:
    offsets = torch.tensor([0] + [len(rows) for rows in parts]).cumsum(0)
    return Examples(*_tensors(*values), offsets)
