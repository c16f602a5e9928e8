"""Draws the plots of the report as inline SVG: rates with their intervals, and the latency of each run.

Widths are in viewBox units, so that a plot scales with the page. There is one color per method, from the page's CSS
variables. Color-blind readers can distinguish the colors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby

from toolsim.eval.measures import percentile
from toolsim.eval.summary import Rate, duration

WIDTH = 960
_LABELS = 230
_FIGURES = 190
_PLOT = WIDTH - _LABELS - _FIGURES
_BAR, _GAP, _GROUP_GAP, _AXIS = 16, 5, 16, 26
_STRIP = 46
_MAX_LABEL = 28


def rates(groups: Sequence[tuple[str, Mapping[str, Rate]]], colours: Mapping[str, int]) -> str:
    """Return horizontal bars, with one group per case and one bar per method. Whiskers show the 95% intervals.

    ``colours`` maps each method to the index of its color on the page.
    """
    parts: list[str] = []
    top = 4.0
    for name, by_method in groups:
        height = len(by_method) * (_BAR + _GAP) - _GAP
        parts.append(_text(_LABELS - 14, top + height / 2, _shortened(name), "label", "end", name))
        for method, rate in by_method.items():
            parts.append(_bar(top, method, rate, colours[method]))
            top += _BAR + _GAP
        top += _GROUP_GAP - _GAP
    bottom = top - _GROUP_GAP + 6
    axis = [_tick(_LABELS + _PLOT * step / 4, bottom, f"{25 * step} %") for step in range(5)]
    return _svg(bottom + _AXIS, [*axis, *parts], "Success by case and method, with 95 % intervals")


def _bar(top: float, method: str, rate: Rate, colour: int) -> str:
    low, high = rate.interval
    width = _PLOT * rate.percent / 100
    middle = top + _BAR / 2
    left, right = _LABELS + _PLOT * low / 100, _LABELS + _PLOT * high / 100
    caps = f"M{left:.1f} {middle - 4}v8M{right:.1f} {middle - 4}v8"
    figure = f"{rate.percent:.0f} %  ({rate.ok}/{rate.runs})"
    title = f"{method}: {rate.ok} of {rate.runs} correct, {rate.percent:.1f} %, 95 % interval {low:.1f} to {high:.1f} %"
    box = f'x="{_LABELS}" y="{top}" height="{_BAR}"'
    return (
        f'<g><title>{escape(title)}</title><rect class="track" {box} width="{_PLOT}"/>'
        f'<rect class="method{colour}" {box} width="{width:.1f}"/>'
        f'<path class="whisker" d="M{left:.1f} {middle}H{right:.1f}{caps}"/>'
        f"{_text(_LABELS + _PLOT + 14, middle, figure, 'figure', 'start', title)}</g>"
    )


def latencies(strips: Sequence[tuple[str, int, Sequence[float]]]) -> str:
    """Return one strip per (label, color, milliseconds), with a dot per run. All strips share a logarithmic axis."""
    values = [value for _, _, times in strips for value in times if value > 0]
    if not values:
        return ""
    low, high = _decades(min(values), max(values))
    parts = []
    for row, (label, colour, times) in enumerate(strips):
        middle = 4 + row * _STRIP + _STRIP / 2
        parts.append(_text(_LABELS - 14, middle, _shortened(label), "label", "end", label))
        parts.append(f'<path class="rail" d="M{_LABELS} {middle}H{_LABELS + _PLOT}"/>')
        if not times:
            continue
        parts += _dots(times, middle, colour, low, high)
        p50, p95 = percentile(times, 50), percentile(times, 95)
        for value, kind in ((p50, "median"), (p95, "p95")):
            x = _x(value, low, high)
            parts.append(
                f'<path class="{kind}" d="M{x:.1f} {middle - 15}v30"><title>{kind} {duration(value)}</title></path>'
            )
        figure = f"p50 {duration(p50)} · p95 {duration(p95)}"
        parts.append(_text(_LABELS + _PLOT + 14, middle, figure, "figure", "start", figure))
    bottom = 4 + len(strips) * _STRIP
    axis = [
        _tick(_x(10.0**decade, low, high), bottom, duration(10.0**decade))
        for decade in range(round(math.log10(low)), round(math.log10(high)) + 1)
    ]
    return _svg(bottom + _AXIS, [*axis, *parts], "Duration of each run, with median and 95th percentile")


def _dots(times: Sequence[float], middle: float, colour: int, low: float, high: float) -> list[str]:
    """Return a dot for each run. Dots that would overlap are stacked above and below the line, up to a limit."""
    places = sorted(round(_x(max(value, low), low, high) / 5) * 5 for value in times)
    dots = []
    for x, same in groupby(places):
        for number, _ in enumerate(same):
            offset = (number + 1) // 2 * (5 if number % 2 else -5)
            if abs(offset) <= 15:
                dots.append(f'<circle class="method{colour} dot" cx="{x}" cy="{middle + offset}" r="3.2"/>')
    return dots


def _decades(low: float, high: float) -> tuple[float, float]:
    """Return the nearest powers of ten below ``low`` and above ``high``, at least a factor of ten apart."""
    first = math.floor(math.log10(low))
    last = max(math.ceil(math.log10(high)), first + 1)
    return 10.0**first, 10.0**last


def _x(value: float, low: float, high: float) -> float:
    share = math.log(max(value, low) / low) / math.log(high / low)
    return _LABELS + _PLOT * min(share, 1.0)


def _tick(x: float, bottom: float, label: str) -> str:
    return (
        f'<path class="grid" d="M{x:.1f} 0V{bottom}"/>'
        f'<text class="axis" x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{label}</text>'
    )


def _text(x: float, y: float, text: str, kind: str, anchor: str, title: str) -> str:
    return (
        f'<text class="{kind}" x="{x}" y="{y + 4.5:.1f}" text-anchor="{anchor}">'
        f"<title>{escape(title)}</title>{escape(text)}</text>"
    )


def _shortened(text: str) -> str:
    """Return a label. If it is too long, its middle is cut out, so that the method at its end remains."""
    half = _MAX_LABEL // 2
    return text if len(text) <= _MAX_LABEL else f"{text[: half - 1]}…{text[-half:]}"


def _svg(height: float, parts: Sequence[str], title: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
