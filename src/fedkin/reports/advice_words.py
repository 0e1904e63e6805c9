"""Advice in words: for those who decide, and for those who check."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from fedkin.reports.words import NOTHING, listed
from fedkin.runs.advice import Advice, Site
from fedkin.runs.advice_scores import FEWEST_TO_BORROW, Gain
from fedkin.runs.measures import Measure
from fedkin.runs.names import cut

WAYS = {
    "local": "alone",
    "fedavg": "one model for all",
    "fedavg-local": "one model, then steps at home",
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


def value(number: float, measure: Measure) -> str:
    """A share in percent, other measures as they are."""
    if not isfinite(number):
        return NOTHING
    return f"{100 * number:.1f} %" if measure.share else f"{number:.3g}"


def difference(number: float | None, measure: Measure) -> str:
    """A gain with its sign; more is always better."""
    if number is None or not isfinite(number):
        return NOTHING
    text = f"{100 * number:+.1f}" if measure.share else f"{number:+.3g}"
    return text if float(text) else text.lstrip("+-")


def interval(gain: Gain | None, metric: Measure) -> str:
    """`+1.2 (-0.3 to +2.7)`."""
    if gain is None:
        return NOTHING
    mean = difference(gain.mean, metric)
    if gain.low is None:
        return mean
    return f"{mean} ({difference(gain.low, metric)} to {difference(gain.high, metric)})"


def unit(measure: Measure) -> str:
    """What gains are in: `points of accuracy`, `of AUC`, `of lower RMSE`."""
    what = measure.title if measure.higher else f"lower {measure.title}"
    return f"points of {what}" if measure.share else f"of {what}"


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
        mean, high = advice.gain.mean, advice.gain
        shown = difference(mean, metric)
        span = ""
        if high.low is not None:
            low, top = difference(high.low, metric), difference(high.high, metric)
            span = f" (95 % interval {low} to {top})"
        found.append(
            f"Together, a site's gain over alone is {shown} {unit(metric)} on average{span}."
        )
    counts = {key: advice.count(key) for key in SITE_ADVICE}
    told = f"Of {n} sites, {counts['gains']} gain, {counts['same']} stay the same within noise and "
    told += f"{counts['loses']} lose"
    told += f"; {counts['unknown']} have too few rows to say." if counts["unknown"] else "."
    found.append(told)
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
    else:
        found.append("No groups stand out: there are none that the splits agree on.")
    most = sorted(advice.sites, key=lambda site: -site.gives)[:3]
    if most and most[0].gives > 0:
        shares = [f"{cut(site.name, 40)} ({site.gives:.0%})" for site in most if site.gives > 0]
        found.append(
            f"Asked for most by others (mean weight they give it): {listed(shares)}. Equal shares "
            f"would be {1 / len(names):.0%}."
        )
    return found


def means(advice: Advice) -> list[str]:
    """With what?"""
    options = ", ".join(f"{key} {number:g}" if isinstance(number, float) else f"{key} {number}"
                        for key, number in advice.options.items())  # fmt: skip
    chosen = next((way.chosen for way in advice.ways if way.method == advice.method), 0)
    found = [
        f"{WAYS[advice.method].capitalize()}: method {advice.method} ({options}), model "
        f"{advice.model}, {advice.rounds} rounds."
    ]
    if advice.decision != "alone":
        found.append(
            f"It was chosen on validation rows in {chosen} of {advice.effort.splits} splits. "
            "Of ways that are equally good the simplest is taken."
        )
    return found


def costs(advice: Advice) -> list[str]:
    """What would it cost?"""
    if advice.decision == "alone":
        found = [
            "Alone nothing is sent. Together it would be "
            f"{advice.megabytes:.3g} MB for each site, both ways."
        ]
    else:
        found = [
            f"{advice.megabytes:.3g} MB for each site, both ways, in {advice.rounds} rounds "
            "(compressed or encrypted messages differ a little)."
        ]
    for name, gain in sorted(advice.contributions.items(), key=lambda item: -item[1].mean):
        words = interval(gain, advice.measure)
        found.append(
            f"Without {cut(name, 40)} the others would lose {words} {unit(advice.measure)}."
        )
    if advice.contributions:
        found.append("Measured by training without each of the sites that others learn from most.")
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
    if len(advice.sites) >= FEWEST_TO_BORROW:
        found.append(
            "A site's gain borrows strength from the others (a random-effects model): with few "
            "rows it is drawn to their mean. sites.csv has its own as well."
        )
    if advice.diverged:
        found.append(f"{advice.diverged} trials diverged and were left out.")
    open_ = [site for site in advice.sites if site.verdict in ("same", "unknown")]
    wide = sorted(open_, key=lambda site: site.rows)[:3]
    if wide:
        rows = [f"{cut(site.name, 40)} ({site.rows} rows)" for site in wide]
        found.append(f"More rows would tell most at {listed(rows)}.")
    votes = sum(way.chosen > 0 for way in advice.ways)
    if votes > 1:
        found.append(f"Splits chose {votes} different ways: these are about equally good here.")
    return found


SECTIONS = {
    "Should you collaborate?": answer,
    "With whom?": partners,
    "With what?": means,
    "What would it cost?": costs,
    "How sure is that?": certainty,
}


def site_row(site: Site, metric: Measure) -> dict[str, str]:
    """A site's row of the table, as people read it."""
    learns = ", ".join(f"{cut(name, 24)} {weight:.0%}" for name, weight, _ in site.learns_from)
    row = {
        "site": cut(site.name, 40),
        "rows": f"{site.rows:,}",
        "alone": value(site.alone, metric),
        "together": value(site.together, metric),
        "gain (95 % interval)": interval(site.gain, metric),
        "learns from": learns or NOTHING,
        "advice": SITE_ADVICE[site.verdict],
    }
    if site.group is not None:
        row["group"] = str(site.group)
    return row
