"""Sites join a running run and leave one for good; a schedule goes on from the last model."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from fedkin.engines.flower.exchange import KnownSite
from fedkin.engines.flower.processes import free_port
from fedkin.errors import FedkinError
from fedkin.methods.registry import all_methods
from fedkin.runs.config import make_config
from fedkin.runs.folder import RunFolder
from fedkin.runs.sites.plan import Plan, read_serve_config
from fedkin.runs.sites.roster import Roster, why_fixed
from fedkin.runs.sites.schedule import keep_start, model_of, repeat, seconds_of, warm_start
from fedkin.runs.sites.served import ServedTrainer
from fedkin.runs.sites.serving import Wanted, prepare
from fedkin.runs.sites.site import SiteWorker
from fedkin.tensors import read_tensors
from tests.runs.sites.no_network import NoNetwork, engine_over
from tests.runs.sites.test_chaos import rounds_done
from tests.runs.sites.world import (
    NAMES,
    Process,
    all_ended,
    card,
    embedded,
    fedkin,
    site,
    until,
    write_config,
    write_data,
)


def open_plan(folder: Path, config: Path, clients: int = 2) -> Roster:
    prepare(Wanted(config, clients, open=True, out=folder)).close()
    return Roster(folder, Plan.read(folder))


def test_a_site_that_comes_later_takes_part_from_the_next_round_on(tmp_path: Path):
    files = write_data(tmp_path)
    path = write_config(tmp_path, "scaffold", rounds=4, baseline=True, lr=0.1)
    roster = open_plan(tmp_path / "run", path)
    config, _ = read_serve_config(path)
    sites = {n: SiteWorker(n, files[n], tmp_path / "homes" / n, say=print) for n in NAMES}
    hello = {"kind": "hello", "experiment": "e", "setup": roster.plan.setup(config)}
    known = {n: KnownSite(s.answer({}, hello)[1], 0) for n, s in sites.items()}
    here = {n: known[n] for n in NAMES[1:]}  # the first by name comes last
    roster.begin(here)
    trainer = ServedTrainer(
        roster.problem(config), config.make_method(), config.settings(),
        RunFolder.open(tmp_path / "run"), engine_over(NoNetwork(sites), roster), print,
        newcomers=lambda: roster.problem(config) if roster.take_in(here) else None,
    )  # fmt: skip
    trainer.step()
    trainer.step()
    before = trainer.contenders["method"].state.x.clone()
    here[NAMES[0]] = known[NAMES[0]]
    trainer.step()
    trainer.step()
    assert Plan.read(tmp_path / "run").names == (*NAMES[1:], NAMES[0])
    fed = trainer.contenders["method"].fed
    assert fed.size == 3
    counted = fed.accounts.column("gradients").tolist()
    assert counted[:2] == [40, 40]
    assert counted[2] == 20
    assert not torch.equal(trainer.contenders["method"].state.x, before)
    assert trainer.folder is not None
    clients = trainer.folder.table("clients.csv")
    assert clients["client"].tolist() == [*NAMES[1:], NAMES[0]]
    trainer.folder.close()

    # after a crash the run goes on with the sites of its checkpoint, and then takes in the others
    resumed = Roster(tmp_path / "run", Plan.read(tmp_path / "run"))
    resumed.go_on(tmp_path / "run" / "checkpoint")
    assert resumed.active == 3
    early = Roster(tmp_path / "run", Plan.read(tmp_path / "run"))
    early.active = 2
    assert early.names == NAMES[1:]
    assert early.take_in({}) == [NAMES[0]]
    assert early.take_in({}) == []


def test_who_may_join_an_open_run_and_who_may_leave(tmp_path: Path):
    roster = open_plan(tmp_path / "run", write_config(tmp_path, "fedavg", 2))
    roster.begin({n: KnownSite(card(n), 0) for n in "ab"})
    roster.plan.admit(card("c", train=9), {})
    with pytest.raises(FedkinError, match="its num_classes is 4, and not 3"):
        roster.plan.admit(card("c", num_classes=4), {})
    with pytest.raises(FedkinError, match="it does not take part in this run"):
        roster.part({"name": "a", "identity": "another"})
    roster.part({"name": "a", "identity": "a"})
    assert Plan.read(tmp_path / "run").left == ("a",)
    with pytest.raises(FedkinError, match="it has left this run for good"):
        roster.plan.admit(card("a"), {})


def test_every_method_is_open_or_says_why_it_is_not():
    told = {name: why_fixed(make_config({"method": name}, "here")) for name in all_methods()}
    for name in ("fedavg", "scaffold", "fedprox", "ditto", "pfedme", "apfl", "feddyn"):
        assert told[name] is None, name
    assert told["perm"] == "the server of perm remembers something of every client"
    assert told["ifca"] is not None
    private = {"method": "fedavg", "dp_clip": 1.0, "dp_noise": 1.0}
    assert "privacy" in str(why_fixed(make_config(private, "here")))


def test_a_run_that_cannot_be_open_is_refused(tmp_path: Path):
    with pytest.raises(FedkinError, match="sites cannot join this run later: the server of perm"):
        open_plan(tmp_path / "run", write_config(tmp_path, "perm", 2))


@pytest.mark.parametrize(("text", "seconds"), [("1d", 86400), ("12h", 43200), ("30min", 1800)])
def test_times_are_read(text: str, seconds: float):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "1", "0d", "-1h", "1 week", "1.5h"])
def test_other_times_are_refused(text: str):
    with pytest.raises(FedkinError, match="write 1d, 12h, 30min or 90s"):
        seconds_of(text)


def test_runs_follow_each_other_and_start_from_the_last_model():
    started, waits, said = list[object](), list[float](), list[str]()
    now = 1000.0

    class Over(Exception):
        pass

    def run(model: torch.Tensor | None) -> torch.Tensor | None:
        nonlocal now
        started.append(model)
        now += 25 if len(started) == 2 else 1
        if len(started) == 3:
            raise FedkinError("nobody came")
        if len(started) == 5:
            raise Over
        return torch.tensor([float(len(started))]) if len(started) < 4 else None

    def wait(seconds: float) -> None:
        nonlocal now
        waits.append(seconds)
        now += seconds

    with pytest.raises(Over):
        repeat(run, 10, said.append, wait, lambda: now)
    assert started[0] is None
    assert started[1:] == [torch.tensor([1.0]), *[torch.tensor([2.0])] * 3]
    assert waits == [9, 0, 9, 9]  # the second took longer than the time between two
    assert "this run failed: nobody came" in said


def test_a_run_that_takes_too_long_is_followed_at_once_by_a_clock_that_goes_on():
    ticks = iter(range(1000))
    waits = list[float]()

    def run(model: torch.Tensor | None) -> None:
        if len(waits) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repeat(run, 1e-9, str, waits.append, lambda: float(next(ticks)))
    assert waits == [0, 0, 0]


def test_a_run_begins_with_the_model_in_its_folder(tmp_path: Path):
    files = write_data(tmp_path)
    trainer = embedded(write_config(tmp_path, "fedavg", 2), files)
    model = model_of(trainer)
    assert model is not None
    keep_start(tmp_path, model)
    warm_start(tmp_path, trainer.problem)
    fed = trainer.contenders["method"].fed
    torch.testing.assert_close(fed.initial_model(), model)
    assert model_of(embedded(write_config(tmp_path, "local", 1), files)) is None


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_real_sites_join_and_leave_a_running_run(tmp_path: Path):
    names = ("clinic-a", "clinic-b", "late")
    files = write_data(tmp_path, names)
    config = write_config(tmp_path, "fedavg", 30, local_steps=300)
    run, port = tmp_path / "run", free_port()
    address = f"127.0.0.1:{port}"
    begin = ["serve", config, "--clients", 2, "--open", "--out", run, "--port", port]
    with all_ended() as processes:
        server = Process(fedkin, begin, tmp_path / "server.log")
        first = {name: site(tmp_path, name, files[name], address) for name in names[:2]}
        processes += [server, *first.values()]
        until(lambda: rounds_done(run) >= 2, server.text)
        late = site(tmp_path, "late", files["late"], address)
        processes.append(late)
        server.says("from now on late take part")
        first["clinic-b"].kill()
        leaving = site(tmp_path, "clinic-b", files["clinic-b"], address, "--leave")
        processes.append(leaving)
        assert leaving.ends() == 0, leaving.text()
        assert "'clinic-b': it has left the run" in leaving.text()
        assert server.ends() == 0, server.text()
        assert [first["clinic-a"].ends(), late.ends()] == [0, 0], late.text()
    assert "site 'clinic-b' has left for good" in server.text()
    assert Plan.read(run).names == names
    clients = pd.read_csv(run / "clients.csv").set_index("client")
    assert clients["personal_accuracy"].notna().to_dict() == {
        "clinic-a": True, "clinic-b": False, "late": True,
    }  # fmt: skip
    assert (tmp_path / "late" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_schedule_trains_again_from_the_last_model(tmp_path: Path):
    files = write_data(tmp_path, NAMES[:2])
    config = write_config(tmp_path, "fedavg", 2)
    port = free_port()
    begin = ["serve", config, "--clients", 2, "--every", "5s", "--out", "again", "--port", port]
    with all_ended() as processes:
        server = Process(fedkin, begin, tmp_path / "server.log")
        processes.append(server)
        for name, path in files.items():
            processes.append(site(tmp_path, name, path, f"127.0.0.1:{port}", "--stay"))
        second = tmp_path / "again-002" / "models" / "global.safetensors"
        until(second.exists, server.text)
    first = tmp_path / "again-001" / "models" / "global.safetensors"
    start = read_tensors(tmp_path / "again-002" / "start.safetensors")["x"]
    layout = embedded(config, files).problem.layout
    flat = layout.join({k: v[None] for k, v in read_tensors(first).items()})[0]
    torch.testing.assert_close(start, flat)
    assert "it starts from the model that the last run ended with" in server.text()
