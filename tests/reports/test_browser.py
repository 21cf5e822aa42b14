"""The page in a real browser: no error, no request; tables sort, figures are seen, pointing shows values."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from depl0.app.reports.report import page as report_page
from depl0.app.reports.run import read_runs
from tests.support.runs import SCRIPT, write_run

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next((path for path in map(shutil.which, NAMES) if path), None)
"""the system's own browser: nothing is downloaded"""

pytestmark = [
    pytest.mark.usefixtures("remembered_plans"),
    pytest.mark.processes,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (make browser installs it)"),
]


@dataclass
class Log:
    """What went wrong in a page, and what it asked the network for."""

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


def open_page(browser: Browser, file: Path, **options: object) -> tuple[Page, Log]:
    page, log = browser.new_page(viewport={"width": 1280, "height": 900}, **options), Log()  # type: ignore[arg-type]
    page.on("pageerror", lambda error: log.errors.append(str(error)))
    page.on("console", lambda message: log.errors.append(message.text))
    page.on("request", lambda request: log.requests.append(request.url))
    page.goto(file.as_uri())
    return page, log


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two runs, one of which has names with markup in them."""
    folder = tmp_path_factory.mktemp("page")
    runs = [write_run(folder / "plain", layers=12, gates=20), write_run(folder / "odd", prefix=SCRIPT, name=SCRIPT)]
    (folder / "report.html").write_text(report_page(read_runs(runs)), encoding="utf-8")
    return folder / "report.html"


@pytest.fixture(scope="module")
def opened(browser: Browser, report: Path) -> tuple[Page, Log]:
    return open_page(browser, report)


@pytest.fixture
def page(opened: tuple[Page, Log]) -> Page:
    return opened[0]


def test_opens_without_errors_and_without_requests(opened: tuple[Page, Log]) -> None:
    _, log = opened
    assert log.errors == []
    assert [url for url in log.requests if not url.startswith(("file:", "data:"))] == []
    assert sum(url.startswith("file:") for url in log.requests) == 1


def test_tables_sort(page: Page) -> None:
    table = page.locator("#run1 table.sortable").first
    cells, head = table.locator("tbody td:nth-child(5)"), table.locator("thead th").nth(4)
    kept = cells.all_text_contents()
    assert kept == [*map(str, range(19, 7, -1)), "10"]
    for expected in (sorted(kept, key=int), sorted(kept, key=int, reverse=True)):
        head.get_by_role("button").click()
        assert cells.all_text_contents() == expected
    assert head.get_attribute("aria-sort") == "descending"


def test_figures_are_seen(page: Page) -> None:
    sizes = page.evaluate("[...document.querySelectorAll('figure svg')].map(e => e.getBoundingClientRect().width)")
    assert len(sizes) == 2 * 6
    assert min(sizes) > 250
    assert page.locator("#structure svg").first.locator("path").count() > 24  # grey and green, for twelve layers
    coloured = page.evaluate(
        "[...document.querySelectorAll('.heat canvas')].map(c => new Set(new Uint32Array("
        "c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size)"
    )
    assert coloured == [5] * (12 + 3)  # every gate that closes goes through five values


def point_at(page: Page, element: Locator, x: float, y: float) -> None:
    """Move the mouse to a place of an element, in shares of its size, once the page knows that it scrolled."""
    element.scroll_into_view_if_needed()
    page.evaluate("async () => { for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame); }")
    box = element.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])


def test_pointing_shows_layer_and_value(page: Page) -> None:
    tip = page.locator("#tip")
    point_at(page, page.locator("#run1 .heat canvas").first, 0.5, 0.98)  # the last gate, in the middle epoch
    assert tip.is_visible()
    assert tip.text_content() == "layer0.conv · gate 19 · epoch 2: 50.0 % open"
    point_at(page, page.locator("#run2 .heat canvas").first, 0.02, 0.05)
    assert tip.text_content() == f"{SCRIPT}0.conv · gate 0 · epoch 0: 100.0 % open"
    page.mouse.move(1, 1)
    assert tip.is_hidden()


@pytest.mark.parametrize(("width", "phone"), [(390, True), (1366, False)])
def test_nothing_is_cut_off(browser: Browser, report: Path, width: int, phone: bool) -> None:
    page, _ = open_page(browser, report, is_mobile=phone)
    page.set_viewport_size({"width": width, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1)"
    assert page.evaluate(f"{cut}.map(e => e.innerText.slice(0, 60))") == []
    page.close()


def test_dark_and_print_change_the_colours(page: Page) -> None:
    colours = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    light = page.evaluate(colours)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(colours)
    axis = page.evaluate("getComputedStyle(document.querySelector('#structure svg text')).fill")
    page.emulate_media(media="print", color_scheme="dark")
    printed = page.evaluate(colours)
    page.emulate_media(media="null", color_scheme="light")
    assert light == ["rgb(255, 255, 255)", "rgb(31, 35, 40)"]
    assert dark == ["rgb(20, 24, 29)", "rgb(228, 232, 236)"]
    assert axis == dark[1]  # the figures' text follows
    assert printed == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]
