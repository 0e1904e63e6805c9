"""`--rates` turns a method into its form with models of different sizes."""

import pytest
from safetensors.torch import load_file

from fedkin.core.problem import Problem
from fedkin.core.variants import Variant
from fedkin.errors import FedkinError
from fedkin.methods import FedAvg, Scaffold, Submodel
from fedkin.models import build
from fedkin.runs.alone import common_alone, gains, last_clients, task
from fedkin.runs.config import make_config
from fedkin.runs.groups import Group, find_runs
from fedkin.runs.measures import ACCURACY
from fedkin.runs.options import parse
from fedkin.runs.reading import read_table
from fedkin.runs.train import train
from fedkin.toml import read_toml
from tests.helpers import blobs


@pytest.mark.parametrize(
    ("method", "sized"),
    [
        ("fedavg", "submodel"),
        ("fedavg-local", "submodel-local"),
        ("ditto", "submodel-ditto"),
        ("local", "submodel-alone"),
        ("perm", "submodel-perm"),
        ("perm-printed", "submodel-perm-printed"),
        ("perm-two-stage", "submodel-perm-two-stage"),
        ("submodel-masks", "submodel-masks"),
    ],
)
def test_rates_go_with_these_methods(method, sized):
    config = make_config({"method": method, **parse(method, ["--rates", "1,1/2,0.25"])})
    assert config.method == sized
    assert config.make_method().rates == (1.0, 0.5, 0.25)


def test_other_methods_say_which_do():
    with pytest.raises(FedkinError, match=r"'scaffold' has no form.*fedavg.*ditto"):
        parse("scaffold", ["--rates", "1"])


@pytest.mark.parametrize(
    "words",
    [["--options.rates=1,1/2"], ["--capacity", "redrawn"], ["--options.capacity", "device"]],
)
def test_every_way_to_ask_for_sizes_is_understood(words):
    assert make_config({"method": "ditto", **parse("ditto", words)}).method == "submodel-ditto"


@pytest.mark.parametrize(("written", "read"), [(0.5, (0.5,)), (1, (1.0,)), (["1/4", 1], (0.25, 1))])
def test_rates_in_files_may_be_numbers_and_words(written, read):
    config = make_config({"method": "fedavg", "options": {"rates": written}})
    assert config.make_method().rates == read


def test_a_file_for_perm_takes_rates():
    options = {"refresh": "round", "warm_up": 3, "rates": "1,1/2"}
    method = make_config({"method": "perm-printed", "options": options}).make_method()
    assert (method.name, method.warm_up, method.refresh) == ("submodel-perm-printed", 3, "round")


@pytest.mark.parametrize("wrong", ["0", "2", "1,half", "", [], "1/0", "nan", None])
def test_wrong_rates_are_refused_at_the_door(wrong):
    with pytest.raises(FedkinError, match="rates"):
        make_config({"method": "submodel", "options": {"rates": wrong}})


DIGITS = ("--data", "digits", "--num-clients", 3, "--rounds", 2, "--no-baseline", "-q")


@pytest.mark.parametrize("method", ["fedavg", "fedavg-local", "ditto", "perm"])
def test_rates_come_from_a_column_of_the_client_table(method, tmp_path, fedkin):
    (tmp_path / "devices.csv").write_text("client,device\n0,1/4\n1,1\n2,1/2\n")
    table = ("--client-table", tmp_path / "devices.csv", "--capacity", "device")
    out = tmp_path / "run"
    assert fedkin("run", method, *DIGITS, *table, "--out", out).code == 0
    assert read_table(out / "rates.csv")["0"].tolist() == [0.25, 1.0, 0.5]
    widths = {"0": 16, "1": 64, "2": 32}
    for client, width in widths.items():
        model = load_file(out / "models" / f"client-000{client}.safetensors")
        assert model["1.weight"].shape == (width, 64)
    assert read_toml(out / "config.toml")["data"]["client_table"] == str(tmp_path / "devices.csv")


@pytest.mark.parametrize(
    ("rates", "column", "sentence"),
    [
        (["1", "half", "1"], "device", "a rate is a number above 0 and at most 1, not 'half'"),
        (["1", "", "1"], "device", "a rate is a number above 0 and at most 1, not 'nan'"),
        (["1", "1", "2"], "device", "a rate is a number above 0 and at most 1, not '2'"),
        (["1", "1", "1"], "devise", "unknown client column 'devise' (did you mean 'device'?)"),
        (None, "device", "nothing is known about clients; give a table"),
    ],
)
def test_columns_without_rates_are_refused(rates, column, sentence, tmp_path, fedkin):
    path, words = tmp_path / "devices.csv", ["--capacity", column]
    if rates is not None:
        path.write_text("client,device\n" + "".join(f"{i},{r}\n" for i, r in enumerate(rates)))
        words += ["--client-table", path]
    said = fedkin("run", "fedavg", *DIGITS, *words, "--out", tmp_path / "run")
    assert said.code == 2
    assert sentence in said.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("form", ["", "-ditto", "-local", "-perm"])
def test_a_model_without_hidden_layers_is_refused_before_anything_is_written(
    form, tmp_path, fedkin
):
    words = (*DIGITS, "--model", "logistic", "--out", tmp_path / "run")
    said = fedkin("run", f"submodel{form}", *words)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "the model has no hidden layers to cut" in said.err
    assert not (tmp_path / "run").exists()


def small_problem():
    return Problem(build("mlp:8,6", (5,), 3), blobs())


def test_in_python_rates_go_beside_a_methods_name_or_into_the_method():
    by_name = train(small_problem(), "fedavg", rates=(1, "1/2"), lr=0.1, rounds=2)
    method = Submodel(rates=(1, "1/2"), lr=0.1)
    assert method.rates == (1.0, 0.5)
    assert Submodel(rates="1,1/4").rates == (1.0, 0.25)
    assert by_name.metrics.equals(train(small_problem(), method, rounds=2).metrics)


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        (FedAvg(), {"rates": (1,)}, r"write Submodel\(rates=...\), or the method by its name"),
        (FedAvg(), {"lr": 0.1}, r"lr is an option of the method: write FedAvg\(lr=...\)"),
        (Scaffold(), {"rates": (1,)}, "'scaffold' has no form with sub-models"),
        ("fedavg", {"rates": (1, "half")}, "rates.1 should be a number.*'half'"),
        ("fedavg", {"rouds": 3}, "did you mean 'rounds'"),
        (FedAvg(), {"rouds": 3}, "did you mean 'rounds'"),
    ],
)
def test_python_says_what_to_write(method, options, sentence):
    with pytest.raises(FedkinError, match=sentence):
        train(small_problem(), method, **options)


def test_better_than_alone_compares_models_of_the_same_size(tmp_path):
    options = {"rates": (1.0, 0.5, 0.25), "lr": 0.1}
    run = train(small_problem(), "fedavg-local", folder=tmp_path / "run", rounds=3, **options)
    alone = train(small_problem(), "local", rounds=3, **options)
    assert run.clients["local_loss"].tolist() == alone.clients["personal_loss"].tolist()
    table = read_table(tmp_path / "run" / "capacity.csv")
    rates = read_table(tmp_path / "run" / "rates.csv")["0"]
    expected = alone.clients["personal_accuracy"].groupby(rates).mean()
    assert table.set_index("rate")["alone"].sort_index().tolist() == pytest.approx(expected)
    # each really trains by itself: a plain loop over a client's own small model
    sizes = [sum(p.numel() for p in alone.personal[i].parameters()) for i in range(6)]
    assert sizes == [small_problem().variant(Variant(rate)).size for rate in rates]


def test_a_run_says_which_weights_were_never_trained(tmp_path, fedkin):
    words = (*DIGITS, "--rates", "1/4", "--kind", "static", "--out", tmp_path / "run")
    said = fedkin("run", "fedavg", *words)
    table = read_table(tmp_path / "run" / "untrained.csv", words=("parameter",)).set_index(
        "parameter"
    )
    assert table["never_trained"].to_dict() == {
        "1.weight": 48 * 64, "1.bias": 48, "3.weight": 48 * 10, "3.bias": 0
    }  # fmt: skip
    assert "% of the global model's weights were never trained" in said.out + said.err


def test_comparisons_hold_small_models_to_small_models_alone(tmp_path, fedkin):
    words = [word for word in DIGITS if word not in ("--no-baseline", "-q")]
    out = tmp_path / "both"
    fedkin("compare", "local", "fedavg", *words, "--rates", "1,1/4", "--out", out)
    groups = {g.method: g for g in (Group(r.method, (r,)) for r in find_runs([out]))}
    measure = ACCURACY
    whole = tmp_path / "whole"
    fedkin("run", "fedavg", *words, "--out", whole)
    groups["fedavg"] = Group("fedavg", tuple(find_runs([whole])))
    assert groups.keys() == {"submodel-alone", "submodel", "fedavg"}
    alone = common_alone(list(groups.values()), measure)
    small = alone[task(groups["submodel"])]
    assert small.runs[0].method == "submodel-alone"
    assert alone[task(groups["fedavg"])].runs[0].method == "fedavg"
    found = gains(groups["submodel"].runs[0], measure, small)["gain"]
    own, other = (
        last_clients(groups[m].runs[0])[f"personal_{measure}"]
        for m in ("submodel", "submodel-alone")
    )
    assert found.tolist() == pytest.approx((measure.sign * (own - other)).tolist())
