"""The page of a served run in a real browser, on a telephone and on a desk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedkin.engines.flower.attendance import Attendance
from fedkin.runs.measures import keep_measures
from fedkin.runs.sites.status import Status
from tests.reports.test_report_in_browser import (
    BROWSER,
    DRIVER,
    ODD,
    browser,  # noqa: F401  (a fixture)
    show,
)
from tests.runs.sites.test_status import serving

pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER),
    reason="Chromium is not installed: apt-get install chromium chromium-driver",
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    run = tmp_path_factory.mktemp("served")
    attendance, names = Attendance(), [f"machine-{i}.{'ward' * 10}" for i in range(4)]
    for name in names:
        attendance.request(name, name.startswith("machine-1"))
        attendance.heard(name)
    status = Status("e", "scaffold", 100, 40, "training")
    status.saw(attendance, names, names[:3])
    status.write(run)
    rows = "".join(f"{i},{1 - 0.5 / i:.4f},{1 / i:.4f}\n" for i in range(1, 41))
    (run / "metrics.csv").write_text(f"round,personal_accuracy,personal_loss\n{rows}")
    keep_measures(run, ["accuracy"])
    (run / "log.txt").write_text("<b>bold</b> " + "long " * 60 + "\n")
    with serving(run) as found:
        yield found


@pytest.mark.parametrize("width", [390, 1400])
def test_names_of_any_kind_are_text_that_fits(
    browser: Any,  # noqa: F811
    tmp_path: Path,
    width: int,
) -> None:
    run = tmp_path / "<img src=x onerror='window.ran=1'>\u202e"
    run.mkdir()
    for method in (ODD[1], ODD[4]):
        status = Status(ODD[0], method, 100, 40, "training")
        status.saw(Attendance(), ODD, ODD[:3])
        status.write(run)
        (run / "log.txt").write_text("\n".join(ODD))
        with serving(run) as found:
            show(browser, found, width, "light")
        assert browser.get_log("browser") == []
        assert browser.execute_script("return window.ran") is None
        assert browser.execute_script("return document.querySelectorAll('img,script').length") == 0
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        text = browser.execute_script("return document.documentElement.innerText")
        assert not set("\u202e\u2066\u200f") & set(text + browser.title)
        assert max(map(len, text.split())) < 400
        assert "\u05de\u05e8\u05e4\u05d0\u05d4" in text  # a script from right to left stays
        assert len(text) < 5000


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_asks_nobody_else(
    browser: Any,  # noqa: F811
    address: str,
    width: int,
    scheme: str,
):
    show(browser, address, width, scheme)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script("return document.querySelectorAll('#sites tbody tr').length") == 4
    text = browser.execute_script("return document.body.innerText")
    assert "round 40 of 100" in text
    assert "<b>bold</b>" in text
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().right)"
    )
    assert len(drawn) == 2
    assert max(drawn) <= width
    asked = browser.execute_script(
        "return performance.getEntriesByType('resource').map(entry => entry.name)"
    )
    assert [name for name in asked if not name.startswith(("data:", address))] == []
