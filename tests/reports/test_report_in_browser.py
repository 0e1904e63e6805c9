"""The report in a real browser: Chromium without a window, by day and by night."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from fedkin.reports import write_report
from tests.reports.test_report import _inside, _labels
from tests.runs.folders import write_run

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
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
    outside = browser.execute_script(
        "return [...document.querySelectorAll('h1,h2,h3,p,td,tbody th,li,figcaption,svg,'"
        " + 'dd,summary')]"
        ".filter(e => e.getClientRects().length && e.getBoundingClientRect().right >"
        " innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert outside == []


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


def contrast(one: list[float], other: list[float]) -> float:
    """WCAG's contrast ratio of two colours."""

    def luminance(colour: list[float]) -> float:
        shares = [c / 255 for c in colour]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)
