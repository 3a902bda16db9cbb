"""Plots for figures/, as SVG text: lines over a logarithmic axis or over places, and groups of bars. No dependency."""
import math
from xml.sax.saxutils import escape

COLOURS = ["#1b6ca8", "#e07b39", "#4c9f70", "#a23b72", "#7a7a7a", "#c9a227"]
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, LEGEND = 900, 300, 70, 34, 44, 190


def text(x, y, words, anchor="middle", size=12):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(str(words))}</text>'


def ticks(low, high):
    """Round numbers between the two: powers of ten if they are far apart."""
    if low > 0 and high / low > 30:
        return [10.0 ** e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    step = 10 ** math.floor(math.log10(max(high, 1e-9)))
    step = next(s for s in (step / 5, step / 2, step, 2 * step) if high / s <= 6)
    return [step * n for n in range(int(high / step) + 2)]


class Panel:
    """A frame with a vertical axis; `y` maps a value to its place."""

    def __init__(self, top, title, values):
        self.top, self.parts = top, [text(LEFT, top + 18, title, "start", 14)]
        marks = ticks(min(values), max(values))
        self.low, self.high, self.is_log = marks[0], marks[-1], marks[0] > 0
        for mark in marks:
            y = self.y(mark)
            self.parts.append(f'<line x1="{LEFT}" x2="{WIDTH - LEGEND}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            self.parts.append(text(LEFT - 6, y + 4, f"{mark:,g}", "end"))

    def y(self, value):
        scale = math.log10 if self.is_log else float
        low, high = scale(self.low), scale(self.high)
        share = (scale(value) - low) / (high - low)
        return self.top + HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)

    def legend(self, names):
        for index, name in enumerate(names):
            y = self.top + TOP + 18 * index
            self.parts.append(f'<rect x="{WIDTH - LEGEND + 12}" y="{y}" width="12" height="12" fill="{colour(index)}"/>')
            self.parts.append(text(WIDTH - LEGEND + 30, y + 10, name, "start"))


def colour(index):
    return COLOURS[index % len(COLOURS)]


def write(path, panels):
    write_parts(path, HEIGHT * len(panels), [part for panel in panels for part in panel.parts])


def write_parts(path, height, parts):
    body = "\n".join(parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif">\n'
                    f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n')


def bars(path, groups):
    """One panel a group (title, labels, {series: [value or None]}): bars side by side."""
    panels = []
    for title, labels, series in groups:
        panel = Panel(HEIGHT * len(panels), title, [v for values in series.values() for v in values if v])
        slot = (WIDTH - LEGEND - LEFT) / len(labels)
        width = 0.8 * slot / len(series)
        bottom = panel.top + HEIGHT - BOTTOM
        for index, values in enumerate(series.values()):
            for place, value in enumerate(values):
                if value:
                    x, y = LEFT + slot * (place + 0.1) + width * index, panel.y(value)
                    panel.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{bottom - y:.1f}" fill="{colour(index)}"/>')
        panel.parts += [text(LEFT + slot * (place + 0.5), bottom + 16, label, size=11) for place, label in enumerate(labels)]
        panel.legend(series)
        panels.append(panel)
    write(path, panels)


def lines(path, groups, evenly=False, from_zero=False, guides=()):
    """One panel a group (title, name of the x axis, {series: [(x, y)]}): lines over a logarithmic x axis, with a place for each x, or over a
    linear one that begins at 0, where the points of a line are joined in the order in which they are given. A series in `guides` is a dashed line
    without points."""
    panels = []
    for title, axis, series in groups:
        points = [point for values in series.values() for point in values]
        panel = Panel(HEIGHT * len(panels), title, [y for _, y in points])
        order = sorted({x for x, _ in points})
        marks = ticks(0, max(order)) if from_zero else order
        along = order.index if evenly else float if from_zero else math.log
        low, high = (along(f(marks)) for f in (min, max))
        place = lambda x: LEFT + 20 + (along(x) - low) / ((high - low) or 1) * (WIDTH - LEGEND - LEFT - 40)
        bottom = panel.top + HEIGHT - BOTTOM
        for index, (name, values) in enumerate(series.items()):
            path_points = " ".join(f"{place(x):.1f},{panel.y(y):.1f}" for x, y in (values if from_zero else sorted(values)))
            dashes = ' stroke-dasharray="5 4"' if name in guides else ""
            panel.parts.append(f'<polyline points="{path_points}" fill="none" stroke="{colour(index)}" stroke-width="2"{dashes}/>')
            if name not in guides:
                panel.parts += [f'<circle cx="{place(x):.1f}" cy="{panel.y(y):.1f}" r="3" fill="{colour(index)}"/>' for x, y in values]
        panel.parts += [text(place(x), bottom + 16, f"{x:,g}" if from_zero else f"{x:g}", size=11) for x in marks]
        panel.parts.append(text((LEFT + WIDTH - LEGEND) / 2, bottom + 34, axis))
        panel.legend(series)
        panels.append(panel)
    write(path, panels)


def ranks(path, groups):
    """One panel a group (title, [(label, value)]): bars one below the other, each with its value; a label that is indented is a
    comparison with the one above."""
    parts, y = [], 22
    for title, rows in groups:
        parts.append(text(10, y, title, "start", 14))
        most = max(value for _, value in rows) or 1
        for label, value in rows:
            y += 18
            width = 360 * value / most
            parts.append(text(30 if label.startswith(" ") else 10, y, label.strip(), "start"))
            parts.append(f'<rect x="420" y="{y - 11}" width="{width:.0f}" height="13" fill="{"#bbb" if label.startswith(" ") else colour(0)}"/>')
            parts.append(text(425 + width, y, f"{value:.3g}", "start"))
        y += 34
    write_parts(path, y, parts)
