"""The documentation site, opened from disk: its settings, its links, and the search in a browser.

Built where mkdocs is installed (`make docs`), and looked at where there is a Chromium.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser import browser, found

ROOT = Path(__file__).parents[1]


def test_the_site_is_made_for_the_disk():
    text = (ROOT / "mkdocs.yml").read_text()
    assert re.search("^use_directory_urls: false", text, re.MULTILINE)
    assert re.search(r"^plugins: \[search, offline\]", text, re.MULTILINE)
    (shim,) = re.findall(r"polyfills: \[(.*?)\]", text)
    assert "iframe-worker" in shim, "else the plugin offline asks a server for one"
    assert (ROOT / "docs" / shim).exists()


DRAWINGS = [ROOT / "docs" / "step.svg", *sorted((ROOT / "docs" / "pictures").glob("*.svg"))]
READABLE = 9  # pixels of the smallest letters


def width_and_letters(drawing: Path) -> tuple[float, float]:
    """A drawing's own width, and the size of its smallest letters."""
    text = drawing.read_text()
    view = re.search(r'viewBox="0 0 ([0-9.]+) ', text)
    assert view
    return float(view[1]), min(map(float, re.findall(r'font-size="([0-9.]+)"', text)))


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda path: path.stem)
def test_drawings_can_be_read_on_a_phone(drawing: Path):
    """Where a page has no style of ours, a drawing is as wide as the screen."""
    width, letters = width_and_letters(drawing)
    assert letters * 400 / width >= READABLE


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda path: path.stem)
def test_drawings_have_a_card_that_is_light_in_the_dark(drawing: Path):
    text = drawing.read_text()
    width, _ = width_and_letters(drawing)
    card = rf'<rect x="1" y="1" width="{width - 2:g}" height="[0-9]+" rx="12" fill="#fff"'
    assert re.search(card, text)
    assert re.search(card, text).start() < text.index("<text ")  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("material") is None or importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: `make docs` installs it")
    place = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(place)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(words, cwd=ROOT, env=quiet, check=True)
    return place


class Addresses(HTMLParser):
    """The addresses in a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.loaded: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.found.append(value)
                if tag != "a" and not (tag == "link" and ("rel", "canonical") in attrs):
                    self.loaded.append(value)


def test_every_link_leads_to_a_file(site: Path):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        if page.name == "404.html":  # which a server shows, at any address
            continue
        addresses = Addresses(page)
        assert not [a for a in addresses.loaded if urlsplit(a).scheme in ("http", "https")], page
        for address in addresses.found:
            parts = urlsplit(address)
            if not parts.scheme and not parts.netloc and parts.path:
                target = page.parent / unquote(parts.path)
                assert target.is_file(), (page.name, address)


def test_options_in_sentences_are_marked(site: Path):
    page = (site / "running.html").read_text()
    assert '<code><span class="option">--resume</span>' in page
    assert ".option { white-space: nowrap; }" in (site / "pictures" / "site.css").read_text()


SEARCH = """(async () => {
  document.querySelector('[for="__search"]').click();
  const query = document.querySelector("[data-md-component=search-query]");
  query.focus(); query.value = "whitened";
  query.dispatchEvent(new Event("focus"));
  query.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
  query.dispatchEvent(new InputEvent("input", {bubbles: true}));
})()"""
HITS = "[...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"


@pytest.mark.skipif(found() is None, reason="no chromium is installed")
def test_navigation_and_search_work_from_disk(site: Path, tmp_path: Path):
    with browser(tmp_path) as page:
        page.open(site / "index.html")
        links = page.run("[...document.querySelectorAll('.md-nav__link[href]')].map(a => a.href)")
        assert len(set(links)) > 20
        for link in set(links):
            assert Path(unquote(urlsplit(link).path)).is_file(), link
        for name in ("index.html", "running.html"):
            page.open(site / name)
            page.run(SEARCH)
            end = time.monotonic() + 20
            while not (hits := page.run(HITS)) and time.monotonic() < end:
                time.sleep(0.1)
            assert hits, page.said
            for hit in hits:
                assert Path(unquote(urlsplit(hit).path)).is_file(), hit
        outside = [address for address in page.asked if not address.startswith(("file:", "data:"))]
        assert [a for a in outside if not a.startswith(("about:", "blob:"))] == []


@pytest.mark.skipif(found() is None, reason="no chromium is installed")
def test_drawings_can_be_read_at_400_pixels(site: Path, tmp_path: Path):
    sizes = {path.name: width_and_letters(path) for path in DRAWINGS}
    shown = set()
    with browser(tmp_path) as page:
        for place in sorted(site.glob("*.html")):
            if ".svg" not in place.read_text():
                continue
            page.open(place, width=400, dark=True)
            widths = page.run(
                "[...document.querySelectorAll('img[src$=\".svg\"]')]"
                ".map(i => [i.src.split('/').pop(), i.getBoundingClientRect().width])"
            )
            assert page.run("document.documentElement.scrollWidth") <= 400, place.name
            torn = page.run(
                "[...document.querySelectorAll('.option')]"
                ".filter(o => o.getClientRects().length > 1).map(o => o.textContent)"
            )
            assert torn == [], place.name
            for name, width in widths:
                own, letters = sizes[name]
                assert letters * width / own >= READABLE, (place.name, name, width)
                shown.add(name)
    assert shown == sizes.keys()
