"""The report in a real browser: it draws, answers the mouse and the keys, and asks for nothing.

Skipped where there is no Chromium.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from browser import Browser, browser, found
from reports import made_up, observed

from eggroll.report.command import ReportOptions, write

if found() is None:
    pytest.skip("no chromium is installed", allow_module_level=True)

HOSTILE = "</script><img src=https://example.org/x onerror=alert(1)>"
HISTOGRAM = "#leaves .row:has(input) + .small svg[role]"
DRAWN = "[...document.querySelectorAll('path')].map(p => p.getAttribute('d'))"
BROKEN = f"{DRAWN}.filter(d => /NaN|Inf|undef/.test(d)).length"
NAME = "</script>&lt;"
PLACE = "(r => [r.x + r.width / 2, r.y + r.height / 2])"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of three runs: with statistics, with hostile names, with one update."""
    folder = tmp_path_factory.mktemp("runs")
    runs = [
        observed(made_up(folder / "first", updates=2000)),
        observed(made_up(folder / "second", shift=1), leaf="constructor", warning=HOSTILE),
        made_up(folder / "third", updates=1),
    ]
    (runs[1] / "samples.txt").write_text(HOSTILE)
    labels = ("first", NAME, "__proto__")
    out = folder / "page.html"
    return write(ReportOptions(tuple(map(str, runs)), str(out), HOSTILE, labels))


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with ExitStack() as stack:
        try:
            started = stack.enter_context(browser(tmp_path_factory.mktemp("home")))
        except OSError as error:  # as of one in a sandbox of its own, which sees no /tmp
            pytest.skip(f"{found()} does not start: {error}")
        yield started


@pytest.fixture
def quiet(shown: Browser, three: Path) -> Iterator[Browser]:
    """The page, which must have said nothing in its console and asked for itself alone."""
    shown.said.clear()
    shown.asked.clear()
    shown.open(three)
    yield shown
    assert shown.said == []
    assert set(shown.asked) == {three.as_uri()}


def centre(page: Browser, where: str) -> tuple[float, float]:
    page.run(f"document.querySelector({where!r}).scrollIntoView({{block: 'center'}})")
    x, y = page.run(f"{PLACE}(document.querySelector({where!r}).getBoundingClientRect())")
    return x, y


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 900, 1600])
def test_it_fits_every_width(quiet: Browser, three: Path, width: int, dark: bool):
    quiet.open(three, width=width, dark=dark)
    over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert quiet.run(over) == 0
    ends = "[...document.querySelectorAll('figure')].map(f => f.getBoundingClientRect().right)"
    assert max(quiet.run(ends)) <= width
    paper = quiet.run("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")


def test_every_figure_is_drawn(quiet: Browser):
    titles = quiet.run("[...document.querySelectorAll('#curves h3')].map(h => h.textContent)")
    assert titles == [
        "Validation", "Training loss", "Weights that moved", "Pairs that tie",
        "Votes over their noise", "Threshold of the votes", "Throughput",
    ]  # fmt: skip
    drawn = "[...document.querySelectorAll('figure > svg')].every(s => s.querySelector('path'))"
    assert quiet.run(drawn)
    assert quiet.run(BROKEN) == 0
    names = quiet.run("[...document.querySelectorAll('#leaves .small h3')].map(h => h.textContent)")
    assert names == ["layer0.Wf", "constructor", "layer0.Wf", "head", "constructor"]  # histograms
    assert quiet.run("document.querySelectorAll('img').length") == 0


def test_the_mouse_shows_values(quiet: Browser):
    x, y = centre(quiet, "#curves figure svg[tabindex]")
    quiet.move(x, y)
    tip = "document.querySelector('#curves .tip')"
    assert not quiet.run(f"{tip}.hidden")
    words = quiet.run(f"{tip}.innerText")
    assert words.startswith("update ")
    assert "first" in words
    assert NAME in words
    shown = quiet.run(f"[...{tip}.querySelectorAll('b')].map(b => b.innerText)")
    step = int(words.split()[1])
    assert float(shown[0]) == pytest.approx(5 / (1 + step / 10) + 0.1, rel=1e-3)
    assert shown[1] == "2.1, its last"
    left, right = quiet.run(f"(r => [r.left, r.right])({tip}.getBoundingClientRect())")
    assert 0 < max(left - x, x - right) < 30, "the box is not beside the mouse"
    quiet.move(1, 1)
    assert quiet.run(f"{tip}.hidden")


def test_keys_read_values_aloud(quiet: Browser):
    quiet.run("document.querySelector('#curves svg[tabindex]').focus()")
    quiet.press("Home")
    spoken = "document.getElementById('spoken').textContent"
    assert quiet.run(spoken) == f"update 10: first 2.6, {NAME} 3.6"
    quiet.press("ArrowRight")
    assert quiet.run(spoken).startswith("update 30: first 1.35")
    quiet.press("Escape")
    assert quiet.run("document.querySelector('#curves .tip').hidden")


@pytest.mark.parametrize(
    ("over", "name", "last"),
    [("steps", "update", "2000"), ("counted", "tokens of the corpus read", "512k"),
     ("seconds", "seconds of updates", "500")],
)  # fmt: skip
def test_the_axis_can_be_chosen(quiet: Browser, over: str, name: str, last: str):
    quiet.run(f"document.querySelector('input[value={over}]').click()")
    texts = quiet.run("[...document.querySelectorAll('#curves svg')][0].textContent")
    assert name in texts
    rows = "document.querySelector('#curves figure details')"
    quiet.run(f"{rows}.open = true")
    quiet.settle()
    cells = quiet.run(f"[...{rows}.querySelectorAll('tr:nth-child(25) td')].map(c => c.innerText)")
    assert last in cells
    for axis in "xy":
        quiet.run(f"document.getElementById('log-{axis}').click()")
    assert quiet.run(BROKEN) == 0


def test_runs_can_be_hidden(quiet: Browser):
    count = "document.querySelectorAll('#curves figure:first-child svg[tabindex] > path').length"
    before = quiet.run(count)
    quiet.run("document.querySelector('#shown input').click()")
    assert quiet.run(count) == before - 1


def test_the_slider_moves_histograms_in_time(quiet: Browser):
    at = "document.getElementById('at-leaves')"
    path = f"document.querySelector({HISTOGRAM + ' path'!r}).getAttribute('d')"
    last = quiet.run(path)
    quiet.run(f"{at}.value = 0; {at}.dispatchEvent(new Event('input'))")
    assert quiet.run(path) != last
    assert quiet.run("document.querySelector('output').textContent") == "10"
    x, y = centre(quiet, HISTOGRAM)
    quiet.move(x, y)
    tips = "[...document.querySelectorAll('#leaves .tip')].filter(t => !t.hidden)"
    assert quiet.run(f"{tips}.map(t => t.innerText.split('\\n')[0])") == ["0 to 7"]


def test_lines_of_models_are_drawn_where_they_do_not_flatten_curves(quiet: Browser):
    labels = (
        "[...document.querySelectorAll('#curves figure:first-child .halo')].map(t => t.textContent)"
    )
    both = ["unigram model: 4.7", "bigram model: 3.5"]
    assert quiet.run(labels) == both
    quiet.run("[...document.querySelectorAll('#shown input')][1].click()")  # leaves 0.125 to 2.6
    assert quiet.run(labels) == both
    quiet.run("data.baselines.push(['far', 99], ['close', 1]); redraw()")
    assert quiet.run(labels) == [*both, "close: 1"]
