"""Claims: decided by intervals over seeds, never from one seed."""

from math import inf, nan, sqrt

import numpy as np
import pytest

from fedkin.papers.claims import (
    Claim,
    Part,
    Term,
    Verdict,
    Why,
    above,
    below,
    between,
    judge,
    planned_looks,
    rising,
    rising_over_panels,
    times,
)


def values(**lines):
    """Values of one measure in one panel, a seed each."""
    return {("p", name, "m"): dict(enumerate(numbers)) for name, numbers in lines.items()}


def a_over_b(**lines):
    return judge(above("a over b", "a", ["b"], "m", ["p"]), values(**lines))


def test_an_order_holds_when_the_paired_interval_is_above_zero():
    # the lines differ by 1 give or take .1, although seeds differ by 10
    found = a_over_b(a=[11.1, 21.0, 30.9], b=[10.0, 20.0, 30.0])
    assert found.verdict is Verdict.HOLDS
    half = 4.302653 * 0.1 / sqrt(3)  # Student's t with 2 degrees of freedom
    assert found.parts[0].found.low == pytest.approx(1 - half, abs=1e-6)


def test_an_order_fails_when_the_interval_is_below_zero_and_is_open_between():
    assert a_over_b(a=[10.0, 20.0, 30.0], b=[11.1, 21.0, 30.9]).verdict is Verdict.FAILS
    assert a_over_b(a=[10.0, 22.0, 30.0], b=[11.0, 20.0, 30.1]).verdict is Verdict.OPEN


def test_nothing_is_concluded_from_one_seed():
    assert a_over_b(a=[100.0], b=[0.0]).verdict is Verdict.OPEN
    assert a_over_b(a=[0.0], b=[100.0]).verdict is Verdict.OPEN


def test_equal_values_are_no_order():
    assert a_over_b(a=[5.0, 5.0], b=[5.0, 5.0]).verdict is Verdict.OPEN


def of_measure(measure, a, b):
    seeds = {("p", name, measure): dict(enumerate(line)) for name, line in (("a", a), ("b", b))}
    return [judge(claim("", "a", ["b"], measure, ["p"]), seeds).verdict for claim in (above, below)]


def test_accuracies_that_certainly_differ_by_less_than_half_a_point_are_in_no_order():
    b = [90.0, 91.0, 92.0, 93.0]
    # 3.182446 is Student's t with 3 degrees of freedom; the differences' deviation is .11547
    a = [90.1, 90.9, 92.1, 92.9]
    assert 3.182446 * 0.11547 / 2 < 0.5
    assert of_measure("accuracy", a, b) == [Verdict.FAILS, Verdict.FAILS]
    assert of_measure("test_accuracy", a, b) == [Verdict.FAILS, Verdict.FAILS]
    assert of_measure("loss", a, b) == [Verdict.OPEN, Verdict.OPEN]


def test_accuracies_that_may_differ_by_half_a_point_are_open_and_small_certain_differences_hold():
    b = [90.0, 91.0, 92.0, 93.0]
    assert of_measure("accuracy", [90.4, 90.6, 92.4, 92.6], b) == [Verdict.OPEN, Verdict.OPEN]
    found = of_measure("accuracy", [90.2, 91.21, 92.2, 93.19], b)
    assert found == [Verdict.HOLDS, Verdict.FAILS]


def test_what_counts_as_no_difference_is_the_claims_own():
    def verdict(a, same):
        part = Part(Term("p", "a", "m"), Term("p", "b", "m"), high=0.0, same=same)
        return judge(Claim("", (part,)), values(a=a, b=[2.0, 2.0, 2.0])).verdict

    # -.02 on average; 4.302653 is Student's t with 2 degrees of freedom
    assert 0.02 + 4.302653 * 0.02 / sqrt(3) < 0.1
    assert verdict([1.96, 1.98, 2.0], same=0.1) is Verdict.FAILS
    assert verdict([1.96, 1.98, 2.0], same=0.05) is Verdict.OPEN
    assert verdict([1.7, 1.7, 1.72], same=0.1) is Verdict.HOLDS


def test_seeds_that_only_one_has_do_not_count():
    found = a_over_b(a=[11.1, 21.0, 30.9, 0.0], b=[10.0, 20.0, 30.0])
    assert found.parts[0].found.count == 3


def test_a_line_that_diverged_with_some_seeds_cannot_be_ahead():
    found = a_over_b(a=[11.1, 21.0, 31.0, nan], b=[10.0, 20.0, 30.0, 40.0])
    assert found.verdict is Verdict.OPEN
    assert (found.parts[0].found.count, found.parts[0].diverged) == (3, 1)
    assert a_over_b(a=[11.1, 21.0, 31.0], b=[10.0, 20.0, 30.0]).verdict is Verdict.HOLDS


def test_a_line_that_diverged_twice_and_is_ahead_with_no_seed_is_not_ahead():
    assert a_over_b(a=[nan, nan], b=[1.0, 2.0]).verdict is Verdict.FAILS
    assert a_over_b(a=[nan, nan, 0.5], b=[1.0, 2.0, 3.0]).verdict is Verdict.FAILS
    assert a_over_b(a=[nan, nan, 4.0], b=[1.0, 2.0, 3.0]).verdict is Verdict.OPEN
    assert a_over_b(a=[nan, 0.5], b=[1.0, 2.0]).verdict is Verdict.OPEN
    assert a_over_b(a=[nan], b=[1.0]).verdict is Verdict.OPEN


def test_seeds_in_which_the_other_line_diverged_do_not_count():
    found = a_over_b(a=[11.1, 21.0, 31.0, 9.0], b=[10.0, 20.0, 30.0, nan])
    assert (found.verdict, found.parts[0].found.count) == (Verdict.HOLDS, 3)


def test_a_claim_fails_by_one_part_but_only_with_room_for_their_number():
    # with 2 degrees of freedom: an interval of 1 -+ .9 at 95 % reaches below zero at 99 %
    spread = 0.9 * sqrt(3) / 4.302653
    b = [1 - spread, 1.0, 1 + spread]
    alone = values(a=[0.0] * 3, b=b)
    assert judge(above("", "a", ["b"], "m", ["p"]), alone).verdict is Verdict.FAILS
    five = values(a=[0.0] * 3, b=b, **{name: [-9.0, -9.1, -8.9] for name in "cdef"})
    found = judge(above("", "a", list("bcdef"), "m", ["p"]), five)
    assert found.verdict is Verdict.OPEN
    assert sum(part.verdict is Verdict.HOLDS for part in found.parts) == 4


def test_what_was_not_run_is_left_out():
    claim = above("", "a", ["b"], "m", ["p", "elsewhere"])
    found = judge(claim, values(a=[2.0, 2.1], b=[1.0, 1.0]))
    assert len(found.parts) == 1
    assert judge(claim, {}) is None


def test_bounds_ratios_and_single_values():
    numbers = values(a=[3.0, 3.2], b=[1.5, 1.6], c=[0.0, 0.0])
    assert judge(times("", "a", ["b"], "m", ["p"], 1.9, 2.1), numbers).verdict is Verdict.HOLDS
    assert judge(times("", "a", ["b"], "m", ["p"], 0.0, 1.5), numbers).verdict is Verdict.FAILS
    assert judge(between("", ["c"], "m", ["p"], high=0.01), numbers).verdict is Verdict.HOLDS
    assert judge(between("", ["c"], "m", ["p"], low=0.01), numbers).verdict is Verdict.FAILS


def test_shapes_are_pairs_of_neighbours():
    assert [
        (part.first.line, part.second.line, part.low, part.high)
        for part in rising("", ["a", "b", "c"], "m", ["p"]).parts
    ] == [("b", "a", 0.0, inf), ("c", "b", 0.0, inf)]
    (part,) = below("", "a", ["b"], "m", ["p"]).parts
    assert (part.low, part.high) == (-inf, 0.0)
    (part,) = rising_over_panels("", ["a"], "m", ["p", "q"]).parts
    assert part == Part(Term("q", "a", "m"), Term("p", "a", "m"), low=0.0)


def test_measures_of_one_line_can_be_compared():
    numbers = {("p", "a", "x"): {0: 2.0, 1: 2.1}, ("p", "a", "y"): {0: 1.0, 1: 1.1}}
    claim = Claim("", (Part(Term("p", "a", "x"), Term("p", "a", "y"), 0.0),))
    assert judge(claim, numbers).verdict is Verdict.HOLDS


def test_an_order_of_lines_near_chance_tells_nothing():
    learnt = (Part(Term("p", "a", "m"), Term("p", "a", "chance"), low=5.0),)
    order = Part(Term("p", "a", "m"), Term("p", "b", "m"), low=0.0)
    claim = Claim("a over b", (order,), "", learnt)
    guessing = {("p", "a", "chance"): dict.fromkeys(range(3), 10.0)}
    near = values(a=[12.0, 12.5, 13.0], b=[9.0, 9.6, 9.9])
    found = judge(claim, near | guessing)
    assert found.verdict is Verdict.OPEN
    assert [part.verdict for part in found.parts] == [Verdict.HOLDS, Verdict.FAILS]
    far = values(a=[34.0, 34.5, 35.0], b=[31.0, 31.6, 31.9])
    assert judge(claim, far | guessing).verdict is Verdict.HOLDS


# seeds added until a claim is settled -------------------------------------------------------


def test_looks_are_planned_by_doubling_up_to_twenty_seeds():
    assert planned_looks(5) == (5, 10, 20)
    assert planned_looks(3) == (3, 6, 12, 20)
    assert planned_looks(30) == (30,)


def test_each_look_has_its_share_of_the_level_and_the_first_that_settles_counts():
    # one number per seed, 1 give or take s: the interval of 2 seeds at level .05/2 is
    # 1 -+ t s/sqrt(2) with Student's t of one degree of freedom, 25.4517
    spread = 1 / 25.4517
    a = [1 - 0.99 * spread, 1 + 0.99 * spread, -50.0, -50.0]
    claim = between("", ["a"], "m", ["p"], low=0.0)
    found = judge(claim, values(a=a), looks=(2, 4))
    assert (found.verdict, found.seeds) == (Verdict.HOLDS, 2)
    a[:2] = [1 - 1.01 * spread, 1 + 1.01 * spread]
    assert judge(claim, values(a=a), looks=(2, 4)).verdict is Verdict.OPEN
    assert judge(claim, values(a=a[:2])).verdict is Verdict.HOLDS  # one look at level .05


def test_before_the_first_look_and_between_looks_nothing_is_concluded():
    claim = between("", ["a"], "m", ["p"], low=0.0)
    surely = [1.0, 1.1, 0.9, 1.0]
    assert judge(claim, values(a=surely), looks=(5, 10)).verdict is Verdict.OPEN
    doubtful = [1.0, -1.0, 1.0, 1.0, 1.0, 1.0]
    found = judge(claim, values(a=doubtful), looks=(2, 7))
    assert (found.verdict, found.parts[0].found.count) == (Verdict.OPEN, 2)


@pytest.mark.parametrize(("signs", "verdict"), [
    ("++--", Verdict.FAILS), ("+++-", Verdict.HOLDS), ("++?-", Verdict.OPEN),
    ("+++", Verdict.HOLDS), ("++-", Verdict.OPEN), ("++", Verdict.OPEN), ("--", Verdict.FAILS),
])  # fmt: skip
def test_a_claim_of_three_in_four_needs_three(signs, verdict):
    rows = {"+": [1.0, 1.1, 0.9], "-": [-1.0, -1.1, -0.9], "?": [1.0, -1.0, 0.1]}
    numbers = {(f"p{i}", "a", "m"): dict(enumerate(rows[sign])) for i, sign in enumerate(signs)}
    parts = tuple(Part(Term(f"p{i}", "a", "m"), None, low=0.0) for i in range(4))
    assert judge(Claim("", parts, enough=3), numbers).verdict is verdict


def test_lines_of_unsettled_parts_need_more_seeds():
    numbers = values(a=[1.0, 1.1], b=[0.0, 0.1]) | {
        ("q", "a", "m"): {0: 1.0, 1: 0.0},
        ("q", "b", "m"): {0: 0.0, 1: 1.0},
    }
    found = judge(above("", "a", ["b"], "m", ["p", "q"]), numbers, looks=(2, 4))
    assert (found.verdict, found.unsettled) == (Verdict.OPEN, {("q", "a"), ("q", "b")})


@pytest.mark.parametrize(
    ("a", "needed"),
    [
        ([1.0, 1.001, 1.0], set()),  # surely near chance
        ([1.0, 4.0, 9.0], set()),  # perhaps, and on average
        ([1.0, 9.0, 9.0], {("p", "a"), ("p", "b")}),  # not on average
    ],
)
def test_seeds_are_added_only_where_lines_are_above_chance_on_average(a, needed):
    learnt = (Part(Term("p", "a", "m"), None, low=5.0),)
    claim = Claim("", (Part(Term("p", "a", "m"), Term("p", "b", "m"), low=0.0),), "", learnt)
    found = judge(claim, values(a=a, b=[0.0, 8.0, 4.0]), looks=(3, 6))
    assert (found.verdict, found.unsettled) == (Verdict.OPEN, needed)


def _wrong(looks, draws):
    """How often a verdict is reached on numbers whose mean is at the bound."""
    claim = between("", ["a"], "m", ["p"], low=0.0)
    told = [judge(claim, values(a=row), looks).verdict for row in draws]
    return sum(verdict is not Verdict.OPEN for verdict in told) / len(told)


def test_repeated_looks_are_wrong_no_more_often_than_one():
    draws = np.random.default_rng(7).normal(size=(800, 20)).tolist()
    # what looking three times at 5 % each would do: 11 % in theory (Armitage et al. 1969)
    naive = sum(
        any(_t(row[:n]) > t for n, t in ((5, 2.7764), (10, 2.2622), (20, 2.0930))) for row in draws
    ) / len(draws)
    assert naive > 0.08
    assert 0.02 < _wrong((5, 10, 20), draws) < 0.05


def _t(numbers):
    return abs(np.mean(numbers)) / (np.std(numbers, ddof=1) / sqrt(len(numbers)))


def test_a_true_claim_of_many_parts_is_seldom_denied():
    # five comparisons, each true at its very bound: it must not be said to fail in over 5 %
    random = np.random.default_rng(11)
    claim = between("", list("abcde"), "m", ["p"], low=0.0)
    failed = 0
    for _ in range(150):
        lines = dict(zip("abcde", random.normal(size=(5, 12)).tolist(), strict=True))
        failed += judge(claim, values(**lines), (3, 6, 12)).verdict is Verdict.FAILS
    assert failed / 150 < 0.05


def test_a_reason_is_a_word_with_evidence():
    found = above("", "a", ["b"], "m", ["p"], "First.").because(Why.SETTING, "Second.")
    assert (found.why, found.discussion) == (Why.SETTING, "First.\nSecond.")
