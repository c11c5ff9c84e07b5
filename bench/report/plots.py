"""Small SVG plots of lines over time. Pure: the same figures give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

WIDTH: Final = 760
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 190, 34, 34
_LINE_HEIGHT: Final = 300
_TICKS: Final = 4
#: Distinct for readers who do not see all colours, on white and on dark pages.
_COLOURS: Final = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999999")
_STYLE: Final = (
    "<style>text{font:12px system-ui,sans-serif;fill:#777}.title{font-weight:600;fill:#888}"
    ".grid{stroke:#8884;stroke-width:1}.line{fill:none;stroke-width:1.6}</style>"
)
Points = Sequence[tuple[float, float]]


def lines(title: str, series: Mapping[str, Points], *, unit: str, x_unit: str) -> str:
    """Return series over a common axis, with a legend at the right; the axis begins with 0."""
    shown = {name: points for name, points in series.items() if points}
    x_max = max((x for points in shown.values() for x, _ in points), default=1.0) or 1.0
    y_max = max((y for points in shown.values() for _, y in points), default=1.0) or 1.0
    inner_w, inner_h = WIDTH - _LEFT - _RIGHT, _LINE_HEIGHT - _TOP - _BOTTOM

    def place(x: float, y: float) -> str:
        return f"{_LEFT + inner_w * x / x_max:.1f},{_TOP + inner_h * (1 - y / y_max):.1f}"

    parts = [_text(_LEFT, 18, f"{title}, {unit}", css="title")]
    for tick in range(_TICKS + 1):
        share = tick / _TICKS
        y = _TOP + inner_h * (1 - share)
        x = _LEFT + inner_w * share
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_LEFT + inner_w}"/>')
        parts.append(_text(_LEFT - 6, y + 4, _number(y_max * share), anchor="end"))
        parts.append(_text(x, _LINE_HEIGHT - 12, _number(x_max * share), anchor="middle"))
    parts.append(_text(_LEFT + inner_w + 10, _LINE_HEIGHT - 12, x_unit))
    for index, (name, points) in enumerate(shown.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        path = " ".join(place(x, y) for x, y in points)
        parts.append(f'<polyline class="line" stroke="{colour}" points="{path}"/>')
        at = _TOP + 8 + index * 18
        parts.append(
            f'<rect x="{WIDTH - _RIGHT + 14}" y="{at}" width="10" height="10" fill="{colour}"/>'
        )
        parts.append(_text(WIDTH - _RIGHT + 30, at + 9, name))
    return _svg(title, parts, _LINE_HEIGHT)


def _svg(title: str, parts: Sequence[str], height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
        f"<title>{escape(title)}</title>{_STYLE}{''.join(parts)}</svg>\n"
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", css: str = "") -> str:
    mark = f' class="{css}"' if css else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{mark}>{escape(text)}</text>'


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
