"""Advice in words: for those who decide, and for those who check."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, isfinite, log10

from fedkin.reports.words import NOTHING, listed
from fedkin.runs.advice_answer import Advice, Site
from fedkin.runs.advice_scores import Gain
from fedkin.runs.measures import Measure
from fedkin.runs.names import cut

WAYS = {
    "local": "alone",
    "fedavg": "one model for all",
    "fedavg-local": "one model, then steps at home",
    "fedper": "shared layers below a personal last layer (FedPer)",
    "ditto": "a personal model pulled to a common one (Ditto)",
    "ifca": "one model for each group (IFCA)",
    "pfedkm": "personal models around group models (pFedKM)",
    "perm": "personal models from chosen partners (PERM)",
}
ANSWERS = {
    "alone": "Train alone: no gain from collaborating can be told from noise.",
    "one": "Collaborate, with one model for all.",
    "groups": "Collaborate within groups of similar sites.",
    "personal": "Collaborate, with a personal model for every site.",
}
SITE_ADVICE = {
    "gains": "collaborate",
    "loses": "stay out",
    "same": "no difference seen",
    "unknown": "too few rows to say",
}
# names listed in a sentence
MOST_NAMED = 6
MOST_DIGITS = 5  # after or before the point; beyond it numbers are written with a power of ten


def value(number: float, measure: Measure) -> str:
    """A share in percent, other measures as they are."""
    if not isfinite(number):
        return NOTHING
    return f"{100 * number:.1f} %" if measure.share else f"{number:.3g}"


def difference(number: float | None, measure: Measure, scale: float | None = None) -> str:
    """A gain with its sign; more is always better.

    What is no share has the digits that fit numbers as large as `scale`.
    """
    if number is None or not isfinite(number):
        return NOTHING
    if measure.share:
        text = f"{100 * number:+.1f}"
    elif scale is None or not MOST_DIGITS > -log10(scale) > -MOST_DIGITS:
        text = f"{number:+.3g}"
    else:
        text = f"{number:+.{max(0, 2 - floor(log10(scale)))}f}"
    return text if float(text) else text.lstrip("+-")


def interval(gain: Gain | None, metric: Measure) -> str:
    """`+1.2 (-0.3 to +2.7)`."""
    if gain is None:
        return NOTHING
    if gain.low is None or gain.high is None:
        return difference(gain.mean, metric)
    scale = (gain.high - gain.low) / 2 or None  # digits beyond the noise say nothing
    mean, low, high = (difference(x, metric, scale) for x in (gain.mean, gain.low, gain.high))
    return f"{mean} ({low} to {high})"


def unit(measure: Measure) -> str:
    """What gains are in: `points of accuracy`, `R2`, `reduction in RMSE`."""
    points = "points of " if measure.share else ""
    return points + (measure.title if measure.higher else f"reduction in {measure.title}")


def named(names: Sequence[str]) -> str:
    """Some names, cut, and how many more there are."""
    shown = [cut(name, 40) for name in names[:MOST_NAMED]]
    more = len(names) - len(shown)
    return listed([*shown, f"{more} more"] if more > 0 else shown)


def answer(advice: Advice) -> list[str]:
    """Should you collaborate? First the answer, then what it rests on."""
    metric, n = advice.measure, len(advice.sites)
    found = [ANSWERS[advice.decision]]
    if advice.gain is not None:
        found.append(f"Together, a site's {metric.title} {_moves(advice.gain, metric)}.")
    counts = {key: advice.count(key) for key in SITE_ADVICE}
    told = f"Of {n} sites, {counts['gains']} gain, {counts['same']} stay the same within noise and "
    told += f"{counts['loses']} lose"
    told += f"; {counts['unknown']} have too few rows to say." if counts["unknown"] else "."
    found.append(told)
    if advice.spread is not None and not advice.spread.seen:
        means = [site.own_gain.mean for site in advice.sites if site.own_gain is not None]
        up, down = sum(gain > 0 for gain in means), sum(gain < 0 for gain in means)
        found.append(
            "What sites gain does not differ beyond noise, so each is judged mostly by the mean of "
            f"all: that is no proof for any single one. By their own rows {up} are better and "
            f"{down} worse together."
        )
    if advice.decision != "alone" and counts["gains"] < n / 2:
        found.append(
            "Few sites have rows enough to show a gain one by one; that of all together is beyond "
            "noise."
        )
    better = advice.measure.sign
    own = [site.alone if advice.decision == "alone" else site.together for site in advice.sites]
    known = [v for v in own if isfinite(v)]
    mean = sum(known) / len(known) if known else float("nan")
    if better * (mean - advice.mean_trivial) <= 0:
        found.append(
            "Beware: the answer that needs no model (commonest class, mean) has "
            f"{value(advice.mean_trivial, metric)}, the models {value(mean, metric)}: little can "
            "be learnt from these columns."
        )
    elif hopeless := [site.name for site in advice.sites if _beaten(site, advice)]:
        found.append(
            f"At {named(hopeless)} the answer that needs no model seems at least as good as the "
            "models, alone and together (column: no model)."
        )
    losers = [site.name for site in advice.sites if site.verdict == "loses"]
    winners = [site.name for site in advice.sites if site.verdict == "gains"]
    if losers and advice.decision != "alone":
        found.append(f"Not for {named(losers)}: better off alone.")
    if winners and advice.decision == "alone":
        found.append(f"Yet {named(winners)} did gain: for them it may be worth a closer look.")
    if counts["gains"] + counts["loses"] and n >= 20:
        chance = 0.025 * n
        found.append(
            f"By chance alone about {chance:.0f} of {n} sites would seem to gain, as many to lose."
        )
    return found


def _moves(gain: Gain, measure: Measure) -> str:
    """`improves by 1.2 points on average over alone (95 % interval +0.3 to +2.1)`."""
    shown = difference(gain.mean, measure)
    points = " points" if measure.share else ""
    verb = "improves" if gain.mean > 0 else "worsens"
    moves = f"{verb} by {shown.lstrip('+-')}{points}" if float(shown) else "stays the same"
    if gain.low is None:
        return f"{moves} on average over alone"
    low, high = difference(gain.low, measure), difference(gain.high, measure)
    return f"{moves} on average over alone (95 % interval {low} to {high}, + is better)"


def _beaten(site: Site, advice: Advice) -> bool:
    """Whether a site's models are no better than the answer that needs none."""
    better = advice.measure.sign
    models = [better * v for v in (site.alone, site.together) if isfinite(v)]
    return bool(models) and isfinite(site.trivial) and max(models) <= better * site.trivial


def partners(advice: Advice) -> list[str]:
    """With whom?"""
    kin = advice.kin
    if kin is None:
        return ["Who is kin to whom is not known: no method that learns it could be trained."]
    names, found = [site.name for site in advice.sites], []
    if kin.groups:
        found.append(
            f"There are {len(kin.groups)} groups of kin; splits agree on them "
            f"{'well' if kin.agreement > 0.9 else 'for the most part'} "
            f"(adjusted Rand index {kin.agreement:.2f}, 1 is perfect)."
        )
        for number, members in enumerate(kin.groups, 1):
            found.append(f"Group {number}: {named([names[i] for i in members])}.")
    elif advice.decision == "groups":
        found.append(
            "The method puts sites into groups while it trains, but splits do not agree on who "
            f"belongs together (adjusted Rand index {kin.agreement:.2f}): they are not named here."
        )
    else:
        found.append("No groups stand out: there are none that the splits agree on.")
    most = sorted(advice.sites, key=lambda site: -site.gives)[:3]
    if most and most[0].gives > 0:
        own = float(kin.weights.diagonal().mean())
        shares = [f"{cut(site.name, 40)} ({site.gives:.1%})" for site in most if site.gives > 0]
        found.append(
            f"A site's model is made of its own rows by {own:.0%} on average, as PERM weighs them, "
            f"and of each other site's by {(1 - own) / (len(names) - 1):.1%}; others learn most "
            f"from {listed(shares)}."
        )
    if advice.decision == "alone":
        found.append("As no gain was seen, this tells who is alike rather than whom to join.")
    return found


def means(advice: Advice) -> list[str]:
    """With what?"""
    options = ", ".join(f"{key} {number:g}" if isinstance(number, float) else f"{key} {number}"
                        for key, number in advice.options.items())  # fmt: skip
    chosen = next((way.chosen for way in advice.ways if way.method == advice.method), 0)
    way = WAYS[advice.method]
    found = [
        f"{way[0].upper()}{way[1:]}: method {advice.method} ({options}), model "
        f"{advice.model}, {advice.rounds} rounds."
    ]
    if advice.decision != "alone":
        found.append(
            f"It was chosen on validation rows in {chosen} of {advice.effort.splits} splits. "
            "Of ways that are equally good the simplest is taken."
        )
    return found


def size(megabytes: float) -> str:
    return f"{megabytes:.3g} MB" if megabytes >= 1 else f"{1000 * megabytes:.3g} kB"


def costs(advice: Advice) -> list[str]:
    """What would it cost?"""
    if advice.decision == "alone":
        found = [
            "Alone nothing is sent. Together it would be "
            f"{size(advice.megabytes)} for each site, both ways."
        ]
    else:
        found = [
            f"{size(advice.megabytes)} for each site, both ways, in {advice.rounds} rounds "
            "(compressed or encrypted messages differ a little)."
        ]
    return found + contributions(advice)


def contributions(advice: Advice) -> list[str]:
    """What the others would lose without the sites that they learn from most."""
    given = sorted(advice.contributions.items(), key=lambda item: -item[1].mean)
    sure = [(name, gain) for name, gain in given if gain.verdict in ("gains", "loses")]
    found = []
    for name, gain in sure:
        how = "worse" if gain.verdict == "gains" else "better"
        found.append(
            f"Without {cut(name, 40)} the others would be {how} off: its part is worth "
            f"{interval(gain, advice.measure)} {unit(advice.measure)} to them."
        )
    rest = [name for name, gain in given if gain.verdict not in ("gains", "loses")]
    if rest:
        found.append(
            f"Training without {named(rest)}{', one at a time,' if len(rest) > 1 else ''} changed "
            "nothing for the others that can be told from noise."
        )
    if given:
        found.append("Tried were the sites that others learn from most.")
    return found


def certainty(advice: Advice) -> list[str]:
    """How sure, and what would change the answer?"""
    effort = advice.effort
    found = [
        f"{effort.splits} splits of every site's rows, each with its own seed; {advice.tried} "
        "trials. Settings are chosen on each split's validation rows and judged on its test rows, "
        "which no choice has seen.",
        "Intervals are 95 % corrected resampled t intervals: they allow for the rows that splits "
        "have in common.",
    ]
    if advice.data is not None and advice.data.time_column:
        found.append(
            "Rows are divided by time: splits differ in when the test rows begin and share the "
            "latest rows, so intervals may be too narrow."
        )
    if (spread := advice.spread) is not None:
        middle, low, high = (
            difference(x, advice.measure).lstrip("+")
            for x in (spread.middle, spread.low, spread.high)
        )
        found.append(
            "A site's gain borrows strength from the others (a random-effects model): with few "
            "rows it is drawn to their mean, by as much as sites seem alike. Their true gains "
            f"differ by a standard deviation of about {middle} (95 % interval {low} to {high}; "
            f"Cochran's Q: p = {spread.p_value:.2g}), and sites' intervals allow for not knowing "
            "it better. sites.csv has each site's own gain as well."
        )
    if advice.diverged:
        found.append(f"{advice.diverged} trials diverged and were left out.")
    open_ = [site for site in advice.sites if site.verdict in ("same", "unknown")]
    wide = sorted(open_, key=_width, reverse=True)[:3]
    if wide:
        rows = [f"{cut(site.name, 40)} ({site.rows} rows)" for site in wide]
        found.append(f"More rows would tell most at {listed(rows)}: least is known there.")
    votes = sum(way.chosen > 0 for way in advice.ways)
    if votes > 1:
        found.append(
            f"Splits preferred {votes} different ways to collaborate: these are about equally "
            "good here."
        )
    return found


def _width(site: Site) -> tuple[float, int]:
    """How little is known of a site's gain; of equal ones, how few rows it has."""
    gain = site.gain
    if gain is None or gain.low is None or gain.high is None:
        return float("inf"), -site.rows
    return gain.high - gain.low, -site.rows


SECTIONS = {
    "Should you collaborate?": answer,
    "With whom?": partners,
    "With what?": means,
    "What would it cost?": costs,
    "How sure is that?": certainty,
}


def site_row(site: Site, metric: Measure) -> dict[str, str]:
    """A site's row of the table, as people read it."""
    learns = ", ".join(f"{cut(name, 24)} ({weight:.0%})" for name, weight, _ in site.learns_from)
    row = {
        "site": cut(site.name, 40),
        "rows": f"{site.rows:,}",
        "no model": value(site.trivial, metric),
        "alone": value(site.alone, metric),
        "together": value(site.together, metric),
        "gain (95 % interval)": interval(site.gain, metric),
        "learns from": learns or NOTHING,
        "advice": SITE_ADVICE[site.verdict],
    }
    if site.group is not None:
        row["group"] = str(site.group)
    return row
