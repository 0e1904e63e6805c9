"""`fedkin reproduce` as people type it."""

import pytest

from fedkin.command import cli
from fedkin.papers import index
from tests.papers.helpers import item


@pytest.fixture
def fedkin(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(index, "PAPERS", {"toy": (item(), item(kind="figure", number="1-3"))})
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr("sys.argv", ["fedkin", "reproduce", *words])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        said = capsys.readouterr()
        return stop.value.code, said.out, said.err

    return call


def test_without_an_item_the_items_are_listed(fedkin):
    for words in ([], ["--list"], ["toy"]):
        code, out, _ = fedkin(*words)
        assert code == 0
        assert "toy --table 7" in out


def test_an_item_is_run_and_told(fedkin, tmp_path):
    code, out, _ = fedkin("toy", "--table", "7", "--rounds", "1")
    assert code == 0
    assert "## toy, table 7: accuracy" in out
    assert "FedAvg is better." in out
    assert (tmp_path / "runs/papers/toy/small-1-rounds/table-7/report.html").exists()


def test_an_item_of_several_numbers_is_found_by_each(fedkin):
    code, out, _ = fedkin("toy", "--figure", "2", "--rounds", "1", "--seeds", "1")
    assert code == 0
    assert "toy, figure 1-3" in out


def test_all_items_are_run_and_written(fedkin, tmp_path, monkeypatch):
    monkeypatch.setattr("fedkin.papers.collection.PAPERS", index.PAPERS)
    code, _, _ = fedkin("--all", "--seeds", "2", "--write", "pages")
    assert code == 0
    text = (tmp_path / "pages" / "toy.md").read_text()
    assert "## Table 7" in text
    assert "## Figure 1-3" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["toi"], "unknown paper 'toi' (did you mean 'toy'?)"),
        (["toy", "--table", "9"], "unknown table of toy '9'"),
        (["--table", "7"], "name the paper too"),
        (["toy", "--table", "7", "--panel", "digit"], "did you mean 'digits'?"),
    ],
)
def test_mistakes_are_answered_with_one_sentence(fedkin, words, said):
    code, _, err = fedkin(*words)
    assert code == 2
    assert said in err
