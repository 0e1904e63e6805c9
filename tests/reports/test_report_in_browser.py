"""The report in a real browser: Chromium without a window, by day and by night."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from fedkin.reports import write_report
from tests.reports.test_advice import quick_advice, write_table
from tests.reports.test_report import _inside, _labels
from tests.runs.folders import write_run

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip

ODD = (
    "<img src=x onerror='window.ran=1'>", '"><script>window.ran=1</script>', "$\\frac{",
    "\u202eabc\u2066", "x" * 10_000, "many words " * 900, "&lt;&amp;", "מרפאה עברית",
)  # fmt: skip

pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER),
    reason="Chromium is not installed: apt-get install chromium chromium-driver",
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report with long names, every kind of figure and both kinds of notes."""
    folder = tmp_path_factory.mktemp("report")
    for seed in range(2):
        for method, lr, lift in (("perm", 0.1, 0.3), ("perm", 0.001, 0.2), ("fedavg", 0.1, 0.1)):
            ends = [[0.5 + lift, 0.4 + lift, 0.3, 0.6, 0.5, 0.45 + 0.01 * seed]] * 2
            run = write_run(
                folder / f"{method} {lr} {seed}", method, seed, ends, [0.5] * 6,
                validation=[lift, lift], lr=lr, an_option_with_quite_a_long_name=1e-7 * lr,
            )  # fmt: skip
            _labels(run)
            if method == "perm":
                _inside(run)
    write_report([folder], folder / "report.html")
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def advice(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Advice on a table whose file, columns, categories, classes and sites have odd names."""
    folder = tmp_path_factory.mktemp("advice")
    frame = pd.read_csv(write_table(folder))
    frame["colour"] = frame["colour"].map({"red": ODD[1], "blue": ODD[5]})
    frame["ill"] = frame["ill"].map({"yes": ODD[0], "no": ODD[3] + ODD[4]})
    frame = frame.rename(columns={"a": ODD[0], "b": ODD[4], "c": ODD[3], "colour": ODD[2]})
    frame.to_csv(odd := folder / "<b>'\"\u202e.csv", index=False)
    return quick_advice(odd).save(folder / "out").as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    yield driver
    driver.quit()


def show(browser: Any, address: str, width: int, scheme: str) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(address)


@pytest.mark.parametrize("width", [360, 768, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_without_errors_and_without_scrolling_sideways(
    browser: Any, address: str, width: int, scheme: str
) -> None:
    show(browser, address, width, scheme)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert outside(browser) == []


def outside(browser: Any) -> list[str]:
    """What reaches beyond the right edge of the window."""
    found: list[str] = browser.execute_script(
        "return [...document.querySelectorAll('h1,h2,h3,p,td,tbody th,li,figcaption,svg,'"
        " + 'dd,summary')]"
        ".filter(e => e.getClientRects().length && e.getBoundingClientRect().right >"
        " innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    return found


@pytest.mark.parametrize("width", [390, 1400])
def test_advice_fits_the_screen_with_the_answer_on_top(
    browser: Any, advice: str, width: int
) -> None:
    show(browser, advice, width, "light")
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert outside(browser) == []
    top = browser.execute_script(
        "return document.querySelector('.verdict').getBoundingClientRect().bottom"
    )
    assert top < 800  # seen without scrolling
    assert browser.execute_script("return document.querySelectorAll('figure svg').length") == 3


@pytest.mark.parametrize("width", [360, 1400])
def test_text_in_figures_is_large_enough_to_read(browser: Any, address: str, width: int) -> None:
    show(browser, address, width, "light")
    heights = browser.execute_script(
        "return [...document.querySelectorAll('figure svg text')].map(t =>"
        " parseFloat(getComputedStyle(t).fontSize)"
        " * Math.hypot(t.getScreenCTM().a, t.getScreenCTM().b))"
    )
    assert min(heights) >= 6  # names of clients beside a map; all else is larger
    assert sorted(heights)[len(heights) // 4] >= 9


def test_every_figure_has_a_name_and_a_description_for_those_who_cannot_see(
    browser: Any, address: str
) -> None:
    show(browser, address, 1400, "light")
    found = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    images = [n for n in found if n.get("role", {}).get("value") == "image" and not n["ignored"]]
    drawn = browser.execute_script("return document.querySelectorAll('figure').length")
    assert drawn >= 9
    assert len(images) == drawn
    assert all(len(node["name"]["value"]) > 40 for node in images)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(browser: Any, address: str, scheme: str) -> None:
    show(browser, address, 1400, scheme)
    colours = browser.execute_script(
        "const of = (e, p) => getComputedStyle(e)[p].match(/[\\d.]+/g).map(Number);"
        "const card = of(document.querySelector('.card'), 'backgroundColor');"
        "return [...document.querySelectorAll('td, th, figcaption, h3, figure svg text')]"
        ".map(e => [of(e, e.ownerSVGElement ? 'fill' : 'color'), card])"
    )
    assert min(contrast(text[:3], back[:3]) for text, back in colours) >= 4.5
    page = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(float, page.removeprefix("rgb(").removesuffix(")").split(",")))
    assert (brightness < 200) == (scheme == "dark")


@pytest.fixture(scope="module")
def odd_pages(tmp_path_factory: pytest.TempPathFactory, advice: str) -> list[str]:
    """A report and advice where methods, options, clients, classes and files have odd names."""
    folder = tmp_path_factory.mktemp("odd")
    scores = [[0.5 + 0.01 * i for i in range(8)]] * 2
    for name, method in (("markup", ODD[0]), ("long", ODD[4])):
        options = {**dict.fromkeys(ODD[:3], ODD[3]), "long": ODD[5]}
        run = write_run(folder / name, method, 0, scores, [0.5] * 8, **options)
        clients = pd.read_csv(run / "clients.csv", dtype={"client": str})
        clients["client"] = [ODD[int(name)] for name in clients["client"]]
        clients.to_csv(run / "clients.csv", index=False)
        counts = {"client": ODD, **{name: range(8) for name in ODD}}
        pd.DataFrame(counts).to_csv(run / "labels.csv", index=False)
        weights = pd.DataFrame(np.full((8, 8), 1 / 8), columns=list(ODD))
        weights.insert(0, "client", list(ODD))
        weights.to_csv(run / "mixing.csv", index=False)
    write_report([folder], folder / "report.html")
    return [(folder / "report.html").as_uri(), advice]


def test_names_of_any_kind_are_text_that_fits(browser: Any, odd_pages: list[str]) -> None:
    for place in odd_pages:
        for width in (360, 1400):
            show(browser, place, width, "light")
            assert browser.get_log("browser") == []
            assert browser.execute_script("return window.ran") is None
            assert (
                browser.execute_script("return document.querySelectorAll('img,script').length") == 0
            )
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        texts = browser.execute_script(  # configs are shown as they are, in boxes that scroll
            "document.querySelectorAll('pre, style').forEach(e => e.remove());"
            "const walk = document.createTreeWalker(document.documentElement, 4), found = [];"
            "while (walk.nextNode()) found.push(walk.currentNode.data);"
            "return found"
        )
        assert not set("\u202e\u2066\u200f") & set("".join(texts))
        longest = max((word for text in texts for word in text.split()), key=len)
        assert len(longest) < 1000, longest[:200]
        assert sum(map(len, texts)) < 300_000


def test_a_page_about_ten_thousand_clients_is_small_and_scrolls(
    browser: Any, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    for method in ("perm", "fedavg"):
        scores = [rng.uniform(0.3, 0.9, 10_000).tolist()] * 2
        run = write_run(
            tmp_path / method, method, 0, scores, rng.uniform(0.3, 0.8, 10_000).tolist()
        )
        labels = pd.DataFrame(rng.integers(0, 9, (10_000, 10)), columns=[str(c) for c in range(10)])
        labels.insert(0, "client", range(10_000))
        labels.to_csv(run / "labels.csv", index=False)
    write_report([tmp_path], tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 5 * 10**6
    show(browser, (tmp_path / "report.html").as_uri(), 1400, "light")
    reached = browser.execute_script(
        "window.scrollTo(0, document.body.scrollHeight);"
        "return [window.scrollY + innerHeight, document.documentElement.scrollHeight]"
    )
    assert reached[0] >= reached[1] - 2 > 800


def contrast(one: list[float], other: list[float]) -> float:
    """WCAG's contrast ratio of two colours."""

    def luminance(colour: list[float]) -> float:
        shares = [c / 255 for c in colour]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)
