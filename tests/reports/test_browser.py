"""The page in a real browser: no error, no request; tables sort, figures are seen, pointing shows values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from depl0.app.reports.html import page
from depl0.app.reports.run import read_runs
from tests.reports.browser import Browser, find_browser
from tests.support.runs import SCRIPT, write_run

pytestmark = [
    pytest.mark.usefixtures("remembered_plans"),
    pytest.mark.processes,
    pytest.mark.skipif(find_browser() is None, reason="Chromium is not installed (make browser installs it)"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser that has a report of two runs open, one of which has names with markup in them."""
    folder = tmp_path_factory.mktemp("page")
    runs = [write_run(folder / "plain", layers=12, gates=20), write_run(folder / "odd", prefix=SCRIPT, name=SCRIPT)]
    (folder / "report.html").write_text(page(read_runs(runs)), encoding="utf-8")
    opened = Browser(str(find_browser()))
    try:
        opened.show_as(1280, 900)
        opened.open((folder / "report.html").as_uri())
        yield opened
    finally:
        opened.close()


def box_of(browser: Browser, element: str) -> tuple[float, float, float, float]:
    """Scroll an element into the window; return its left, top, width and height."""
    found = browser.run(
        f"(async () => {{ const e = {element}; e.scrollIntoView({{block: 'center', behavior: 'instant'}});"
        "for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);"  # until the page knows that it scrolled
        "const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()"
    )
    left, top, width, height = found
    return left, top, width, height


def test_opens_without_errors_and_without_requests(browser: Browser) -> None:
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
    assert sum(url.startswith("file:") for url in browser.requests) == 1


def test_the_browser_would_tell(tmp_path: Path) -> None:
    """Errors and requests do reach the two lists above, so that empty lists mean something."""
    other = Browser(str(find_browser()))
    try:
        (tmp_path / "bad.html").write_text(
            "<img src='http://127.0.0.1:9/x.png'><script>console.log(1); oops()</script>"
        )
        other.open((tmp_path / "bad.html").as_uri())
        assert any("oops" in error for error in other.errors)
        assert "http://127.0.0.1:9/x.png" in other.requests
    finally:
        other.close()


def test_tables_sort(browser: Browser) -> None:
    table = "document.querySelectorAll('#run1 table.sortable')[0]"
    column = f"[...{table}.tBodies[0].rows].map(row => row.cells[4].textContent)"
    kept = browser.run(column)
    assert kept == [*map(str, range(19, 7, -1)), "10"]
    for expected in (sorted(kept, key=int), sorted(kept, key=int, reverse=True)):
        left, top, width, height = box_of(browser, f"{table}.tHead.rows[0].cells[4].querySelector('button')")
        browser.point_at(left + width / 2, top + height / 2, click=True)
        assert browser.run(column) == expected
    assert browser.run(f"{table}.tHead.rows[0].cells[4].getAttribute('aria-sort')") == "descending"


def test_missing_values_sort_to_the_end(browser: Browser) -> None:
    table = "document.querySelectorAll('#run2 table.sortable')[0]"
    for _ in range(2):
        browser.run(f"{table}.tHead.rows[0].cells[2].querySelector('button').click()")
        groups = browser.run(f"[...{table}.tBodies[0].rows].map(row => row.cells[2].textContent)")
        assert groups[-1] == "–"
    assert groups[:-1] == [f"{SCRIPT}{i}.conv" for i in (2, 1, 0)]


def test_figures_are_seen(browser: Browser) -> None:
    sizes = browser.run("[...document.querySelectorAll('figure svg')].map(e => e.getBoundingClientRect().width)")
    assert len(sizes) == 2 * 6
    assert min(sizes) > 250
    bars = browser.run("document.querySelectorAll('#structure svg')[0].querySelectorAll('path').length")
    assert bars > 24  # grey and green, for twelve layers
    coloured = browser.run(
        "[...document.querySelectorAll('.heat canvas')].map(c => new Set(new Uint32Array("
        "c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size)"
    )
    assert coloured == [5] * (12 + 3)  # every gate that closes goes through five values


def test_pointing_shows_layer_and_value(browser: Browser) -> None:
    left, top, width, height = box_of(browser, "document.querySelectorAll('#run1 .heat canvas')[0]")
    browser.point_at(left + 0.5 * width, top + height - 2)  # the last gate, in the middle epoch
    assert browser.run("tip.hidden") is False
    assert browser.run("tip.textContent") == "layer0.conv · gate 19 · epoch 2: 50.0 % open"
    left, top, width, height = box_of(browser, "document.querySelectorAll('#run2 .heat canvas')[0]")
    browser.point_at(left + 2, top + 2)
    assert browser.run("tip.textContent") == f"{SCRIPT}0.conv · gate 0 · epoch 0: 100.0 % open"
    browser.point_at(1, 1)
    assert browser.run("tip.hidden") is True


@pytest.mark.parametrize(("width", "phone"), [(390, True), (1366, False)])
def test_nothing_is_cut_off(browser: Browser, width: int, phone: bool) -> None:
    browser.show_as(width, 844, phone=phone)
    try:
        assert browser.run("document.documentElement.scrollWidth") <= width
        cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1)"
        assert browser.run(f"{cut}.map(e => e.innerText.slice(0, 60))") == []
    finally:
        browser.show_as(1280, 900)


def test_the_headline_comes_first(browser: Browser) -> None:
    shown = browser.run("[...document.querySelectorAll('#run1 .headline .value')].map(e => e.textContent)")
    assert shown == ["93.05 %", "62.74M", "426.5k", "4 ms"]
    top = "document.querySelector('#run1 {}').getBoundingClientRect().top"
    assert browser.run(f"{top.format('.headline')} < {top.format('svg')}")


def test_dark_and_print_change_the_colours(browser: Browser) -> None:
    colours = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    light = browser.run(colours)
    browser.show_as(1280, 900, dark=True)
    dark = browser.run(colours)
    axis = browser.run("getComputedStyle(document.querySelector('#structure svg text')).fill")
    browser.send(
        "Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}]
    )
    printed = browser.run(colours)
    browser.send("Emulation.setEmulatedMedia", media="")
    browser.show_as(1280, 900)
    assert light == ["rgb(255, 255, 255)", "rgb(31, 35, 40)"]
    assert dark == ["rgb(20, 24, 29)", "rgb(228, 232, 236)"]
    assert axis == dark[1]  # the figures' text follows
    assert printed == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]


def test_prints(browser: Browser, tmp_path: Path) -> None:
    browser.print_to(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
