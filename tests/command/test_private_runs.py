"""What a private run says of its numbers: which ones the guarantee does not cover."""

from __future__ import annotations

import json
from pathlib import Path

from tests.run_command import TINY, Fedkin


def test_weights_and_scores_are_said_to_be_outside_the_guarantee(fedkin: Fedkin):
    private = ("--dp-clip", 1e-4, "--dp-noise", 1, "--dp-delta", 1e-5)
    run = ("run", "perm", *TINY, *private, "--warm-up", 1, "--lam-rel", 1, "--out", "private")
    said = fedkin(*run)
    assert said.code == 0, said.err
    told = json.loads(Path("private/privacy.json").read_text())
    assert any("scores of evaluations" in sentence for sentence in told["outside"])
    assert any("`fedkin who`" in sentence for sentence in told["outside"])
    who = fedkin("who", "private", "--client-number", 0)
    assert who.code == 0, who.err
    assert "these weights are outside the run's privacy guarantee" in " ".join(who.out.split())
