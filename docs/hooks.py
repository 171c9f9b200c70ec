"""Hooks of mkdocs: pages link to files of the repository outside docs/, and the site brings these.

On GitHub such a link opens the file. In the site a Markdown file becomes a page, a source file a
page with its text, a folder a page that lists it, anything else is copied. So no link leaves the
site, and a strict build finds every dead one, also in the pages that are brought.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SOURCES = {
    ".py": "python",
    ".cpp": "cpp",
    ".h": "cpp",
    ".cu": "cpp",
    ".metal": "cpp",
    ".cff": "yaml",
}
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^(```|~~~).*?^\1\s*?$", re.M | re.S)
UNHEARD = "---\nsearch:\n  exclude: true\n---\n"  # the search need not know sources

brought: dict[str, str] = {}  # path in the repository -> path in the site's sources


def place(path: str) -> str:
    """Where a path of the repository lies among the site's sources."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == "README.md":
        return "readme-page.md"  # the site has a first page of its own
    kind = Path(path).suffix
    if (ROOT / path).is_dir():
        own = path + "/README.md"
        return own if (ROOT / own).exists() else path + "/index.md"
    return path + ".md" if kind in SOURCES else path


def outside(text: str) -> Iterator[tuple[int, int, str]]:
    """Parts of a Markdown text that are no blocks of code: begin, end, and what is in between."""
    last = 0
    for fence in FENCE.finditer(text):
        yield last, fence.start(), text[last : fence.start()]
        last = fence.end()
    yield last, len(text), text[last:]


def links(path: str, text: str) -> Iterator[str]:
    """The paths in the repository that a page links to."""
    for _, _, part in outside(text):
        for link in LINK.finditer(part):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2]))


def content_of(path: str) -> str | None:
    """The Markdown of what a link leads to; None for what is copied as it is."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(p.name for p in file.iterdir() if p.suffix in (*SOURCES, ".md"))
        listed = "\n".join(f"- [{name}]({name})" for name in names)
        return f"# {path}\n\n{listed}\n"
    if kind := SOURCES.get(file.suffix):
        return f"{UNHEARD}# {path}\n\n````{kind}\n{file.read_text()}\n````\n"
    return file.read_text() if file.suffix == ".md" else None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what pages link to, and what that links to."""
    brought.clear()
    waiting = [
        (f"docs/{page.src_uri}", page.content_string) for page in files.documentation_pages()
    ]
    while waiting:
        path, text = waiting.pop()
        for target in links(path, text):
            known = target.startswith("docs/") or target in brought
            if known or target.startswith("..") or not (ROOT / target).exists():
                continue  # a dead link stays as it is, and fails the build
            brought[target] = uri = place(target)
            target = _page_of(target)
            content = content_of(target)
            if files.get_file_from_path(uri) is None:
                given = (
                    {"abs_src_path": str(ROOT / target)}
                    if content is None
                    else {"content": content}
                )
                made = File.generated(config, uri, inclusion=InclusionLevel.NOT_IN_NAV, **given)
                made.edit_uri = None
                files.append(made)
            if content is not None and Path(target).suffix not in SOURCES:
                brought.setdefault(target, uri)
                where = target + "/." if (ROOT / target).is_dir() else target
                waiting.append((where, content))
    return files


def _page_of(path: str) -> str:
    """A folder's README.md where it has one, else the path itself."""
    own = path + "/README.md"
    return own if (ROOT / own).exists() else path


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links into the repository into links within the site; gives lists the line before."""
    uri = page.file.src_uri
    paths = {place: path for path, place in brought.items()}
    path = paths.get(uri, f"docs/{uri}")
    if (ROOT / path).is_dir():
        path = place(path)

    def within(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[2]))
        to = brought.get(target) or (target.startswith("docs/") and place(target))
        return (
            link[1] + posixpath.relpath(to, posixpath.dirname(uri) or ".") + link[3]
            if to
            else link[0]
        )

    out, last = [], 0
    for begin, end, part in outside(markdown):
        out += [markdown[last:begin], _listed(LINK.sub(within, part))]
        last = end
    return "".join(out)


OPTION = re.compile(r"--[\w-]+")
INLINE = re.compile(r"(?<!</span>)<code>([^<]*)</code>")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Marks the options in sentences, so that no line breaks at their hyphens (site.css)."""

    def marked(code: re.Match[str]) -> str:
        return f"<code>{OPTION.sub(_option, code[1])}</code>"

    return INLINE.sub(marked, html)


def _option(found: re.Match[str]) -> str:
    return f'<span class="option">{found[0]}</span>'


def _listed(text: str) -> str:
    """The text with an empty line before every list, which GitHub does not ask for."""
    lines, made = text.split("\n"), []
    for before, line in zip(["", *lines], lines, strict=False):
        begins = re.match(r"(- |\* |1\. )", line)
        goes_on = not before.strip() or re.match(r"(- |\* |\d+\. |\s)", before)
        if begins and not goes_on:
            made.append("")
        made.append(line)
    return "\n".join(made)
