"""Depersonalized Federated Learning: table 1 and figures 1 and 3 to 7."""

from __future__ import annotations

from typing import Any

from fedkin.papers.claims import Claim, Part, Term, above, below, rising, times
from fedkin.papers.figures import Against, Bars, Curves
from fedkin.papers.item import Item, Line, Panel
from fedkin.papers.measures import accuracy, at_round, last, pooled

OPEN = "Open in print: batches of 20."
FEWER = (
    "At small scale 20,000 of the training samples and 100 rounds; with the CNN, one of 8 and 16 "
    "channels and 64 units, 60 and pixels standardised, without which it has hardly begun to learn "
    "by then."
)
FEW = {"small": 3, "paper": 3}
OURS = "Of this figure only the axes are known to us: its claims are ours, not the paper's."
JUDGED = "Accuracy is that of the global model on the official test set."
MODELS = {
    "mnist-mlp": "mlp:512,256",
    "mnist-cnn": "cnn3:32,64,1024,512",
    "cifar10-mlp": "mlp:512,256",
    "cifar10-cnn": "cnn:64,128,1024,512,256",
}
TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "mlp": "MLP", "cnn": "CNN"}
LABELS = ("FedDeper", "FedDeper* (half the steps)", "FedAvg", "FedProx", "SCAFFOLD")
DEPER, HALF, AVG, PROX, SCAFFOLD = LABELS
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


def _options(rho: float = 0.03, steps: int = 10, lam: float = 0.5) -> dict[str, dict[str, Any]]:
    """By label: the method and its numbers."""
    work = {"lr": 0.01, "local_steps": steps}
    deper = work | {"rho": rho, "lam": lam}
    return {
        DEPER: {"method": "feddeper", "options": deper},
        HALF: {"method": "feddeper", "options": deper | {"half": True}},
        AVG: {"method": "fedavg", "options": work},
        PROX: {"method": "fedprox", "options": work | {"mu": 1.0}},
        SCAFFOLD: {"method": "scaffold", "options": work},
    }


def _run(data: str, clients: int, m: int, model: str, rounds: int) -> dict[str, Any]:
    return {
        "data": {"name": data, "num_clients": clients, "partition": "shards"},
        "model": {"name": model},
        "fraction": m / clients,
        "rounds": rounds,
        "eval_every": 50,
        "checkpoint_every": rounds // 5,
        "baseline": False,
        "train_scores": True,
    }


def _column(column: str, m: int) -> Panel:
    """Setting (a): 10 clients; (b): 100 clients; m of them in a round, and rho tuned."""
    data, model, setting = column.split("-")
    clients = 10 if setting == "a" else 100
    own = _options()
    rhos = {DEPER: {"rho": stable_rhos(clients, m)}, HALF: {"rho": stable_rhos(clients, m, 5)}}
    lines = tuple(
        Line(label, **own[label], printed={"accuracy": printed}, tune=rhos.get(label, {}))
        for label, printed in zip(LABELS, PRINTED[column, m], strict=True)
    )
    run = _run(data, clients, m, MODELS[f"{data}-{model}"], 500 if data == "mnist" else 2000)
    small: dict[str, Any] = {"rounds": 100, "eval_every": 20, "checkpoint_every": 50}
    # scores on all training data take long
    small["data"] = {"train_per_client": 20_000 // clients}
    if model == "cnn":
        run["eval_every"] = 100
        small |= {"model": {"name": "cnn3:8,16,64"}, "rounds": 60}
        small["data"]["standardise"] = True
    title = f"({setting}) {TITLES[data]} {TITLES[model]}, m={m}"
    few = data == "mnist" and m == 5
    return Panel(f"{column}-m{m}", title, run, lines, small if few else None)


COLUMNS = tuple(_column(*key) for key in PRINTED)
NAMES = [panel.name for panel in COLUMNS]
MLP, CNN = ([n for n in NAMES if kind in n] for kind in ("mlp", "cnn"))

EVERYBODY = (
    "It holds with 5 of 10 clients and with 10 of 100, but not when all 10 take part (FedDeper is "
    "then level with FedAvg), nor with 5 of 100, where it diverges. With 5 of 10 clients, and with "
    "10 of 100, it is as printed: FedDeper 5 to 6 points above FedAvg and level with SCAFFOLD. "
    "With all 10 FedDeper's global model is slow at first and meets FedAvg's in the "
    "end, where the paper prints 95 %: when everybody takes part the personal models "
    "are never stale, and what is taken off each client's way sums to little. In "
    "setting (a) our numbers with the MLP are about 3 points below the printed ones, FedAvg's too; "
    "in (b) with m=10 FedDeper, FedAvg and SCAFFOLD are within a point of print. How pixels are "
    "scaled, open in print, matters: here they lie between 0 and 1. Standardised (all 10 clients, "
    "one seed) SCAFFOLD ends at 95.2 % (printed 95.3), FedDeper at 94.3 (95.3), but FedAvg at 94.8 "
    "(89.9): that is not what the paper did either. With 5 clients FedDeper is then 1.9 points "
    "above FedAvg. One round computed by hand and rho = 0 equal to FedAvg are tests."
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
PLATEAU = (
    "At small scale FedDeper* has taken half as many steps in 60 rounds of the narrow CNN, when "
    "all are still rising. After the paper's 500 rounds of setting (a), one seed, FedDeper is "
    "level with SCAFFOLD and 6 points above FedAvg."
)
NO_FALL = (
    "Here SCAFFOLD is above FedAvg, as in all other columns, and nothing in the printed algorithm "
    "makes it fall with the CNN and 100 clients. We take it for a matter of the paper's code or "
    "setting. At paper scale these two columns were not run."
)
TABLE_1 = Item(
    "table", "1", "test accuracy of the global model", COLUMNS, (accuracy("global"),),
    (
        above("FedDeper is above FedAvg and FedProx.", DEPER, (AVG, PROX), "accuracy", NAMES,
              f"{EVERYBODY}\n{STALE}\n{COLOURS}\n{PLATEAU}"),
        above("FedDeper with half the local steps (as many gradients as the others) is above "
              "FedAvg and FedProx too.", HALF, (AVG, PROX), "accuracy", NAMES,
              f"{EVERYBODY}\n{COLOURS}\n{PLATEAU}"),
        above("FedProx with mu=1 is below FedAvg.", AVG, (PROX,), "accuracy", NAMES),
        above("With the CNN, FedDeper is above SCAFFOLD.", DEPER, (SCAFFOLD,), "accuracy", CNN,
              PLATEAU),
        Claim(
            "With the MLP, FedDeper and SCAFFOLD are within 2.1 points of each other.",
            tuple(Part(Term(p, DEPER, "accuracy"), Term(p, SCAFFOLD, "accuracy"), -2.1, 2.1)
                  for p in MLP),
            f"{EVERYBODY}\n{STALE}",
        ),
        above("With the CNN and 100 clients, SCAFFOLD falls below FedAvg on MNIST (printed "
              "67-70 % against 90-91 %).", AVG, (SCAFFOLD,), "accuracy",
              ["mnist-cnn-b-m5", "mnist-cnn-b-m10"], NO_FALL),
    ),
    (Bars("accuracy"),),
    f"{OPEN} {FEWER} {JUDGED} {STALE}",
    "SCAFFOLD's 67-70 % with the CNN and 100 clients are far from its 92-95 % everywhere else on "
    "MNIST; the printed algorithm gives no reason for it.",
    "The claims are read off the printed numbers; the bound of 2.1 points is ours.",
    seeds=FEW,
)  # fmt: skip

TRAIN_LOSS = last("global_train_loss", "train_loss", "training loss of the global model")
FEW_ASKED = [name for name in NAMES if "-b-" in name or name.endswith("-m5")]
EVERYBODY_ASKED = [name for name in NAMES if name not in FEW_ASKED]
FIGURES_4_6 = Item(
    "figure", "4-6", "training loss against rounds", COLUMNS, (TRAIN_LOSS,),
    (
        below("FedDeper's training loss is the lowest almost everywhere: below FedAvg's, FedProx's "
              "and SCAFFOLD's where a part of the clients is asked.", DEPER, (AVG, PROX, SCAFFOLD),
              "train_loss", FEW_ASKED, f"{EVERYBODY}\n{STALE}"),
        times("Where everybody is asked it is level with SCAFFOLD's (between half and twice).",
              DEPER, (SCAFFOLD,), "train_loss", EVERYBODY_ASKED, 0.5, 2.0, EVERYBODY),
    ),
    (Curves("global_train_loss", "training loss of the global model", log=True),),
    f"{OPEN} {FEWER} {STALE} The loss is the mean over clients of the global model's loss on their "
    "training data.",
    ours="What 'level' means in numbers is ours.", seeds=FEW,
)  # fmt: skip

COMMON, EARLY_ROUND = 20, 50


def _local(setting: str) -> Panel:
    """Local tests by the same split, and some samples that all clients have in theirs."""
    clients, m, rho = (10, 5, 0.03) if setting == "a" else (100, 10, 0.005)
    own, work = _options(rho), {"lr": 0.01, "local_steps": 10, "tune_steps": 10}
    lines = (Line(DEPER, **own[DEPER]), Line(TRAINED, "fedavg-local", work))
    run = _run("mnist", clients, m, MODELS["mnist-mlp"], 500)
    run |= {"data": run["data"] | {"common_test": COMMON * clients // 10}, "eval_every": 10}
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
        ),
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


# figure 1: K tau fixed --------------------------------------------------------------------

TAUS = (1, 5, 10, 25, 50)


def _fixed_work(total: int) -> tuple[Line, ...]:
    return tuple(
        Line(f"FedAvg, tau={tau}", "fedavg", {"lr": 0.01, "local_steps": tau},
             run={"rounds": total // tau})
        for tau in TAUS
    )  # fmt: skip


def _drift(name: str, title: str, partition: str) -> Panel:
    run = _run("mnist", 10, 5, "linear", 5000)
    run = run | {"data": run["data"] | {"partition": partition}, "train_scores": False}
    run |= {"model": {"name": "linear", "loss": "hinge"}, "eval_every": 5000}
    run |= {"checkpoint_every": 1000}
    small = {"rounds": 1000}
    return Panel(name, title, run, _fixed_work(5000), small, small_lines=_fixed_work(1000))


DRIFT = (_drift("tau-iid", "iid", "iid"), _drift("tau-shards", "not iid", "shards"))
FAVG = [line.label for line in DRIFT[0].lines]
FIGURE_1 = Item(
    "figure", "1", "training loss of FedAvg against tau, K tau fixed", DRIFT,
    (pooled("train_loss", "training loss of the global model"),),
    (
        rising("Where clients differ, training loss grows with tau.", FAVG, "train_loss",
               ["tau-shards"]),
        Claim(
            "It grows until it meets a limit: at tau = 50 it is less than twice what it is at 25.",
            (Part(Term("tau-shards", FAVG[-1], "train_loss"),
                  Term("tau-shards", FAVG[-2], "train_loss"), high=2.0, ratio=True),),
        ),
        Claim(
            "With all tau above 1 the loss is larger where clients differ than where they do not.",
            tuple(Part(Term("tau-shards", line, "train_loss"), Term("tau-iid", line, "train_loss"),
                       low=0.0) for line in FAVG[1:]),
        ),
    ),
    (Against("local_steps", "train_loss", "Training loss against tau, K tau fixed", log=True),),
    f"{OPEN} MNIST, a linear support vector machine (hinge loss), 10 clients, 5 in a round; K tau "
    "is 5000 (1000 at small scale). The loss is that on 10,000 training samples of all clients.",
    ours="That twice is a limit is ours.",
)  # fmt: skip


# figure 3: sensitivity ----------------------------------------------------------------------


def _varied(name: str, symbol: str, values: tuple[float, ...], option: str) -> Panel:
    lines = tuple(
        Line(f"FedDeper, {symbol}={value:g}", "feddeper",
             {**_options()[DEPER]["options"], option: value})
        for value in values
    )  # fmt: skip
    run = _run("mnist", 10, 5, MODELS["mnist-mlp"], 500)
    small: dict[str, Any] = {"rounds": 60, "eval_every": 20, "checkpoint_every": 60}
    small |= {"model": {"name": "mlp:64"}}
    return Panel(name, f"MNIST MLP, {symbol}", run, lines, small)


RHO = _varied("vary-rho", "rho", (0.0, 0.003, 0.03, 0.1), "rho")
LAM = _varied("vary-lam", "lam", (0.25, 0.5, 0.75, 1.0), "lam")
TAU = _varied("vary-tau", "tau", (2, 5, 10, 20), "local_steps")


def _aggregations() -> Panel:
    """K tau = 5000 steps in all; rho as large as is stable with so many local steps."""

    def lines(total: int) -> tuple[Line, ...]:
        return tuple(
            Line(f"FedDeper, K={total // tau}", "feddeper",
                 {"lr": 0.01, "local_steps": tau, "lam": 0.5}, run={"rounds": total // tau})
            for tau in (50, 20, 10, 5)
        )  # fmt: skip

    run = _run("mnist", 10, 5, MODELS["mnist-mlp"], 1000) | {"eval_every": 1000}
    small: dict[str, Any] = {"rounds": 120, "checkpoint_every": 60, "model": {"name": "mlp:64"}}
    return Panel("vary-k", "MNIST MLP, K tau fixed", run, lines(5000), small, lines(600))


AGGREGATIONS = _aggregations()
BEYOND = (
    "With 5 of 10 clients and lam = .5 rho tau must stay below 1/3: rho = .1, lam = .25 (whose "
    "bound is 1/7) and tau = 20 lie beyond it with rho = .03 and tau = 10 otherwise, as a note "
    "says before these runs."
)
FIGURE_3 = Item(
    "figure", "3", "accuracy against rho, lam, tau and K", (RHO, LAM, TAU, AGGREGATIONS),
    (accuracy("global"),),
    (
        above("A suitable rho exists, of lr's order: .03 is above all others shown.",
              "FedDeper, rho=0.03",
              [line.label for line in RHO.lines if line.label != "FedDeper, rho=0.03"], "accuracy",
              ["vary-rho"], BEYOND),
        above("A suitable lam exists: .5 is above all others shown.", "FedDeper, lam=0.5",
              [line.label for line in LAM.lines if line.label != "FedDeper, lam=0.5"], "accuracy",
              ["vary-lam"], BEYOND),
        rising("More local steps give more accuracy after the same rounds.",
               [line.label for line in TAU.lines], "accuracy", ["vary-tau"], BEYOND),
        rising("Fewer aggregations hurt (the paper's scale).",
               [line.label for line in AGGREGATIONS.lines], "accuracy", ["vary-k"]),
    ),
    (
        Against("rho", "accuracy", "Accuracy against rho", ("vary-rho",)),
        Against("lam", "accuracy", "Accuracy against lam", ("vary-lam",)),
        Against("local_steps", "accuracy", "Accuracy against tau", ("vary-tau",)),
        Against("rounds", "accuracy", "Accuracy against K", ("vary-k",)),
        Curves("global_accuracy", "accuracy of the global model"),
    ),
    f"{OPEN} {JUDGED} 10 clients, 5 in a round; rho = .03 as printed for this figure, lam = .5 and "
    "tau = 10 where they are not varied.",
    ours="The grids are ours, and that the suitable values are .03 and .5.",
)  # fmt: skip

ITEMS = (TABLE_1, FIGURE_1, FIGURE_3, FIGURES_4_6, FIGURE_7)
