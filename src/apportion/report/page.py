"""The page itself: HTML with everything in it. No script, no font, no picture from elsewhere, and a policy that says so."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from apportion.drawing import STYLE


def page(title: str, sections: Iterable[str]) -> str:
    look = (files("apportion.report") / "page.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}{look}</style>",
            "</head>",
            "<body>",
            *sections,
            "</body>",
            "</html>",
            "",
        ]
    )


def heading(title: str, below: str) -> str:
    return f'<h1>{escape(title)}</h1>\n<p class="soft">{escape(below)}</p>'


def section(title: str, *content: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n" + "\n".join(part for part in content if part) + "\n</section>"


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def facts(values: Sequence[tuple[str, str]]) -> str:
    boxes = [f'<div class="fact"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in values]
    return '<div class="facts">' + "".join(boxes) + "</div>"


def figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def figures(*pairs: tuple[str, str]) -> str:
    """(svg, caption) side by side where there is room."""
    drawn = [figure(svg, caption) for svg, caption in pairs if svg]
    return beside(*drawn) if drawn else ""


def beside(*parts: str) -> str:
    return f'<div class="grid">{"".join(parts)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'
