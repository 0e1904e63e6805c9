"""What secure sums cost: the protocol in one process, and three sites as real processes."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import numpy as np

from bench.flower import CONFIG, INPUTS, round_ends, running
from bench.timing import Row
from fedkin.engines.flower.certificates import SiteFiles, make_certificates
from fedkin.engines.flower.identity import identity_of
from fedkin.engines.flower.processes import free_port
from fedkin.engines.secure.collector import Answer, Collector
from fedkin.engines.secure.party import Party
from fedkin.engines.secure.terms import Facts, Terms
from fedkin.errors import FedkinError

NUMBERS = 200_000  # a model of 0.8 MB in single precision
ROUNDS = 10


def secure() -> list[Row]:
    """Sums in one process, then rounds of real sites."""
    rows = [in_process(sites, lost) for sites, lost in ((3, 0), (10, 0), (10, 1), (30, 0), (30, 3))]
    kinds = [(plain, real(not plain)) for plain in (True, False, True, False)]
    for plain in (True, False):
        took = [seconds for kind, found in kinds for seconds in found if kind is plain]
        rows.append({
            "what": f"real, {'plain' if plain else 'secure'}", "sites": 3, "lost": 0,
            "up_mb": float("nan"), "down_mb": float("nan"), "site_s": float("nan"),
            "server_s": float("nan"), "round_s": statistics.median(took),
            "load": os.getloadavg()[0],
        })  # fmt: skip
    return rows


def in_process(sites: int, lost: int) -> Row:
    """One sum: what each site sends and receives beyond its request, and computes."""
    names = [f"site-{i:02d}" for i in range(sites)]
    gone = set(names[:lost])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_certificates(folder, [], names)
        found = {n: identity_of(n, SiteFiles.of(folder / "sites" / n)) for n in names}
        trust = identity_of(names[0], SiteFiles.of(folder / "sites" / names[0]))[1]
    terms = Terms("bench", "method", 1, 1, 0, "00" * 32, min(3, sites), 32, sites)
    rng = np.random.default_rng(0)
    numbers = {n: rng.integers(-(2**40), 2**40, NUMBERS).view(np.uint64) for n in names}
    layout = [("dx", "float32", [NUMBERS])]
    parties = {n: Party(*found[n], terms, layout, numbers[n]) for n in names}
    up, down, spent = (dict.fromkeys(names, 0.0) for _ in range(3))

    def ask(stage: str, questions: Mapping[str, Facts]) -> dict[str, Answer]:
        answers: dict[str, Answer] = {}
        for name, question in questions.items():
            if stage != "keys" and stage != "shares" and name in gone:
                continue
            start = time.process_time()
            said, words = parties[name].answer(stage, question)
            spent[name] += time.process_time() - start
            down[name] += len(json.dumps(question))
            up[name] += len(json.dumps(said)) + (0 if words is None else words.nbytes)
            answers[name] = said, words
        return answers

    start = time.process_time()
    said = ask("keys", {n: {} for n in names})
    keys = {n: a[0] for n, a in said.items() if not isinstance(a, str)}
    total = Collector(terms, trust, ask, lambda name, why: None).total(keys)
    server = time.process_time() - start - sum(spent.values())
    left = [n for n in names if n not in gone]
    assert np.array_equal(total.words, np.sum([numbers[n] for n in left], 0, dtype=np.uint64))
    return {
        "what": "protocol", "sites": sites, "lost": lost,
        "up_mb": statistics.mean(up[n] for n in left) / 1e6,
        "down_mb": statistics.mean(down[n] for n in left) / 1e6,
        "site_s": statistics.mean(spent[n] for n in left), "server_s": server,
        "round_s": float("nan"), "load": os.getloadavg()[0],
    }  # fmt: skip


def real(protected: bool, rounds: int = ROUNDS) -> list[float]:
    """Seconds of the rounds of a run by `fedkin serve` and three `fedkin join`, over TLS."""
    sites = ("a", "b", "c")
    with tempfile.TemporaryDirectory() as name, ExitStack() as processes:
        folder, port = Path(name), free_port()
        make_certificates(folder / "certs", ["127.0.0.1"], sites)
        (folder / "config.toml").write_text(CONFIG.format(method="fedavg", rounds=rounds))
        serve: list[object] = ["serve", "config.toml", "--clients", 3, "--port", port]
        serve += ["--out", "run", "--certs", "certs", *(["--secure-sum"] if protected else [])]
        server = processes.enter_context(running(folder, "server", serve))
        rng = np.random.default_rng(0)
        for site in sites:
            x = rng.normal(size=(400, INPUTS)).astype(np.float32)
            np.savez(folder / f"{site}.npz", x=x, y=rng.integers(0, 10, 400))
            words: list[object] = ["join", "--server", f"127.0.0.1:{port}", "--name", site, "--yes"]
            words += ["--data", f"{site}.npz", "--certs", f"certs/sites/{site}"]
            processes.enter_context(running(folder, site, words))
        ends = round_ends(server, folder / "run" / "metrics.csv", rounds)
        if server.wait() != 0:
            raise FedkinError(f"the run failed: {(folder / 'server.log').read_text().strip()}")
    return [later - earlier for earlier, later in pairwise(ends)][:-1]  # the last is judged too
