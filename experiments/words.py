"""Small pieces of the page: Markdown tables, pictures, numbers."""

import textwrap
from collections.abc import Sequence

from apportion.drawing import standalone


def table(columns: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    rule = "| " + " | ".join("---" if index == 0 else "---:" for index in range(len(columns))) + " |"
    rows = ["| " + " | ".join(str(cell) for cell in line) + " |" for line in (columns, *lines)]
    return "\n".join([rows[0], rule, *rows[1:]])


def picture(experiment: str, name: str, alt: str) -> str:
    return f"![{alt}](results/{experiment}/{name}.svg)"


def number(value: float | None, digits: int = 4) -> str:
    """Significant digits; a dash where there is none.

    >>> number(21.55061), number(None), number(0.00052239)
    ('21.55', '–', '0.0005224')
    """
    return "–" if value is None else f"{value:.{digits}g}"


def agreement(same: int, total: int, what: str) -> str:
    """
    >>> agreement(4, 4, "printed numbers"), agreement(1, 4, "epochs")
    ('**We agree** on all 4 printed numbers.', '**We agree on 1 of 4 epochs; why not on the others, we do not know.**')
    """
    if same == total:
        return f"**We agree** on all {total} {what}."
    return f"**We agree on {same} of {total} {what}; why not on the others, we do not know.**"


def filled(text: str, width: int = 120) -> str:
    """Paragraphs filled anew, because numbers put into them change their lines; tables, pictures and headings stay.

    >>> print(filled("a number\\nin two lines\\n\\n| a | table |"))
    a number in two lines
    <BLANKLINE>
    | a | table |
    """
    blocks = [block for block in text.strip().split("\n\n") if block.strip()]
    return "\n\n".join(
        block.strip("\n") if block.lstrip()[0] in "|!<#-" else _paragraph(block, width) for block in blocks
    )


def _paragraph(block: str, width: int) -> str:
    return textwrap.fill(" ".join(block.split()), width, break_long_words=False, break_on_hyphens=False)


def svg(chart: str) -> str:
    return standalone(chart)
