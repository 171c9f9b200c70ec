"""Draws docs/step.svg, one update in four pictures: `python docs/step.py`.

The numbers are real: a matrix of 4 x 4 weights, the noise of N = 64 pairs, scores that follow a
direction the pairs cannot see, and the votes that come of it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

CELL, PAIRS = 17, 64
WIDTH, HEIGHT, ROW = 508, 552, 254  # two rows of two panels, so that a phone can show the words
BLUE, ORANGE, INK, GREY, LINE = "#2f6fb0", "#d9822b", "#1f2328", "#59636e", "#d0d7de"


def text(x: float, y: float, words: str, size: float = 13, **style: str) -> str:
    style = {"fill": INK, "text-anchor": "middle"} | style
    marks = " ".join(f'{name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" {marks}>{words}</text>'


def grid(
    x: float, y: float, values: np.ndarray, full: float, framed: np.ndarray | None = None
) -> str:
    """Cells coloured by sign (blue above 0, orange below) and size; some with a dark frame."""
    out = []
    for (row, column), v in np.ndenumerate(values):
        shade = 0.12 + 0.88 * min(abs(v) / full, 1) if v else 0
        at = f'x="{x + column * CELL:g}" y="{y + row * CELL:g}" width="{CELL}" height="{CELL}"'
        colour = BLUE if v > 0 else ORANGE
        out.append(f'<rect {at} fill="{colour}" fill-opacity="{shade:.2f}" stroke="{LINE}"/>')
    for row, column in np.argwhere(np.zeros_like(values) if framed is None else framed):
        at = f'x="{x + column * CELL + 1:g}" y="{y + row * CELL + 1:g}"'
        size = f'width="{CELL - 2}" height="{CELL - 2}"'
        out.append(f'<rect {at} {size} fill="none" stroke="{INK}" stroke-width="2"/>')
    return "\n".join(out)


def arrow(path: str) -> str:
    return f'<path d="{path}" fill="none" stroke="{GREY}" stroke-width="2" marker-end="url(#tip)"/>'


def panel(x: float, head: str, *lines: str) -> str:
    box = f'<rect x="{x:g}" y="20" width="222" height="222" rx="8" fill="#f6f8fa" stroke="{LINE}"/>'
    said = [text(x + 111, 208 + 18 * i, line, 12, fill=GREY) for i, line in enumerate(lines)]
    return "\n".join([box, text(x + 111, 46, head, 16, font_weight="bold"), *said])


def perturb(x: float, w: np.ndarray, a: np.ndarray, b: np.ndarray) -> list[str]:
    return [
        panel(x, "1. Perturb", "two members, a pair: weights", "plus and minus noise A Bᵀ"),
        text(x + 48, 88, "weights W", 12, fill=GREY),
        grid(x + 14, 100, w, 30),
        text(x + 97, 141, "±", 22),
        text(x + 168, 71, "Bᵀ", 12, fill=GREY),
        grid(x + 136, 76, b[None], 30),
        text(x + 121, 94, "A", 12, fill=GREY),
        grid(x + 113, 100, a[:, None], 30),
        grid(x + 136, 100, np.outer(a, b), 600),
    ]


def evaluate(x: float, scores: tuple[float, float]) -> list[str]:
    out = [panel(x, "2. Evaluate", "both read the same text;", "score: its log-likelihood")]
    for y, sign, name, score in ((80, "+", "even", scores[0]), (140, "−", "odd", scores[1])):
        weight = "bold" if score == max(scores) else "normal"
        out += [
            f'<rect x="{x + 70:g}" y="{y}" width="86" height="42" rx="5" fill="#fff" '
            f'stroke="{LINE}"/>',
            text(x + 113, y + 18, f"W {sign} A Bᵀ", 13),
            text(x + 113, y + 34, f"{name} member", 12, fill=GREY),
            arrow(f"M {x + 54:g} 131 L {x + 64:g} {y + 21}"),
            text(x + 190, y + 26, f"{score:.1f}".replace("-", "−"), 14, font_weight=weight),
        ]
    out.append(text(x + 28, 135, "“def…”", 12, font_family="monospace"))
    return out


def vote(x: float, fitness: float, product: np.ndarray, votes: np.ndarray) -> list[str]:
    sign = "+1" if fitness > 0 else "−1"
    return [
        panel(x, "3. Vote", "a pair votes for the noise of", "its better member"),
        text(x + 20, 141, sign, 16, font_weight="bold"),
        text(x + 37, 141, "·", 17),
        text(x + 78, 88, "A Bᵀ", 12, fill=GREY),
        grid(x + 44, 100, product, 600),
        text(x + 130, 139, "+…=", 12),
        text(x + 182, 88, "votes Z", 12, fill=GREY),
        grid(x + 148, 100, votes, 8000),
    ]


def update(x: float, w: np.ndarray, votes: np.ndarray, moved: np.ndarray) -> list[str]:
    return [
        panel(x, "4. Update", "a weight moves by ±1 where |Z|", "passes θ, which grows with √N"),
        text(x + 52, 88, "|Z| ≥ θ", 12, fill=GREY),
        grid(x + 18, 100, votes, 8000, moved),
        arrow(f"M {x + 94:g} 134 L {x + 122:g} 134"),
        text(x + 168, 88, "W ± 1", 12, fill=GREY),
        grid(x + 134, 100, w + np.sign(votes) * moved, 30, moved),
    ]


def main() -> None:
    rng = np.random.default_rng(4)
    w = np.rint(12 * rng.standard_normal((4, 4)))
    hidden = rng.standard_normal((4, 4))
    a, b = np.rint(16 * rng.standard_normal((2, PAIRS, 4)))
    differences = np.einsum("pi,pj,ij->p", a, b, hidden) + 300 * rng.standard_normal(PAIRS)
    fitness = np.sign(differences)
    votes = np.einsum("p,pi,pj->ij", fitness, a, b)
    moved = abs(votes) >= 1.5 * np.sqrt(PAIRS) * 256
    apart = differences[0] / 1000
    below = [*vote(20, fitness[0], np.outer(a[0], b[0]), votes), *update(266, w, votes, moved)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="Helvetica, Arial, sans-serif">',
        "<title>One update: perturb, evaluate, vote, update</title>",
        f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" '
        f'markerHeight="6" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{GREY}"/></marker>'
        "</defs>",
        f'<rect x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="12" fill="#fff" '
        f'stroke="{LINE}"/>',
        *perturb(20, w, a[0], b[0]),
        *evaluate(266, (-52.6 + apart, -52.6 - apart)),
        f'<g transform="translate(0 {ROW})">',
        *below,
        "</g>",
        *(arrow(f"M 244 {y} L 264 {y}") for y in (131, 131 + ROW)),
        arrow(f"M 377 244 L 377 {8 + ROW} L 131 {8 + ROW} L 131 {18 + ROW}"),
        arrow(f"M 377 {244 + ROW} L 377 {262 + ROW} L 9 {262 + ROW} L 9 131 L 18 131"),
        text(
            WIDTH / 2,
            284 + ROW,
            "the next update takes other noise and the next tokens",
            14,
            fill=GREY,
        ),
        "</svg>",
    ]
    Path(__file__).with_suffix(".svg").write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
