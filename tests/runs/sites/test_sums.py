"""Runs whose server sees sums over sites only: the same models, and no site's answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedkin.core import rng
from fedkin.engines.flower.certificates import ServerFiles, SiteFiles, make_certificates
from fedkin.engines.flower.engine import Flower, SiteRequest
from fedkin.engines.flower.exchange import KnownSite, WaitPolicy
from fedkin.engines.flower.link import Link
from fedkin.engines.flower.processes import free_port
from fedkin.engines.flower.summing import SecureFlower
from fedkin.engines.wire import Message
from fedkin.errors import FedkinError
from fedkin.methods.registry import all_methods
from fedkin.runs.checks import usual
from fedkin.runs.evaluation import score
from fedkin.runs.sites.plan import Plan, read_serve_config
from fedkin.runs.sites.served import make_trainer
from fedkin.runs.sites.serving import Wanted, prepare
from fedkin.runs.sites.site import SiteWorker
from fedkin.runs.sites.sums import AT_LEAST, needs_rows, secure_site, secure_sums
from fedkin.runs.training import Trainer
from fedkin.tensors import read_tensors
from tests.helpers import assert_states_close
from tests.runs.sites.mortal_site import live_until
from tests.runs.sites.no_network import NoNetwork
from tests.runs.sites.world import (
    Process,
    all_ended,
    fedkin,
    site,
    write_config,
    write_data,
)

NAMES = ("a", "b", "c", "d")
ROWS = "sends single sites'"
GROUPS = "asks groups of sites"
# the methods that are not served by sums, and why
REFUSED = {
    "cfl": ROWS, "fedfomo": ROWS, "ifca": ROWS, "perm": ROWS, "perm-models": ROWS,
    "perm-printed": ROWS, "perm-two-stage": ROWS,
    "pfedhn": ROWS, "pfedkm": ROWS, "submodel": GROUPS, "submodel-local": GROUPS,
    "submodel-ditto": GROUPS, "submodel-perm": GROUPS, "submodel-perm-printed": GROUPS,
    "submodel-perm-two-stage": GROUPS,
    "submodel-masks": "gives each site its own share", "acd": ROWS, "scd": ROWS, "svrcd": ROWS,
    "asvrcd": ROWS, "ascd": ROWS,
}  # fmt: skip


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    make_certificates(folder, ["127.0.0.1"], list(NAMES))
    return folder


class Unreliable(NoNetwork):
    """A transport that keeps what sites say; `lost` are silent from a stage of a round on."""

    def __init__(self, sites: dict[str, SiteWorker], lost: dict[tuple[int, str], str]) -> None:
        super().__init__(sites)
        self.lost, self.heard = lost, list[tuple[str, dict[str, Tensor], dict[str, Any]]]()

    def exchange(
        self, requests: Sequence[SiteRequest], everyone: bool = False
    ) -> dict[int, Message | str]:
        found: dict[int, Message | str] = {}
        for i, request in enumerate(requests):
            when = (request.facts["place"][1], request.facts.get("stage", ""))
            if self.lost.get(when) == request.site:
                continue
            try:
                (found[i],) = super().exchange([request]).values()
            except FedkinError as error:
                found[i] = {}, {"error": str(error)}
            if not isinstance(found[i], str):
                tensors, facts = found[i]
                self.heard.append((request.site, tensors, facts))  # type: ignore[arg-type]
        return found


class Deployed(Trainer):
    """Whose noise, where there is any, nobody can compute again, as that of a served run."""

    secret_noise = True


def secured(
    config_path: Path, files: dict[str, Path], folder: Path, certs: Path, at_least: int = AT_LEAST,
    lost: dict[tuple[int, str], str] | None = None, said: list[str] | None = None,
    protected: bool = True,
) -> tuple[Trainer, Unreliable]:  # fmt: skip
    """A run of secure sums, or the same without, with everything but the network."""
    config, agreement = read_serve_config(config_path)
    plan = Plan.new("run", len(files), agreement, WaitPolicy())
    pem = (certs / "authority.pem").read_text()
    if protected:
        plan = replace(plan, secure={"at_least": at_least, "authority": pem})
    sites = {
        n: SiteWorker(
            n, path, folder / n, say=print,
            secure=secure_site(n, SiteFiles.of(certs / "sites" / n), None),
        )
        for n, path in files.items()
    }  # fmt: skip
    setup = plan.setup(config)
    hello = {"kind": "hello", "experiment": "e", "setup": setup}
    plan = plan.with_sites({n: KnownSite(s.answer({}, hello)[1], 0) for n, s in sites.items()})
    problem = config.make_problem(plan.data(config.data))
    transport = Unreliable(sites, lost or {})
    samples = problem.train.sizes
    secure = secure_sums(plan.secure, setup, samples) if plan.secure else None
    warn = print if said is None else said.append

    def port(contender: str) -> Flower:
        about = (transport, plan.names, "e", contender, 1, problem.device, warn)
        return SecureFlower(secure, *about) if secure else Flower(*about)

    trainer = Deployed(problem, config.make_method(), config.settings(), None, port)
    trainer.run()
    return trainer, transport


def same(one: Trainer, other: Trainer, tolerance: float) -> None:
    ours, theirs = (each.contenders["method"].state for each in (one, other))
    assert_states_close(ours, theirs, tolerance)


@pytest.mark.parametrize(
    ("method", "options"),
    [("fedavg", {"weighted": "true", "baseline": True}), ("scaffold", {}),
     *(pytest.param(name, {}, marks=pytest.mark.slow)
       for name in ("fedbn", "ditto", "pfedme", "fedprox", "apfl", "fedrep"))],
)  # fmt: skip
def test_a_run_of_sums_gives_the_plain_runs_models(
    certs: Path, tmp_path: Path, method: str, options: dict[str, Any]
):
    files = write_data(tmp_path, NAMES[:3])
    model = usual(all_methods()[method])
    config = write_config(tmp_path, method, rounds=2, model=model, local_steps=2, **options)
    served, transport = secured(config, files, tmp_path, certs)
    here, _ = secured(config, files, tmp_path / "plain", certs, protected=False)
    same(served, here, 2e-6)  # 2^-33 and the rounding of single precision, over K*lr = 0.02
    row, plain = served.metrics[-1], here.metrics[-1]
    for column in ("personal_accuracy", "personal_loss", "global_accuracy", "local_accuracy",
                   "trivial_accuracy", "personal_accuracy_pooled"):  # fmt: skip
        if plain[column] is not None:
            assert row[column] == pytest.approx(plain[column], abs=1e-5), column
    assert row["worst_tenth"] is None
    assert all(value is None for value in served.clients[-1]["personal_accuracy"])
    # nothing but masked numbers has left a site, and those look like noise
    sent = [tensors for _, tensors, _ in transport.heard if tensors]
    assert sent
    assert all(set(tensors) == {"masked"} for tensors in sent)
    bits = torch.cat([t["masked"] for t in sent]).numpy().view("uint8")
    assert abs(float(bits.mean()) - 127.5) < 5 * 74 / len(bits) ** 0.5


def test_every_method_is_served_by_sums_or_refused_with_the_reason():
    """Found by running each for a moment."""
    found = {name: needs_rows(cls()) for name, cls in all_methods().items()}
    assert {name for name, why in found.items() if why} == set(REFUSED)
    for name, why in REFUSED.items():
        assert why in str(found[name]), (name, found[name])


def test_methods_that_need_rows_are_refused_before_anything_is_made(certs: Path, tmp_path: Path):
    config, keys = write_config(tmp_path, "perm", rounds=1), ServerFiles.of(certs)
    with pytest.raises(FedkinError, match="method 'perm' cannot do with sums over sites: its step"):
        prepare(Wanted(config, 4, WaitPolicy(), tmp_path / "run", keys, True))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("clients", "at_least", "wanted", "keys", "reason"),
    [(4, None, True, False, "needs every site's certificate"),
     (4, 3, False, True, "give --secure-sum too"), (4, 1, True, True, "must be at least 2, not 1"),
     (2, None, True, True, "2 of 2 sites are asked in a round")],
)  # fmt: skip
def test_what_cannot_be_is_refused(
    certs: Path, tmp_path: Path, clients: int, at_least: int | None, wanted: bool, keys: bool,
    reason: str,
):  # fmt: skip
    config = write_config(tmp_path, "fedavg", rounds=1)
    files = ServerFiles.of(certs) if keys else None
    with pytest.raises(FedkinError, match=reason):
        prepare(Wanted(config, clients, WaitPolicy(), tmp_path / "run", files, wanted, at_least))


@pytest.mark.parametrize("stage", ["masked", "open"])
def test_a_site_that_is_lost_for_a_round_comes_back(certs: Path, tmp_path: Path, stage: str):
    files, said = write_data(tmp_path, NAMES), list[str]()
    config = write_config(tmp_path, "fedavg", rounds=2, local_steps=1)
    lost = {(1, stage): "b"}
    served, _ = secured(config, files, tmp_path, certs, lost=lost, said=said)
    accounts = served.contenders["method"].fed.accounts.column("gradients").tolist()
    counted = stage in ("check", "open")
    assert accounts == [2, 2 if counted else 1, 2, 2]
    assert served.metrics[-1]["personal_loss"] is not None


def test_a_sum_that_fails_leaves_the_model_as_it_is(certs: Path, tmp_path: Path):
    files, said = write_data(tmp_path, NAMES), list[str]()
    config = write_config(tmp_path, "fedavg", rounds=1, local_steps=1)
    served, _ = secured(config, files, tmp_path, certs, 4, {(1, "masked"): "b"}, said)
    x = served.contenders["method"].state.x
    assert torch.equal(x, served.problem.initial[0])
    assert any("no secure sum was had: only 3 sites have sent numbers" in s for s in said)


def test_a_score_that_is_asked_for_again_is_the_one_that_was_had(certs: Path, tmp_path: Path):
    """As with the statistics of norms, needed for every score and at the end: sites give a sum
    once, and the server keeps it until the round is over."""
    files = write_data(tmp_path, NAMES[:3])
    config = write_config(tmp_path, "fedavg", rounds=1, local_steps=1)
    served, transport = secured(config, files, tmp_path, certs)
    contender, heard = served.contenders["method"], len(transport.heard)
    again = score(contender.fed, contender.models(1), "test", served.metric_names)
    assert again.mean("loss") == served.metrics[-1]["personal_loss"]
    assert len(transport.heard) == heard


def test_with_differential_privacy_sites_add_the_noise_themselves(certs: Path, tmp_path: Path):
    """Three parts of variance (z*C)^2/3: the sum has the whole, and nobody could take it off."""
    files = write_data(tmp_path, NAMES[:3])
    config = write_config(tmp_path, "fedavg", rounds=1, lr=1e-9, local_steps=1)
    config.write_text("dp_clip = 0.5\ndp_noise = 2.0\n" + config.read_text())
    served, transport = secured(config, files, tmp_path, certs)
    change = served.contenders["method"].state.x - served.problem.initial[0]
    found, wanted = float(change.double().std()), 2.0 * 0.5 / 3
    # the deviation of n numbers is known to one part in sqrt(2n); 4 of those
    assert found == pytest.approx(wanted, rel=4 / (2 * len(change)) ** 0.5)
    rows = {name: site._store("e", "method").now().answer for name, site in transport.sites.items()}
    parts = torch.stack([reply["dx"][0] for reply, _ in rows.values()])
    torch.testing.assert_close(change, parts.sum(0) / 3, rtol=0, atol=1e-6)
    assert float(parts.double().std()) == pytest.approx(2.0 * 0.5 / 3**0.5, rel=0.15)


# what sites refuse --------------------------------------------------------------------------


@pytest.fixture
def asked(certs: Path, tmp_path: Path) -> tuple[dict[str, SiteWorker], Unreliable, Any]:
    """Sites after a round of sums, and the question that began it, as one of them got it."""
    files = write_data(tmp_path, NAMES)
    config = write_config(tmp_path, "fedavg", rounds=1, local_steps=1)
    questions: list[Any] = []
    usual = SiteWorker.answer

    def kept(self: SiteWorker, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Message:
        if self.name == "a" and facts.get("stage") == "keys" and facts["remember"]:
            questions.append((tensors, facts))
        return usual(self, tensors, facts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SiteWorker, "answer", kept)
        _, transport = secured(config, files, tmp_path, certs)
    return transport.sites, transport, questions[0]


def test_sites_refuse_what_would_show_their_answers(asked: Any):
    sites, _, (tensors, facts) = asked
    site = sites["a"]

    site._experiments["e"].terms.rounds = 9  # more than it had: these come after its end

    def refused(reason: str, tensors: Any = tensors, **changes: Any) -> None:
        asked = {**facts, **changes}
        asked["key"] = int(rng.key(0, *asked["place"][1:3], asked["client"])[0])
        with pytest.raises(FedkinError, match=reason):
            site.answer(tensors, asked)

    def terms(**changes: Any) -> dict[str, Any]:
        return {**facts["terms"], **changes}

    fresh = {"place": [1, 2, 0, 0]}
    refused("for one site's answer", kind="work", place=[1, 2, 0, 0])
    refused("was added up before")  # the same request again
    refused("was added up before", terms=terms(start=2), place=[2, 1, 0, 0])  # a server resumed
    refused("of 2 sites, and 3 were agreed", terms=terms(round=2, at_least=2), **fresh)
    refused("those of another request", terms=terms(round=3), **fresh)
    refused("those of another run", terms=terms(round=2, experiment="f"), **fresh)
    refused("not those of what is asked", terms=terms(round=2), weighing="samples", **fresh)
    other = {"x": tensors["x"] + 1}
    refused("not those of what is asked", other, terms=terms(round=2), **fresh)
    refused("knows nothing of this sum", terms=terms(round=9), stage="open", said={})


def test_a_site_may_demand_secure_sums(certs: Path, tmp_path: Path):
    files = write_data(tmp_path, NAMES)
    config, agreement = read_serve_config(write_config(tmp_path, "fedavg", rounds=1))
    plan = Plan.new("run", 4, agreement, WaitPolicy())
    keys = SiteFiles.of(certs / "sites" / "a")
    site = SiteWorker("a", files["a"], tmp_path / "a", secure=secure_site("a", keys, 4))
    hello = {"kind": "hello", "experiment": "e"}
    with pytest.raises(FedkinError, match="the server offers no secure sums"):
        site.answer({}, {**hello, "setup": plan.setup(config)})
    few = replace(plan, secure={"at_least": 3, "authority": ""})
    with pytest.raises(FedkinError, match="the server offers sums of 3 sites"):
        site.answer({}, {**hello, "setup": few.setup(config)})
    plain = SiteWorker("b", files["b"], tmp_path / "b")
    with pytest.raises(FedkinError, match="needs its certificate"):
        plain.answer({}, {**hello, "setup": few.setup(config)})
    with pytest.raises(FedkinError, match="certificate of 'b' is not its own"):
        secure_site("b", keys, None)


# real processes -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("stage", ["shares", "masked", "check", "open"])
def test_a_site_that_is_killed_in_a_sum_does_not_spoil_it(certs: Path, tmp_path: Path, stage: str):
    """`d` ends in the second of two rounds; the others' sum is that of the plain run."""
    files = write_data(tmp_path, NAMES)
    config = write_config(tmp_path, "fedavg", rounds=2, lr=0.1)
    run, port = tmp_path / "run", free_port()
    serve = ["serve", config, "--clients", 4, "--out", run, "--port", port, "--certs", certs,
             "--secure-sum", "--timeout", 10]  # fmt: skip
    address = f"127.0.0.1:{port}"
    with all_ended() as processes:
        server = Process(fedkin, serve, tmp_path / "server.log")
        processes.append(server)
        for name in NAMES[:3]:
            keys = ("--certs", certs / "sites" / name, "--secure-at-least", 3)
            processes.append(site(tmp_path, name, files[name], address, *keys))
        words = [address, "d", files["d"], tmp_path / "d", certs / "sites" / "d", 2, stage]
        processes.append(Process(live_until, words, tmp_path / "d.log"))
        server.ends()
        assert "'d' did not answer" in server.text() or "'d' cannot be reached" in server.text()
        assert "no secure sum" not in server.text()
        assert [process.ends() for process in processes[1:4]] == [0, 0, 0], server.text()
    counted = stage in ("check", "open")  # its numbers had been sent
    lost = {} if counted else {(2, ""): "d"}
    calm, _ = secured(config, files, tmp_path / "calm", certs, lost=lost, protected=False)
    found = read_tensors(run / "models" / "global.safetensors")
    own = calm.problem.layout.join({k: v[None] for k, v in found.items()})[0]
    torch.testing.assert_close(own, calm.contenders["method"].state.x, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_real_sites_refuse_a_dishonest_server(
    certs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first and the last of seven rounds are honest; in the others sites give no sum."""
    files, keys, said = write_data(tmp_path, NAMES[:3]), ServerFiles.of(certs), list[str]()
    config = write_config(tmp_path, "fedavg", rounds=7, lr=0.1, local_steps=1)
    honest, before = SecureFlower._ask, dict[str, Any]()

    def dishonest(self: Any, request: Any, terms: Any, stage: str, questions: Any) -> Any:
        now = (request.place[0], stage) if request.remember else None
        if now == (1, "shares"):
            before["keys"] = questions["a"]["keys"]
        if now == (2, "open"):  # both shares of a
            questions = {n: {**q, "dead": ["a"]} for n, q in questions.items()}
        if now == (3, "shares"):  # b's keys of the first round again
            old = {"b": before["keys"]["b"]}
            questions = {n: {"keys": {**q["keys"], **old}} for n, q in questions.items()}
        if now == (4, "open"):  # one signature for all
            forged = dict.fromkeys("abc", questions["a"]["signed"]["a"])
            questions = {n: {**q, "signed": forged} for n, q in questions.items()}
        if now == (5, "check"):  # a was lost, says the server
            questions = {n: {"alive": ["b", "c"]} for n in questions}
        if now == (6, "masked"):  # shares for another
            swapped = {"b": "c", "c": "a", "a": "b"}
            questions = {n: questions[swapped[n]] for n in questions}
        return honest(self, request, terms, stage, questions)

    monkeypatch.setattr(SecureFlower, "_ask", dishonest)
    link = Link(tmp_path / "link", "127.0.0.1", free_port(), keys)
    try:
        link.register(keys.sites)
        with all_ended() as processes:
            for name in NAMES[:3]:
                own = ("--certs", certs / "sites" / name, "--secure-at-least", 3)
                processes.append(site(tmp_path, name, files[name], link.place.address, *own))
            folder = prepare(Wanted(config, 3, WaitPolicy(1.0, 60), tmp_path / "run", keys, True))
            with link.run() as grid:
                read = read_serve_config(config)[0]
                trainer = make_trainer(grid, folder, read, True, 90, said.append)
                models = [trainer.contenders["method"].state.x]
                for _ in range(7):
                    trainer.step()
                    models.append(trainer.contenders["method"].state.x)
            folder.close()
    finally:
        link.stop()
    moved = [not torch.equal(one, other) for one, other in pairwise(models)]
    assert moved == [True, False, False, False, False, False, True]
    reasons = ("both shares of 'a' are asked for", "was not signed by 'b'", "was not signed by",
               "cannot be right", "cannot be right")  # fmt: skip
    for number, reason in enumerate(reasons, 2):
        assert any(s.startswith(f"round {number}:") and reason in s for s in said), (number, said)
        assert any(s.startswith(f"round {number}: no secure sum") for s in said), said
