"""The page of a served run in a real browser, on a telephone and on a desk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fedkin.engines.flower.attendance import Attendance
from fedkin.runs.measures import keep_measures
from fedkin.runs.sites.status import Status
from tests.reports.test_report_in_browser import (
    BROWSER,
    DRIVER,
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
