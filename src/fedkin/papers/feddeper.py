"""Depersonalized Federated Learning: table 1 and figures 1 and 3 to 7."""

from __future__ import annotations

from typing import Any

from fedkin.papers.claims import Claim, Part, Term, above, below, between, rising
from fedkin.papers.figures import Against, Bars, Curves
from fedkin.papers.item import Item, Line, Panel
from fedkin.papers.measures import accuracy, last, pooled

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
    """Setting (a): 10 clients, rho .03; (b): 100 clients, rho .005; m of them in a round."""
    data, model, setting = column.split("-")
    clients, rho = (10, 0.03) if setting == "a" else (100, 0.005)
    own = _options(rho)
    lines = tuple(
        Line(label, **own[label], printed={"accuracy": printed})
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
    "With 100 clients, 5 in a round, FedDeper with the printed rho = .005 diverges, on MNIST with "
    "three seeds and on CIFAR-10 with one. Leaving gradients aside, a visit turns e = x - v_i into "
    "(1 - lam)(1 + rho tau) e, and each of the n/m - 1 rounds until the next one adds rho tau e: "
    "from visit to visit, 20 rounds, e grows by q = (1 - lam)(1 + rho tau) + (n/m - 1) rho tau. "
    "Here q = 1.48, and the training loss is seen to grow by 1.5 every 20 rounds. In all other "
    "columns of the table q is below one (.99 for FedDeper*, .98 for m=10, .95 and .65 in setting "
    "(a)), and there training is stable, as it is with rho = .0025, q = .99 (89.8 %, a trial with "
    "one seed). How the printed 91.88 % were reached we do not know."
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
    f"{OPEN} {FEWER} {JUDGED}",
    "SCAFFOLD's 67-70 % with the CNN and 100 clients are far from its 92-95 % everywhere else on "
    "MNIST; the printed algorithm gives no reason for it.",
    "The claims are read off the printed numbers; the bound of 2.1 points is ours.",
    seeds=FEW,
)  # fmt: skip

TRAIN_LOSS = last("global_train_loss", "train_loss", "training loss of the global model")
FIGURES_4_6 = Item(
    "figure", "4-6", "training loss against rounds", COLUMNS, (TRAIN_LOSS,),
    (
        below("FedDeper's training loss ends below FedAvg's and FedProx's.", DEPER, (AVG, PROX),
              "train_loss", NAMES, f"{EVERYBODY}\n{STALE}"),
    ),
    (Curves("global_train_loss", "training loss of the global model", log=True),),
    f"{OPEN} {FEWER} The loss is the mean over clients of the global model's loss on their "
    "training data.",
    ours=OURS, seeds=FEW,
)  # fmt: skip

LOCAL = (
    last("personal_accuracy", "personal", "personal models on local test data, %", ".2f", 100),
    last("global_accuracy", "global", "global model on local test data, %", ".2f", 100),
)
FIGURE_7 = Item(
    "figure", "7", "global and personal models on local test data", COLUMNS, LOCAL,
    (
        Claim(
            "FedDeper's personal models are better on their clients' own test data than its "
            "global model.",
            tuple(Part(Term(p, DEPER, "personal"), Term(p, DEPER, "global"), 0.0) for p in NAMES),
            STALE,
        ),
    ),
    (Curves("personal_accuracy", "personal accuracy"), Curves("global_accuracy", "global model's")),
    f"{OPEN} {FEWER} Local test data: the official test samples given to clients by their classes.",
    ours=OURS, seeds=FEW,
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
    run = _run("mnist", 10, 5, MODELS["mnist-mlp"], 5000)
    run = run | {"data": run["data"] | {"partition": partition}, "train_scores": False}
    run |= {"eval_every": 5000, "checkpoint_every": 1000}
    small = {"model": {"name": "mlp:64"}, "rounds": 1000}
    return Panel(name, title, run, _fixed_work(5000), small, small_lines=_fixed_work(1000))


DRIFT = (_drift("tau-iid", "iid", "iid"), _drift("tau-shards", "not iid", "shards"))
FAVG = [line.label for line in DRIFT[0].lines]
FIGURE_1 = Item(
    "figure", "1", "training loss of FedAvg against tau, K tau fixed", DRIFT,
    (pooled("train_loss", "training loss of the global model"),),
    (
        rising("Where clients differ, more local steps between two averagings cost training loss.",
               (FAVG[0], FAVG[2], FAVG[4]), "train_loss", ["tau-shards"]),
        Claim(
            "The loss that 50 local steps cost is larger where clients differ than where they "
            "do not.",
            (Part(Term("tau-shards", FAVG[4], "train_loss"), Term("tau-iid", FAVG[4], "train_loss"),
                  low=0.0),),
        ),
    ),
    (Against("local_steps", "train_loss", "Training loss against tau, K tau fixed", log=True),),
    f"{OPEN} MNIST, MLP, 10 clients, 5 in a round; K tau is 5000 (1000 at small scale). The "
    "loss is that on 10,000 training samples of all clients.",
    ours=OURS,
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


RHO = _varied("vary-rho", "rho", (0.0, 0.003, 0.01, 0.03, 0.1), "rho")
LAM = _varied("vary-lam", "lam", (0.0, 0.25, 0.5, 0.75, 1.0), "lam")
TAU = _varied("vary-tau", "tau", (2, 5, 10, 20), "local_steps")
TEN_TIMES = (
    "It is stable up to rho = .03, but not at .1, the largest value we try, which is ten times the "
    "step size. The paper takes rho of the step size's order. Leaving gradients aside, x - v_i "
    "then doubles from visit to visit (q = (1 - lam)(1 + rho tau) + (n/m - 1) rho tau = 2, with "
    "rho = .03 it is .95), and the global model ends at chance."
)
FIGURE_3 = Item(
    "figure", "3", "accuracy against rho, lam, tau and K", (RHO, LAM, TAU), (accuracy("global"),),
    (
        above("rho=.03 is better than rho=0, which is FedAvg.", "FedDeper, rho=0.03",
              ("FedDeper, rho=0",), "accuracy", ["vary-rho"]),
        rising("More local steps give more accuracy after the same rounds.",
               ("FedDeper, tau=2", "FedDeper, tau=5", "FedDeper, tau=10"), "accuracy",
               ["vary-tau"]),
        between("Training is stable for all values shown (well above chance).",
                [line.label for line in RHO.lines], "accuracy", ["vary-rho"], low=50.0,
                discussion=TEN_TIMES),
    ),
    (
        Against("rho", "accuracy", "Accuracy against rho", ("vary-rho",)),
        Against("lam", "accuracy", "Accuracy against lam", ("vary-lam",)),
        Against("local_steps", "accuracy", "Accuracy against tau", ("vary-tau",)),
        Curves("global_accuracy", "accuracy of the global model"),
    ),
    f"{OPEN} {JUDGED} 10 clients, 5 in a round; what is not varied is as in table 1 (a). "
    "Accuracy against K is the curve against rounds.",
    ours=OURS,
)  # fmt: skip

ITEMS = (TABLE_1, FIGURE_1, FIGURE_3, FIGURES_4_6, FIGURE_7)
