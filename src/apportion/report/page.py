"""The page itself: HTML with everything in it. No script, no font, no picture from elsewhere, and a policy that says so."""

from collections.abc import Iterable, Sequence
from html import escape

from apportion.drawing import STYLE

_CSS = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--paper:#fff;--card:#f6f8fa;--line:#d0d7de;--warn:#9a3412;--warnbg:#fff4e5}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ec;--soft:#a3acb5;--paper:#0f1215;--card:#181c20;--line:#343b42;--warn:#ffb27a;
--warnbg:#2b1d12}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1180px;padding:1.2rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.15rem;margin:2rem 0 .6rem}
p{margin:.5rem 0;max-width:70ch}.soft{color:var(--soft)}.grid{display:grid;gap:1rem;
grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr))}figure{margin:0;border:1px solid var(--line);border-radius:8px;
overflow:hidden}figure svg{display:block;width:100%;height:auto}figcaption{padding:.4rem .8rem;background:var(--card);
font-size:.875rem;color:var(--soft)}.facts{display:grid;gap:.6rem;grid-template-columns:repeat(auto-fit,minmax(150px,1fr))}
.fact{border:1px solid var(--line);border-radius:8px;padding:.6rem .8rem;background:var(--card)}
.fact b{display:block;font-size:1.35rem;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}.fact span{font-size:.85rem;
color:var(--soft)}.internal{color:var(--warn);background:var(--warnbg);border:1px solid currentColor;border-radius:8px;
padding:.5rem .8rem;max-width:none}.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.3rem .8rem .3rem 0;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}
td:first-child{white-space:nowrap}
@media print{:root{--ink:#000;--soft:#333;--paper:#fff;--card:#fff;--line:#999;--warn:#000;--warnbg:#fff;color-scheme:light}
.chart{--ink:#000!important;--faint:#ccc!important;--paper:#fff!important;--s0:#000!important;--s1:#666!important;
--s2:#333!important;--s3:#888!important;--s4:#444!important;--s5:#999!important}
body{max-width:none;padding:0;font-size:11pt}figure,.fact,table{break-inside:avoid}.grid{grid-template-columns:1fr 1fr}}
"""


def page(title: str, sections: Iterable[str]) -> str:
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>{escape(title)}</title>",
            f"<style>{_CSS}{STYLE}</style>",
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


def figures(*pairs: tuple[str, str]) -> str:
    """(svg, caption) side by side where there is room."""
    drawn = [f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>" for svg, caption in pairs if svg]
    return f'<div class="grid">{"".join(drawn)}</div>' if drawn else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'
