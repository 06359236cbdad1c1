"""HTML as text; everything that is not `Html` is escaped.

>>> element("p", "a < b ", element("b", "c"), class_="lead", title='"')
'<p class="lead" title="&quot;">a &lt; b <b>c</b></p>'
"""

import html
from collections.abc import Collection, Iterable, Mapping, Sequence

VOID = {"img", "meta"}  # a path without its end would hold all that follows it


class Html(str):
    """Text that is already HTML."""

    __slots__ = ()


Child = str | None | Iterable["Child"]


def element(name: str, /, *children: Child, **attributes: object) -> Html:
    """`class_` is class, `aria_label` is aria-label; an attribute that is None is left out."""
    inner = join(*children)
    end = "" if name in VOID else f"{inner}</{name}>"
    return Html(f"<{name}{_attributes(attributes)}>{end}")


def join(*children: Child) -> Html:
    """The concatenated children; None is skipped."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, Html):
            parts.append(child)
        elif isinstance(child, str):
            parts.append(html.escape(child, quote=False))
        elif child is not None:
            parts.append(join(*child))
    return Html("".join(parts))


def _attributes(attributes: Mapping[str, object]) -> str:
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[Child]],
    *,
    caption: str,
    texts: Collection[str] = (),
) -> Html:
    """A table that scrolls if it is too wide.

    The first column and those with a title in `texts` hold text, all others numbers.  The caption
    is for screen readers.
    """
    kinds = ["number" if title not in (head[0], *texts) else None for title in head]

    def cells(values: Sequence[Child]) -> list[Html]:
        rest = zip(values[1:], kinds[1:], strict=True)
        return [
            element("th", values[0], scope="row"),
            *(element("td", value, class_=kind) for value, kind in rest),
        ]

    titles = [
        element("th", title, scope="col", class_=kind)
        for title, kind in zip(head, kinds, strict=True)
    ]
    return element(
        "div",
        element(
            "table",
            element("caption", caption),
            element("thead", element("tr", titles)),
            element("tbody", [element("tr", cells(row)) for row in rows]),
        ),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def unfold(summary: str, *children: Child) -> Html:
    """Content that is shown on demand."""
    return element("details", element("summary", summary), *children)
