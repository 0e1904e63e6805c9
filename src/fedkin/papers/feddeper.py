"""Depersonalized Federated Learning: table 1 and figures 4 to 7; figures 1 and 3 beside it."""

from __future__ import annotations

from typing import Any

from fedkin.papers.claims import Claim, Part, Term, Why, above, below, times
from fedkin.papers.feddeper_sweeps import (
    AVG,
    DEPER,
    FIGURE_1,
    FIGURE_3,
    HALF,
    JUDGED,
    LABELS,
    MODELS,
    OPEN,
    PROX,
    SCAFFOLD,
    options,
    settings,
)
from fedkin.papers.figures import Bars, Curves
from fedkin.papers.item import Item, Line, Panel
from fedkin.papers.measures import accuracy, at_round, last

FEWER = (
    "At small scale 20,000 of the training samples and 100 rounds; with the CNN, one of 8 and 16 "
    "channels and 64 units, 60 and pixels standardised, without which it has hardly begun to learn "
    "by then. On CIFAR-10 such a narrow CNN and standardised pixels too, but all 2000 rounds and "
    "all samples; of CIFAR-10's columns this one alone."
)
FEW = {"small": 3, "paper": 3}
TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "mlp": "MLP", "cnn": "CNN"}
TRAINED = "FedAvg, just trained"

# table 1 by column and m, in the order of LABELS
PRINTED = {
    ("mnist-mlp-a", 5): (94.92, 94.67, 89.19, 86.19, 94.52),
    ("mnist-mlp-a", 10): (95.28, 95.23, 89.86, 88.77, 95.32),
    ("mnist-cnn-a", 5): (95.84, 95.00, 90.34, 86.83, 94.20),
    ("mnist-cnn-a", 10): (96.55, 95.11, 93.73, 91.11, 95.64),
    ("mnist-mlp-b", 5): (91.88, 92.08, 87.64, 82.94, 93.05),
    ("mnist-mlp-b", 10): (93.70, 93.42, 87.88, 84.02, 92.02),
    ("mnist-cnn-b", 5): (96.13, 91.03, 89.86, 87.17, 69.93),
    ("mnist-cnn-b", 10): (96.88, 96.58, 91.14, 87.36, 67.11),
    ("cifar10-mlp-b", 5): (48.84, 47.23, 45.22, 44.36, 49.63),
    ("cifar10-mlp-b", 10): (50.66, 51.05, 49.95, 48.53, 52.72),
    ("cifar10-cnn-b", 5): (68.19, 67.19, 56.28, 49.20, 51.58),
    ("cifar10-cnn-b", 10): (71.27, 71.27, 60.84, 54.80, 49.00),
}


def stable_rhos(clients: int, m: int, steps: int = 10, lam: float = 0.5) -> tuple[float, ...]:
    """Values to choose from, all with rho*tau < p*lam/(1 - p*lam), p = m/n."""
    back = lam * m / clients
    return tuple(round(share * back / (1 - back) / steps, 6) for share in (0.1, 0.3, 0.6, 0.9))


def _column(column: str, m: int) -> Panel:
    """Setting (a): 10 clients; (b): 100 clients; m of them in a round, and rho tuned."""
    data, model, setting = column.split("-")
    clients = 10 if setting == "a" else 100
    own = options()
    rhos = {DEPER: {"rho": stable_rhos(clients, m)}, HALF: {"rho": stable_rhos(clients, m, 5)}}
    lines = tuple(
        Line(label, **own[label], printed={"accuracy": printed}, tune=rhos.get(label, {}))
        for label, printed in zip(LABELS, PRINTED[column, m], strict=True)
    )
    run = settings(data, clients, m, MODELS[f"{data}-{model}"], 500 if data == "mnist" else 2000)
    # scores on all training data take as long as many rounds
    small: dict[str, Any] = {"rounds": 100, "eval_every": 50, "checkpoint_every": 50}
    small["data"] = {"train_per_client": 20_000 // clients}
    if model == "cnn":
        run["eval_every"] = 100
        small |= {"model": {"name": "cnn3:8,16,64"}, "rounds": 60, "eval_every": 30}
        small["data"]["standardise"] = True
    title = f"({setting}) {TITLES[data]} {TITLES[model]}, m={m}"
    if column == "cifar10-cnn-b" and m == 5:
        narrow = {"model": {"name": "cnn:8,16,64"}, "data": {"standardise": True}}
        return Panel(f"{column}-m{m}", title, run, lines, narrow | {"eval_every": 500})
    return Panel(f"{column}-m{m}", title, run, lines, small if data == "mnist" else None)


COLUMNS = tuple(_column(*key) for key in PRINTED)
NAMES = [panel.name for panel in COLUMNS]
MLP, CNN = ([n for n in NAMES if kind in n] for kind in ("mlp", "cnn"))

EVERYBODY = (
    "It holds wherever a part of the clients is asked, by 5 to 12 points at small scale, and not "
    "where all 10 are: there FedDeper is level with FedAvg with the CNN and a point above with the "
    "MLP, where 3 and 5 are printed. When everybody takes part the pull slows the shared model "
    "down by about rho tau (the method's page has the formula), while with fewer than two thirds "
    "of the clients it speeds it up; of the values of rho the smallest is then chosen, and "
    "elsewhere the largest. In older runs at paper scale, too, it was 5 to 6 points above with 5 "
    "of 10 clients and with 10 of 100, and level with all 10. There the MLP in setting (a) was "
    "about 3 points below print, FedAvg's too, and in (b) with m=10 FedDeper, FedAvg and SCAFFOLD "
    "were within a point of it. How pixels are scaled, open in print, matters: here they lie "
    "between 0 and 1. Standardised (all 10 clients, one seed) SCAFFOLD ended at 95.2 % (printed "
    "95.3), FedDeper at 94.3 (95.3), but FedAvg at 94.8 (89.9): that is not what the paper did "
    "either. One round computed by hand and rho = 0 equal to FedAvg are tests."
)
HALF_AS_FAR = (
    "With the MLP it holds wherever a part of the clients is asked, by 7 to 8 points, and not "
    "where all 10 are (7 below). With half of the steps models have come half as far after as many "
    "rounds, and at small scale all are still rising: with the CNN, after 60 rounds of MNIST, it "
    "is level with FedAvg or up to 7 points below. After 2000 rounds of CIFAR-10, with a narrow "
    "CNN, it is 10 points above FedAvg and 2 above FedDeper (11 above and 1 below in print)."
)
BEHIND = (
    "SCAFFOLD learns faster: at small scale FedDeper is .4 to 1.1 points below it with the CNN and "
    "1 to 8 with the MLP where a part of the clients is asked, farthest with 5 of 100, and 5 where "
    "all are. After the paper's 500 rounds of setting (a), m=5, in older runs, the two are level. "
    "After 2000 rounds of CIFAR-10, with a narrow CNN, it is as printed: FedDeper is 8 points "
    "above SCAFFOLD, which is no better than FedAvg there."
)
STALE = (
    "FedDeper is 'tuned' in print, without its rho. Gradients left aside, the mean of x - v_i "
    "grows in a round by (1 + s)(1 - p lam), s = 1 - (1 - rho)^tau and p = m/n, so that rho tau < "
    "p lam/(1 - p lam) is needed: with 5 of 100 clients .0025 is stable and .005, printed for "
    "figures 3 and 7, is not. Here rho is the best of .1, .3, .6 and .9 of that bound, judged by "
    "the global model's accuracy on a fifth of the training samples held back, with one seed of "
    "its own."
)
COLOURS = (
    "On CIFAR-10 with the MLP (m=5, one seed) our numbers are 5 to 15 points below print, where "
    "pixels lie between 0 and 1. Standardised, in a trial of half the rounds with one seed, FedAvg "
    "has 42.2 % after 1,000 and SCAFFOLD 50.8 (printed after 2,000: 45.2 and 49.6): there the "
    "paper seems to have standardised them."
)
NO_FALL = (
    "Here SCAFFOLD is above FedAvg, as in all columns of MNIST, and nothing in the printed "
    "algorithm makes it fall with the CNN and 100 clients. We take it for a matter of the paper's "
    "code or setting. At paper scale these two columns were not run."
)
HARDLY_PULLED = (
    "With lr .01 and mu = 1 a step of FedProx draws the model back by a hundredth of the way that "
    "it has come: under a constant gradient ten steps go 95.6 % as far as FedAvg's ((1 - .99^10) / "
    ".1). Printed differences of 1 to 7 points do not follow from the printed algorithm."
)
TABLE_1 = Item(
    "table", "1", "test accuracy of the global model", COLUMNS, (accuracy("global"),),
    (
        above("FedDeper is above FedAvg and FedProx.", DEPER, (AVG, PROX), "accuracy", NAMES,
              f"{EVERYBODY}\n{STALE}\n{COLOURS}").because(Why.SETTING),
        above("FedDeper with half the local steps (as many gradients as the others) is above "
              "FedAvg and FedProx too.", HALF, (AVG, PROX), "accuracy", NAMES,
              f"{HALF_AS_FAR}\n{COLOURS}").because(Why.SETTING),
        above("FedProx with mu=1 is below FedAvg.", AVG, (PROX,), "accuracy", NAMES, HARDLY_PULLED)
        .because(Why.PRINT),
        above("With the CNN, FedDeper is above SCAFFOLD.", DEPER, (SCAFFOLD,), "accuracy", CNN,
              BEHIND).because(Why.SETTING),
        Claim(
            "With the MLP, FedDeper and SCAFFOLD are within 2.1 points of each other.",
            tuple(Part(Term(p, DEPER, "accuracy"), Term(p, SCAFFOLD, "accuracy"), -2.1, 2.1)
                  for p in MLP),
            f"{BEHIND}\n{STALE}",
        ).because(Why.SETTING),
        above("With the CNN and 100 clients, SCAFFOLD falls below FedAvg on MNIST (printed "
              "67-70 % against 90-91 %).", AVG, (SCAFFOLD,), "accuracy",
              ["mnist-cnn-b-m5", "mnist-cnn-b-m10"], NO_FALL).because(Why.PRINT),
    ),
    (Bars("accuracy"),),
    f"{OPEN} {FEWER} {JUDGED} {STALE}",
    "SCAFFOLD's 67-70 % with the CNN and 100 clients are far from its 92-95 % everywhere else on "
    "MNIST; the printed algorithm gives no reason for it.",
    "The claims are read off the printed numbers; the bound of 2.1 points is ours.",
    seeds=FEW,
)  # fmt: skip

LOSS_BEHIND = (
    "On MNIST, at small scale, SCAFFOLD is about as fast: with the MLP FedDeper's loss ends below "
    "it with 5 of 10 clients (.54 against .64) and above it with 5 of 100 (.75 against .64), where "
    "rho must be smallest and seeds differ most; the other columns cannot be told apart by twelve "
    "seeds. After 2000 rounds of CIFAR-10, with a narrow CNN, it is as printed (1.13 against 1.42)."
)
TRAIN_LOSS = last("global_train_loss", "train_loss", "training loss of the global model")
FEW_ASKED = [name for name in NAMES if "-b-" in name or name.endswith("-m5")]
EVERYBODY_ASKED = [name for name in NAMES if name not in FEW_ASKED]
FIGURES_4_6 = Item(
    "figure", "4-6", "training loss against rounds", COLUMNS, (TRAIN_LOSS,),
    (
        below("FedDeper's training loss ends below FedAvg's and FedProx's where a part of the "
              "clients is asked.", DEPER, (AVG, PROX), "train_loss", FEW_ASKED,
              f"{EVERYBODY}\n{STALE}").because(Why.SETTING),
        below("It is the lowest almost everywhere: there, it ends below SCAFFOLD's too.", DEPER,
              (SCAFFOLD,), "train_loss", FEW_ASKED, f"{LOSS_BEHIND}\n{STALE}")
        .because(Why.SETTING),
        times("Where everybody is asked it is level with SCAFFOLD's (between half and twice).",
              DEPER, (SCAFFOLD,), "train_loss", EVERYBODY_ASKED, 0.5, 2.0, EVERYBODY)
        .because(Why.SETTING),
    ),
    (Curves("global_train_loss", "training loss of the global model", log=True),),
    f"{OPEN} {FEWER} {STALE} The loss is the mean over clients of the global model's loss on their "
    "training data.",
    ours="What 'level' means in numbers is ours. The comparison with SCAFFOLD is a claim of its "
    "own since all at once had left one claim open.", seeds=FEW,
)  # fmt: skip

COMMON, EARLY_ROUND = 20, 50


def _local(setting: str) -> Panel:
    """Local tests by the same split, and some samples that all clients have in theirs."""
    clients, m, rho = (10, 5, 0.03) if setting == "a" else (100, 10, 0.005)
    own, work = options(rho), {"lr": 0.01, "local_steps": 10, "tune_steps": 10}
    lines = (Line(DEPER, **own[DEPER]), Line(TRAINED, "fedavg-local", work))
    run = settings("mnist", clients, m, MODELS["mnist-mlp"], 500)
    run |= {"data": run["data"] | {"common_test": COMMON * clients // 10}, "eval_every": 10}
    run |= {"train_scores": False}
    small: dict[str, Any] = {"rounds": 100, "checkpoint_every": 50, "model": {"name": "mlp:64"}}
    small["data"] = {"train_per_client": 20_000 // clients}
    title = f"({setting}) MNIST MLP, n={clients}, m={m}"
    return Panel(f"local-{setting}", title, run, lines, small)


LOCAL = (
    last("personal_accuracy", "personal", "personal models on local test data, %", ".2f", 100),
    last("global_accuracy", "global", "global model on local test data, %", ".2f", 100),
    at_round("personal_accuracy", EARLY_ROUND, "early_personal", "personal models, early, %",
             ".2f", 100),
    at_round("global_accuracy", EARLY_ROUND, "early_global", "global model, early, %", ".2f", 100),
)  # fmt: skip
LOCAL_PANELS = tuple(_local(setting) for setting in "ab")
NOT_YET = (
    "At small scale there are a fifth of the rounds. With 10 clients personal models are ahead "
    "throughout, while the global model gains on them (11 points behind after 50 rounds, 6 after "
    "100); with 100 clients, of whom 10 are asked, each has trained its own model ten times by the "
    "end, and the global model is ahead throughout."
)
LOCALS = [panel.name for panel in LOCAL_PANELS]
FIGURE_7 = Item(
    "figure", "7", "global and personal models on local test data", LOCAL_PANELS, LOCAL,
    (
        Claim(
            "FedDeper's personal and global curves intersect: personal models are ahead early, and "
            "the global model at the end.",
            (*(Part(Term(p, DEPER, "early_personal"), Term(p, DEPER, "early_global"), low=0.0)
               for p in LOCALS),
             *(Part(Term(p, DEPER, "global"), Term(p, DEPER, "personal"), low=0.0)
               for p in LOCALS)),
        ).because(Why.SETTING, NOT_YET),
        above("FedDeper's global model ends above FedAvg's on local test data.", DEPER, (TRAINED,),
              "global", LOCALS),
    ),
    (Curves("personal_accuracy", "personal accuracy"), Curves("global_accuracy", "global model's")),
    f"{OPEN} {FEWER} rho as printed for this figure, .03 with 10 clients and .005 with 100; how "
    "many take part is open: 5 and 10, with which these are stable. Local test data: the "
    f"official test samples dealt to clients by their classes, and {COMMON} (100 clients: "
    f"{10 * COMMON}) that all clients have. FedAvg's personal models are those its clients have "
    "just trained: the global model after their 10 local steps.",
    ours="Which curve is ahead when is our reading of 'intersect'.", seeds=FEW,
)  # fmt: skip

ITEMS = (TABLE_1, FIGURE_1, FIGURE_3, FIGURES_4_6, FIGURE_7)
