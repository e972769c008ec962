"""Small plots as SVG text: scatter, lines, bars and intervals.

Each plot is one `<svg>` element, a file of its own or inside a page. Its colors are the page's
variables `--c0`, `--c1`, … where the page has them; everything else has the color of the text, so
that a plot is readable on light and on dark. Names are escaped here, so the result is marked as
safe for templates.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape as escape_html

from markupsafe import Markup

from longtail.visible import visible

WIDTH, HEIGHT = 460.0, 290.0
LEFT, RIGHT, TOP, BOTTOM = 50.0, 14.0, 12.0, 40.0
LINE = 16.0  # height of a line of text
LETTER = 7.0  # width of a letter, about
N_TICKS = 5
TICK_ROOM = 34.0  # from one number on an axis to the next
PALETTE = (
    "#0b66c3",
    "#d9480f",
    "#2b8a3e",
    "#9c36b5",
    "#0c8599",
    "#c2255c",
    "#8a6d00",
    "#5f3dc4",
    "#495057",
    "#6b8e23",
)


@dataclass(frozen=True)
class Series:
    """A line of a plot, or one color of its bars: a value y for each x.

    `number` says which color and marker it has, here as in `Interval`. `spread`, if there is one,
    says how far a thin line goes up and down from each point.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    number: int = 0
    spread: Sequence[float] = ()


@dataclass(frozen=True)
class Interval:
    """A value that lies between `low` and `high`, in a scatter plot at `x`."""

    name: str
    value: float
    low: float
    high: float
    x: float = 0.0
    number: int = 0


# ---------------------------------------------------------------------------------------- scales


@dataclass(frozen=True)
class Scale:
    """Maps values to positions in the plot."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    @classmethod
    def covering(
        cls, values: Iterable[float], begin: float, end: float, *, log: bool = False
    ) -> "Scale":
        """Return the scale from `begin` to `end` that holds all values, with a margin."""
        known = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
        low, high = (min(known), max(known)) if known else (0.1, 1.0)
        if log:
            room = max((high / low) ** 0.08, 1.25)
            return cls(low / room, high * room, begin, end, log=True)
        room = max((high - low) * 0.08, abs(high) * 0.005, 1e-9)
        return cls(low - room, high + room, begin, end)

    def __call__(self, value: float) -> float:
        """Return the position of `value`."""
        if self.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """Return round values within the scale, about five."""
        return self._log_ticks() if self.log else self._linear_ticks()

    def _linear_ticks(self) -> list[float]:
        rough = (self.high - self.low) / N_TICKS
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * round_ for round_ in (1, 2, 5, 10) if size * round_ >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [step * i for i in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _log_ticks(self) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for factors in ((1,), (1, 3), (1, 2, 5), range(1, 10)):
            ticks = [f * 10.0**d for d in decades for f in factors]
            ticks = [tick for tick in ticks if self.low <= tick <= self.high]
            if len(ticks) >= 3:
                break
        return self._apart(ticks[:: max(1, len(ticks) // N_TICKS)])

    def _apart(self, ticks: list[float]) -> list[float]:
        """Return the ticks without those whose numbers would overlap with the one before."""
        kept: list[float] = []
        for tick in ticks:
            if not kept or abs(self(tick) - self(kept[-1])) >= TICK_ROOM:
                kept.append(tick)
        return kept


def spell(value: float) -> str:
    """Return a tick's number: 1,000 or 0.05."""
    if value and (abs(value) >= 1e6 or abs(value) < 1e-4):
        return f"{value:.0e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def color(number: int) -> str:
    """Return the color of the method with this number."""
    number %= len(PALETTE)
    return f"var(--c{number}, {PALETTE[number]})"


# ----------------------------------------------------------------------------------------- plots


def scatter(
    points: Sequence[Interval], *, x_label: str, y_label: str, log_x: bool = False
) -> Markup:
    """Draw points with their names, and their intervals as thin lines."""
    bottom = HEIGHT - BOTTOM
    x = Scale.covering((point.x for point in points), LEFT, WIDTH - RIGHT, log=log_x)
    heights = [height for point in points for height in (point.low, point.high)]
    y = Scale.covering(heights, bottom, TOP)
    elements = [_axes(x, y, x_label, y_label, bottom)]
    places = [(x(point.x), y(point.value)) for point in points]
    for point, (px, py) in zip(points, places, strict=True):
        tip = f"{point.name}: {y_label} {point.value:.2f}, {x_label} {point.x:.4g}"
        elements.append(
            _line(px, y(point.low), px, y(point.high), color(point.number), opacity=0.45)
        )
        elements.append(_marker(point.number, px, py, tip))
    elements += _name_points(points, places, bottom)
    return _svg(HEIGHT, elements, f"{y_label} against {x_label}")


def lines(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    diagonal: bool = False,
) -> Markup:
    """Draw one line a series, with a legend; `diagonal` adds y = x, both from 0 to 1."""
    bottom = HEIGHT - BOTTOM
    x = Scale.covering((v for each in series for v in each.x), LEFT, WIDTH - RIGHT, log=log_x)
    y = Scale.covering((v for each in series for v in _reach(each)), bottom, TOP)
    if diagonal:
        x, y = Scale(0, 1, LEFT, WIDTH - RIGHT), Scale(0, 1, bottom, TOP)
    elements = [_axes(x, y, x_label, y_label, bottom)]
    if diagonal:
        elements.append(_line(x(0), y(0), x(1), y(1), "currentColor", opacity=0.5, dash="4 4"))
    elements += [_polyline(each, x, y) for each in series]
    legend, height = _legend(series, HEIGHT)
    return _svg(height, [*elements, *legend], f"{y_label} against {x_label}")


def bars(groups: Sequence[str], series: Sequence[Series], *, y_label: str) -> Markup:
    """Draw a group of bars for each of `groups`, in each group one bar a series."""
    bottom = HEIGHT - BOTTOM
    top = max([value for each in series for value in each.y if math.isfinite(value)] or [1.0])
    y = Scale(0, (top or 1.0) * 1.06, bottom, TOP)
    room = (WIDTH - LEFT - RIGHT) / max(len(groups), 1)
    width = room * 0.8 / max(len(series), 1)
    elements = [_grid(y), _label_axes("", y_label, bottom)]
    for g, group in enumerate(groups):
        begin = LEFT + room * (g + 0.1)
        elements.append(_text(begin + room * 0.4, bottom + LINE, group, "middle"))
        for i, each in enumerate(series):
            tip = f"{each.name}, {group}: {each.y[g]:.2f}"
            elements.append(
                _bar(begin + i * width, y(each.y[g]), width * 0.9, bottom, each.number, tip)
            )
    legend, height = _legend(series, HEIGHT - LINE)
    return _svg(height, [*elements, *legend], y_label)


def intervals(rows: Sequence[Interval], *, x_label: str) -> Markup:
    """Draw one row a method: its value as a marker on its interval."""
    longest = max([len(row.name) for row in rows] or [1])
    left = min(longest, 30) * LETTER + 14
    bottom = TOP + len(rows) * 1.5 * LINE
    x = Scale.covering([v for row in rows for v in (row.low, row.high)], left, WIDTH - RIGHT)
    elements = []
    for tick in x.ticks():
        elements.append(_line(x(tick), TOP, x(tick), bottom, "currentColor", opacity=0.15))
        elements.append(_text(x(tick), bottom + LINE, spell(tick), "middle"))
    for i, row in enumerate(rows):
        height = TOP + (i + 0.5) * 1.5 * LINE
        tip = f"{row.name}: {row.value:.2f} ({row.low:.2f} to {row.high:.2f})"
        elements.append(
            _line(x(row.low), height, x(row.high), height, color(row.number), width=2.5)
        )
        elements.append(_marker(row.number, x(row.value), height, tip))
        elements.append(_text(left - 8, height + 4, _shorten(row.name), "end"))
    elements.append(_text((left + WIDTH - RIGHT) / 2, bottom + 2 * LINE, x_label, "middle"))
    return _svg(bottom + 2.5 * LINE, elements, x_label)


# ---------------------------------------------------------------------------------------- pieces


def escape(text: str) -> str:
    """Return a text as SVG shows it; XML has no way to hold most control characters."""
    return escape_html(visible(text))


def _svg(height: float, elements: Iterable[str], title: str) -> Markup:
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="12" '
        f'fill="currentColor">{"".join(elements)}</svg>'
    )


def _axes(x: Scale, y: Scale, x_label: str, y_label: str, bottom: float) -> str:
    elements = [_grid(y)]
    for tick in x.ticks():
        elements.append(_line(x(tick), TOP, x(tick), bottom, "currentColor", opacity=0.1))
        elements.append(_text(x(tick), bottom + LINE, spell(tick), "middle"))
    return "".join(elements) + _label_axes(x_label, y_label, bottom)


def _grid(y: Scale) -> str:
    elements = []
    for tick in y.ticks():
        elements.append(_line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "currentColor", opacity=0.15))
        elements.append(_text(LEFT - 6, y(tick) + 4, spell(tick), "end"))
    return "".join(elements)


def _label_axes(x_label: str, y_label: str, bottom: float) -> str:
    middle = (TOP + bottom) / 2
    return (
        _text((LEFT + WIDTH - RIGHT) / 2, bottom + 2 * LINE + 2, x_label, "middle")
        + f'<text transform="translate(12 {middle:.1f}) rotate(-90)" text-anchor="middle">'
        + f"{escape(y_label)}</text>"
    )


def _text(x: float, y: float, text: str, anchor: str = "start", fill: str = "currentColor") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'
    )


def _line(
    x1: float,
    y1: float,
    x2: float,
    y2: float,
    stroke: str,
    *,
    opacity: float = 1.0,
    width: float = 1.0,
    dash: str = "",
) -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" '
        f'stroke-opacity="{opacity:g}" stroke-width="{width:g}"{dashes}/>'
    )


def _reach(each: Series) -> list[float]:
    """Return the values of a series, and the ends of what spreads from them."""
    if not each.spread:
        return list(each.y)
    pairs = zip(each.y, each.spread, strict=True)
    return [end for value, spread in pairs for end in (value - spread, value + spread)]


def _polyline(each: Series, x: Scale, y: Scale) -> str:
    points = [
        (x(a), y(b))
        for a, b in zip(each.x, each.y, strict=True)
        if math.isfinite(a) and math.isfinite(b) and (a > 0 or not x.log)
    ]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    shown = points if len(points) <= 20 else points[-1:]
    return (
        f'<polyline points="{path}" fill="none" stroke="{color(each.number)}" stroke-width="1.8" '
        'stroke-linejoin="round"/>'
        + "".join(
            _line(x(a), y(b - spread), x(a), y(b + spread), color(each.number), width=1.6)
            for a, b, spread in zip(each.x, each.y, each.spread, strict=bool(each.spread))
        )
        + "".join(_marker(each.number, a, b, each.name) for a, b in shown)
    )


def _bar(x: float, y: float, width: float, bottom: float, number: int, tip: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(bottom - y, 0):.1f}" '
        f'fill="{color(number)}"><title>{escape(tip)}</title></rect>'
    )


_SHAPES: tuple[Callable[[float, float], str], ...] = (
    lambda x, y: f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5"',
    lambda x, y: f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"',
    lambda x, y: f'<path d="M{x:.1f} {y - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5-5.5z"',
    lambda x, y: f'<path d="M{x:.1f} {y - 5:.1f}l5 9h-10z"',
    lambda x, y: f'<path d="M{x:.1f} {y + 5:.1f}l5-9h-10z"',
)


def _marker(number: int, x: float, y: float, tip: str) -> str:
    shape = _SHAPES[number % len(_SHAPES)](x, y)
    name = shape[1 : shape.index(" ")]
    return f'{shape} fill="{color(number)}"><title>{escape(tip)}</title></{name}>'


def _name_points(
    points: Sequence[Interval], places: Sequence[tuple[float, float]], bottom: float
) -> list[str]:
    """Write each name beside its point, moved up or down where two would overlap."""
    elements = []
    taken = [(x - 5, x + 5, y + 4) for x, y in places]  # left, right, height: of the markers
    for i in sorted(range(len(points)), key=lambda i: places[i][1]):
        x, y = places[i]
        name, ink = _shorten(points[i].name), color(points[i].number)
        width = len(name) * LETTER
        before = x + 8 + width > WIDTH
        left = x - 8 - width if before else x + 8
        height = y + 4
        while any(a < left + width and left < b and abs(h - height) < 13 for a, b, h in taken):
            height += 3
        height = min(height, bottom - 3) if height - y < 30 else height
        taken.append((left, left + width, height))
        edge, anchor = (left + width, "end") if before else (left, "start")
        if height - y > 12:
            elements.append(_line(x, y, edge, height - 4, ink, opacity=0.4))
        elements.append(_text(edge, height, name, anchor, fill=ink))
    return elements


def _legend(series: Sequence[Series], height: float) -> tuple[list[str], float]:
    """Return the entries of a legend below `height`, and how high the plot is with it."""
    elements, x, y = [], LEFT, height + LINE * 0.5
    for each in series:
        name = _shorten(each.name)
        width = 26 + len(name) * LETTER
        if x + width > WIDTH and x > LEFT:
            x, y = LEFT, y + LINE * 1.15
        elements.append(_marker(each.number, x + 5, y, name) + _text(x + 15, y + 4, name))
        x += width
    return elements, y + LINE * 0.8


def _shorten(name: str, longest: int = 30) -> str:
    return name if len(name) <= longest else name[: longest - 1] + "…"
