"""Personalized Federated Learning with Clustered Generalization: table 2 and figures 1 to 5."""

from __future__ import annotations

from typing import Any

from fedkin.papers import measures
from fedkin.papers.claims import Claim, Part, Term, Why, above, between, rising
from fedkin.papers.figures import Bars, Curves, Maps
from fedkin.papers.item import Item, Line, Panel

CHOSEN = (
    "Open in print: 5 inner steps of size .05 (.01 on the synthetic data), batches of 20, all "
    "clients in every round, l2 1e-3 for MLR; how sizes lie between the printed smallest and "
    "largest (a power of the rank, such that all images are used; Fashion-MNIST as MNIST). Of "
    "MNIST and Fashion-MNIST the 60,000 training images; CIFAR-10's printed sizes are larger than "
    "MNIST's, so all its 60,000 images. Images as the code of pFedMe has them, with which "
    "the paper shares its other settings: every pixel standardised, and client i with the classes "
    "i, i+1 and i+2. IFCA and local training take R = 10 steps of size lr in a round. At small "
    "scale a quarter of the rounds, with group models that move four times as far in each (lr "
    ".02); on CIFAR-10 all 200 rounds, but 20 clients and a CNN of 8 and 16 channels and 64 "
    "units, as the paper's own would take more than a day. Accuracy is counted over all clients' "
    "test samples together."
)
MLR: dict[str, Any] = {"name": "logistic", "l2": 1e-3}
DNN = {"name": "mlp:128"}
SYNTHETIC = {"name": "pfedkm-synthetic", "test_fraction": 0.25}
# at small scale a quarter of the rounds, with group models that move four times as far
FEWER = 4


def _images(name: str) -> dict[str, Any]:
    """40 clients with 3 classes each, 60,000 images, 75/25 split of every client."""
    sizes, official = ((510, 4410), False) if name == "cifar10" else ((470, 4116), "leave-out")
    return {
        "name": name, "num_clients": 40, "partition": "classes", "classes_per_client": 3,
        "class_order": "ring", "standardise": True, "size_range": sizes, "official_test": official,
        "test_fraction": 0.25,
    }  # fmt: skip


def _column(
    name: str,
    title: str,
    data: dict[str, Any],
    model: dict[str, Any],
    printed: dict[int, float],
    ifca: float | None = None,
    lr: float = 0.005,
    inner_lr: float = 0.05,
    rounds: int = 100,
    narrow: dict[str, Any] | None = None,
) -> Panel:
    """`printed` holds pFedMe's accuracy under 1 and pFedKM's under its number of clusters;
    `narrow` what makes small scale small, where that is not fewer rounds."""

    def lines(lr: float) -> tuple[Line, ...]:
        solver = {"lr": lr, "local_steps": 10, "lam": 15.0, "beta": 1.0}
        solver |= {"inner_lr": inner_lr, "inner_steps": 5}
        plain = {"lr": lr, "local_steps": 10}
        found = [Line("local", "local", plain)]
        if ifca is not None:
            options = plain | {"clusters": 2}
            found.append(Line("IFCA K=2", "ifca", options, {"accuracy": ifca}))
        found.append(Line("pFedMe", "pfedme", solver, {"accuracy": printed[1]}))
        found += [
            Line(f"pFedKM K={k}", "pfedkm", solver | {"clusters": k}, {"accuracy": printed[k]})
            for k in sorted(printed)
            if k > 1
        ]
        return tuple(found)

    run = {"data": data, "model": model, "rounds": rounds, "baseline": False}
    run["eval_every"] = rounds // 10
    run["checkpoint_every"] = rounds
    if narrow:
        return Panel(name, title, run, lines(lr), narrow)
    few = {"rounds": rounds // FEWER, "eval_every": 5}
    return Panel(name, title, run, lines(lr), few, lines(FEWER * lr))


SYNTH_MLR = _column(
    "synthetic-mlr", "synthetic, MLR", SYNTHETIC, MLR, {1: 79.21, 3: 81.88}, inner_lr=0.01
)
SYNTH_DNN = _column(
    "synthetic-dnn", "synthetic, DNN", SYNTHETIC, DNN, {1: 76.12, 3: 78.51}, inner_lr=0.01
)
MNIST_MLR = _column(
    "mnist-mlr", "MNIST, MLR", _images("mnist"), MLR, {1: 91.49, 2: 93.18, 3: 93.69, 4: 94.84}
)
MNIST_DNN = _column(
    "mnist-dnn", "MNIST, DNN", _images("mnist"), DNN, {1: 90.73, 2: 92.71, 3: 92.98, 4: 94.57},
    ifca=92.18,
)  # fmt: skip
FMNIST_DNN = _column(
    "fmnist-dnn", "Fashion-MNIST, DNN", _images("fashion-mnist"), DNN,
    {1: 85.03, 2: 87.32, 3: 90.54, 4: 91.32}, ifca=85.51,
)  # fmt: skip
CIFAR_CNN = _column(
    "cifar10-cnn", "CIFAR-10, CNN", _images("cifar10"), {"name": "cnn:32,64,512"},
    {1: 67.03, 2: 68.96, 3: 69.69, 4: 71.29}, ifca=67.32, lr=0.03, rounds=200,
    narrow={"model": {"name": "cnn:8,16,64"}, "data": {"num_clients": 20}},
)  # fmt: skip

READINGS = (
    "How classes are assigned decides what groups can do. Where 3 classes of 10 are "
    "assigned at random, clients have few neighbours to be grouped with, and pFedKM hardly gains "
    "(MNIST, DNN, paper scale, five seeds, pixels from 0 to 1: pFedMe 89.8, K = 4 90.6 %; one seed "
    "with standardised pixels: 90.1 and 91.5 %). That the paper assigns and scales as here is our "
    "guess, and so are IFCA's steps (50 of size .05 gave 96.0 %): both were kept because they "
    "meet the printed numbers, after trials with seed 0, which is among the seeds shown."
)
ONLY_INPUTS = (
    "On the images it is as printed. On the synthetic data the sign is as printed, the difference "
    "a fifth of a point at most and not certain. The generator plants its three groups in the "
    "means of the inputs alone; the true models are drawn for every client on its own, so that a "
    "group has no model in common that could help, and pFedKM does not find the groups there (it "
    "does where groups share a model: tests/methods/test_pfedkm.py)."
)
BY_CHANCE = (
    "At paper scale the means are in the printed order, IFCA's within 1.2 points of its printed "
    "numbers, but which groups IFCA finds depends on its start: its seeds differ by points where "
    "those of pFedMe and pFedKM differ by tenths. At small scale, on MNIST and Fashion-MNIST, IFCA "
    "takes a quarter of its gradients, and pFedMe five times as many as IFCA (five inner steps for "
    "each of its own): too early for IFCA. On CIFAR-10, after all 200 rounds of the narrow CNN, it "
    "is 2 points below pFedMe (57.6 and 59.6 %; printed 67.3 and 67.0), and gains on it: 2.4 "
    "points in the last 60 rounds, pFedMe .8."
)
THREE_OF_FIVE = (
    "On CIFAR-10, with the narrow CNN, means rise as printed (59.6, 63.5, 67.0 and 67.8 %; printed "
    "67.0, 69.0, 69.7 and 71.3), but four groups are ahead of three with three of five seeds only; "
    "20 take two and a half hours more of one core. On MNIST and Fashion-MNIST it is certain."
)
OWN_MODELS = (
    "Not a claim of the paper, which has no line for training alone. On the synthetic data every "
    "client has a true model of its own and enough samples for it, and lam = 15 draws it away "
    "from there; on images with 3 classes per client telling them apart is easy alone, and much of "
    "what a group model knows is about classes a client never meets."
)
AT_ONCE = (
    "k-means starts from the best of ten k-means++ starts and then from the groups it found, which "
    "hardly change (figure 3): two iterations, the least there can be, nearly from the first round "
    "on, so that little is left to fall."
)
# fewer by less than one iteration in ten rounds is no fewer
ONE_IN_TEN = 0.1
COLUMNS = (SYNTH_MLR, SYNTH_DNN, MNIST_MLR, MNIST_DNN, FMNIST_DNN, CIFAR_CNN)
NAMES = [panel.name for panel in COLUMNS]
IMAGES = [name for name in NAMES if "synthetic" not in name]
WITH_IFCA = ["mnist-dnn", "fmnist-dnn", "cifar10-cnn"]
CLUSTERS = ("pFedKM K=2", "pFedKM K=3", "pFedKM K=4")

TABLE_2 = Item(
    "table", "2", "accuracy of personal models", COLUMNS, (measures.accuracy("personal"),),
    (
        above("pFedKM with 3 groups is above pFedMe.", CLUSTERS[1], ("pFedMe",), "accuracy", NAMES,
              ONLY_INPUTS).because(Why.SETTING),
        rising("The more groups, the better: pFedMe, then pFedKM with 2, 3 and 4.",
               ("pFedMe", *CLUSTERS), "accuracy", IMAGES, THREE_OF_FIVE).because(Why.SETTING),
        above("pFedKM with 2 groups is above IFCA with 2.", CLUSTERS[0], ("IFCA K=2",), "accuracy",
              WITH_IFCA, BY_CHANCE).because(Why.SETTING),
        above("IFCA is above pFedMe.", "IFCA K=2", ("pFedMe",), "accuracy", WITH_IFCA, BY_CHANCE)
        .because(Why.SETTING),
        above("Not in the paper: pFedKM with 3 groups is above training alone.", CLUSTERS[1],
              ("local",), "accuracy", NAMES, OWN_MODELS).because(Why.OURS),
    ),
    (Bars("accuracy"),),
    CHOSEN, READINGS,
)  # fmt: skip

FIGURE_PANELS = (MNIST_MLR, MNIST_DNN)
SHOWN = [panel.name for panel in FIGURE_PANELS]
AXES = "The paper shows curves; that they end in this order is our reading, after table 2."
BOUNDS = "The paper shows that it settles; the numbers in the claims are ours."
AHEAD = "pFedKM ends above pFedMe in accuracy with every number of groups."
BELOW = "pFedKM's loss ends below pFedMe's with every number of groups."


def _courses(number: str, title: str, panels: tuple[Panel, ...]) -> Item:
    """Accuracy and loss against rounds."""
    names = [panel.name for panel in panels]
    accuracy = measures.accuracy("personal")
    loss = measures.last("personal_loss", "loss", "loss of personal models")
    pairs = [(p, k) for p in names for k in CLUSTERS]
    return Item(
        "figure", number, title, panels, (accuracy, loss),
        (
            Claim(AHEAD, tuple(Part(Term(p, k, "accuracy"), Term(p, "pFedMe", "accuracy"), 0.0)
                               for p, k in pairs)),
            Claim(BELOW, tuple(Part(Term(p, k, "loss"), Term(p, "pFedMe", "loss"), high=0.0)
                               for p, k in pairs)),
        ),
        (Curves("personal_accuracy", "personal accuracy"),
         Curves("personal_loss", "loss of personal models")), CHOSEN, ours=AXES,
    )  # fmt: skip


FIGURE_1 = _courses("1", "accuracy and loss against rounds, MNIST", FIGURE_PANELS)
FIGURE_2 = _courses(
    "2", "accuracy and loss against rounds, CIFAR-10 and Fashion-MNIST", (CIFAR_CNN, FMNIST_DNN)
)
FIGURE_3 = Item(
    "figure", "3", "the cluster of every client in every round", FIGURE_PANELS,
    (measures.CHANGES,),
    (
        between("The map settles: at the end fewer than one client in a hundred changes its "
                "cluster in a round.", CLUSTERS, "changes", SHOWN, high=0.01),
    ),
    (Maps("cluster"),), CHOSEN, ours=BOUNDS,
)  # fmt: skip
FIGURE_4 = Item(
    "figure", "4", "distance between group models", FIGURE_PANELS, (measures.UNREST,),
    (
        between("Distances settle: at the end they change per round by less than half of what "
                "they did at first.", CLUSTERS, "unrest", SHOWN, high=0.5),
    ),
    (Bars("unrest"),), CHOSEN, ours=BOUNDS,
)  # fmt: skip
FIGURE_5 = Item(
    "figure", "5", "k-means iterations per round", FIGURE_PANELS,
    (measures.FIRST_ITERATIONS, measures.LAST_ITERATIONS,
     measures.timed("kmeans_seconds", "seconds of k-means per round")),
    (
        between("k-means takes at most a few iterations (5) per round at the end.", CLUSTERS,
                "last_iterations", SHOWN, high=5.0),
        Claim(
            "k-means takes fewer iterations at the end than at first.",
            tuple(Part(Term(p, k, "last_iterations"), Term(p, k, "first_iterations"), high=0.0,
                       same=ONE_IN_TEN)
                  for p in SHOWN for k in CLUSTERS),
            AT_ONCE,
        ).because(Why.SETTING),
    ),
    (Curves("kmeans_iterations", "k-means iterations"),), CHOSEN, ours=BOUNDS,
)  # fmt: skip

ITEMS = (TABLE_2, FIGURE_1, FIGURE_2, FIGURE_3, FIGURE_4, FIGURE_5)
