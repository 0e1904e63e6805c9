"""Personalized FL, a Unified Framework and Universal Optimization Techniques: figures 1 to 8."""

from __future__ import annotations

from typing import Any

from fedkin.papers.claims import Why, above, below, between
from fedkin.papers.claims import rising_over_panels as rising_with
from fedkin.papers.figures import Bars, Curves
from fedkin.papers.item import Item, Line, Panel
from fedkin.papers.measures import TOTAL_SECONDS, at_round, last
from fedkin.papers.mixture import GAP
from fedkin.papers.unified_images import (
    ASCD,
    ASVRCD,
    COURSE,
    FEWER_ROUNDS,
    IMAGE_FIGURES,
    LOSS,
    LSGD,
    OPTIMUM,
    SEEDS,
    line_of,
    run_of,
    took,
)

AS_PRINTED, SWITCH = "ASVRCD as printed", "ASCD, then ASVRCD"
UNSCALED, PFEDME, L2SGD = "LSGD, w not rescaled", "pFedMe", "L2SGD+"
ERROR = last("estimation_error", "error", "distance of w and beta from the true ones")
SECOND_ROW = Curves("estimation_error", "distance of w and beta from w* and beta*", log=True)

BINARY = {"name": "linear-no-bias", "loss": "logistic"}
TRUTH = {"convex": "truth"}
# what max |x|^2/4 comes to in figure 1's data (20,000 samples): .72 to .78 with seeds 0 to 2
SMOOTH = 0.75
CHOSEN_SYNTHETIC = (
    "As printed, no l2, and mu = mu'/(3M) with mu' the smallest eigenvalue of the mean Hessian at "
    "beta*. Open in print: L' = max |x|^2/4 as the clients find it; pFedMe's inner steps of size "
    ".5; a new snapshot of L2SGD+ in one round of 20. Its p and its steps are by ASVRCD's rules, "
    f"p = lam/(2 lam + L') and 1/(8 (2 lam + L')), with L' = {SMOOTH}. "
    "Rounds are communications for all methods. The distance is that of personal models and of the "
    "global one together, from the models that labels were drawn from."
)


# by s: seconds of LSGD, ASCD, ASVRCD, pFedMe and L2SGD+
PRINTED_SECONDS = {
    0.1: (261, 29, 48, 399, 26),
    0.3: (256, 52, 98, 370, 48),
    1.0: (237, 143, 275, 370, 182),
}


def _mixture(spread: float, printed: bool = False) -> Panel:
    """lam = .01/s, or as printed .01*s."""
    lam = 0.01 * spread if printed else 0.01 / spread
    printed_for = PRINTED_SECONDS[spread]
    local: dict[str, Any] = {"objective": "mx2", "lam": lam, "lr": 0.01, "local_steps": 5}
    rescaled = local | {"rescale": True}
    theory: dict[str, Any] = {"objective": "mx2", "lam": lam, "rescale": True, **TRUTH}
    envelope = {"lam": lam, "lr": 0.005, "local_steps": 20, "inner_steps": 5, "inner_lr": 0.5}
    lines = (
        line_of(LSGD, "lsgd", printed_for[0], **rescaled),
        line_of(UNSCALED, "lsgd", **local, rescale=False),
        line_of(ASCD, "ascd", printed_for[1], **theory),
        line_of(ASVRCD, "asvrcd", printed_for[2], **theory),
        line_of(SWITCH, "asvrcd", **theory, switch=20),
        line_of(AS_PRINTED, "asvrcd", **theory, corrected=False),
        Line(PFEDME, "pfedme", envelope, took(printed_for[3]), {"model": {"batch_size": 5}}),
        Line(
            L2SGD,
            "l2sgd",
            {
                "lam": lam,
                "lr": 1 / (8 * (2 * lam + SMOOTH)),
                "p": lam / (2 * lam + SMOOTH),
                "refresh": 0.05,
            },
            took(printed_for[4]),
        ),
    )
    run = run_of({"name": "unified-synthetic", "spread": spread}, BINARY)
    name, words = ("-printed", f", lam = .01 s = {lam:g}") if printed else ("", f", lam = {lam:g}")
    title = f"MX2, synthetic, s = {spread:g}{words}"
    return Panel(f"mixture-s{spread:g}{name}", title, run, lines, FEWER_ROUNDS)


EARLY_DAYS = (
    "At s = .1 both are within half a percent of the optimum after these rounds: LSGD stands "
    "still there, and ASVRCD, which takes the fewest steps per round where lam is largest, is "
    "still on its way."
)
WEAKER_TIES = (
    "The paper contradicts itself on what decides this: lam is printed as .01 s, and its printed "
    "times speak for .01/s. In the latter reading lam falls as s grows: at s = 1 clients are "
    "hardly tied to each other, most of F is each client's own loss, and w, on which LSGD is "
    "slow, matters least. From .1 to .3 it does get worse. The paper's curves show F itself; "
    "ours are shares of the way from zero to the optimum, which differs between the panels."
)
# as many as the paper has, looked at once
REPEATS = 30
# of the way from zero to the optimum: who has less left is there, and what differs by less is level
ONE_PERCENT = 0.01
MIXTURES = tuple(_mixture(spread) for spread in (0.1, 0.3, 1.0))
MIXED = [panel.name for panel in MIXTURES]
# with s = 1 both readings of lam are the same
PRINTED_LAM = tuple(_mixture(spread, printed=True) for spread in (0.1, 0.3))
AS_READ = [*(panel.name for panel in PRINTED_LAM), MIXED[-1]]
FIGURE_1 = Item(
    "figure", "1", "MX2 on synthetic data", MIXTURES + PRINTED_LAM,
    (GAP, LOSS, ERROR, TOTAL_SECONDS),
    (
        between("The variance-reduced methods reach the optimum: less than 1 % of the way is left.",
                (ASVRCD, L2SGD), "gap", MIXED, high=ONE_PERCENT),
        above("LSGD stalls above it.", LSGD, (ASVRCD,), "gap", MIXED),
        above("So it does without rescaling.", UNSCALED, (ASVRCD,), "gap", MIXED, EARLY_DAYS,
              same=ONE_PERCENT).because(Why.SETTING),
        rising_with("LSGD gets worse with s.", (UNSCALED,), "gap", MIXED, WEAKER_TIES, ONE_PERCENT)
        .because(Why.PRINT),
        rising_with("So it does with lam as printed, .01 s.", (UNSCALED,), "gap", AS_READ,
                    WEAKER_TIES, ONE_PERCENT).because(Why.PRINT),
        between("With lam as printed, too, the variance-reduced methods reach the optimum.",
                (ASVRCD, L2SGD), "gap", AS_READ, high=ONE_PERCENT),
        rising_with("Estimation errors of the methods that reach the optimum grow with s (second "
                    "row).", (ASVRCD,), "error", MIXED),
        above("ASVRCD as printed stalls above it too (a slip of the print, not a claim).",
              AS_PRINTED, (ASVRCD,), "gap", MIXED),
    ),
    (COURSE, SECOND_ROW, Bars("gap")), CHOSEN_SYNTHETIC,
    "lam is printed as .01 s, but the printed times speak for .01/s: both are shown. LSGD is "
    "shown on the objective as the others have it, with w/sqrt(M), where its steps on w are M "
    "times shorter, and on the objective without rescaling, which has the same optimum. The "
    "printed estimator of ASVRCD lacks the term - grad f_j(v), without which variance is not "
    "reduced: both readings are shown. Printed seconds are of 1000 rounds, one run on the "
    "authors' laptop; ours are a run's share of all seeds and panels together.",
    "That 1 % of the way is nothing is ours, also where LSGD is compared with ASVRCD and between "
    "values of s. At the paper's scale there are its 30 repeats, looked at once: with looks at 5, "
    "10 and 20 seeds the first and the third claim had stayed open.",
    seeds={"small": 5, "paper": REPEATS}, together=True,
)  # fmt: skip


def _sharing(spread: float) -> Panel:
    own: dict[str, Any] = {"objective": "ws2", "shared_parts": "0:10"}
    theory = own | TRUTH | {"rescale": True}
    lines = (
        line_of(LSGD, "lsgd", 238, **own, lr=0.01, local_steps=5, rescale=True),
        line_of(UNSCALED, "lsgd", **own, lr=0.01, local_steps=5, rescale=False),
        line_of(ASCD, "ascd", 17, **theory),
        line_of(ASVRCD, "asvrcd", 23, **theory),
        line_of(SWITCH, "asvrcd", **theory, switch=20),
        line_of(OPTIMUM, "acd", **theory),
    )
    run = run_of({"name": "unified-ws", "spread": spread}, BINARY)
    return Panel(f"sharing-s{spread:g}", f"WS2, synthetic, s = {spread:g}", run, lines)


CROSSES_LATER = (
    "With s = 10 and 15 ASCD is still ahead after 1000 rounds, by .003 and .006, when both are "
    "within .014 of the optimum. The lines cross later: with s = 15 and --rounds 5000 ASVRCD ends "
    "lower, by .0014 (95 % interval .0006 to .0021, five seeds)."
)
SHARINGS = tuple(_sharing(spread) for spread in (5.0, 10.0, 15.0))
SHARED = [panel.name for panel in SHARINGS]
FIGURE_2 = Item(
    "figure", "2", "WS2 on synthetic data", SHARINGS,
    (at_round("objective", 50, "early", "F after 50 rounds"), LOSS, ERROR, TOTAL_SECONDS),
    (
        below("ASCD is fast at first.", ASCD, (ASVRCD, LSGD), "early", SHARED),
        below("ASVRCD is best at the end.", ASVRCD, (ASCD, LSGD), "loss", SHARED, CROSSES_LATER)
        .because(Why.SETTING),
        above("LSGD is far behind.", LSGD, (ASCD, ASVRCD), "loss", SHARED),
        below("So it is in estimation error (second row).", ASVRCD, (LSGD,), "error", SHARED),
    ),
    (COURSE, SECOND_ROW), CHOSEN_SYNTHETIC, seeds=SEEDS, together=True,
)  # fmt: skip

ITEMS = (FIGURE_1, FIGURE_2, *IMAGE_FIGURES)
