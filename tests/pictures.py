"""What every figure must satisfy, looked at through its renderer."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.text import Text


def assert_whole(figure: Figure) -> None:
    """Every text that is drawn lies in the picture, and every point of a line inside its axes."""
    figure.canvas.draw()
    renderer, (width, height) = figure.canvas.get_renderer(), figure.bbox.size
    undrawn = set()  # labels of ticks beyond the ends of their axis
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        beyond = [tick for tick in ticks if not low <= tick.get_loc() <= high]
        undrawn |= {label for tick in beyond for label in (tick.label1, tick.label2)}
    for text in set(figure.findobj(Text)) - undrawn:
        if text.get_visible() and text.get_text().strip():
            box = text.get_window_extent(renderer)
            whole = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
            assert whole, (text.get_text(), box, width, height)
    for axes in figure.axes:
        low, high = sorted(axes.get_ylim())
        for line in axes.lines:
            ys = [float(y) for y in line.get_ydata() if y == y]
            assert not ys or (low <= min(ys) and max(ys) <= high), (axes.get_ylabel(), ys, low, high)
