"""Draws what was measured, as SVG: the same picture for the same numbers, whoever draws it.

    plot.py DIR FILE...        what `scripts/bench --json` has written

A program of its own, since matplotlib may be there for Debian's Python only, and not for the one that runs the bench.
"""

import io
import json
import re
import statistics
import sys
from pathlib import Path

import comparison
import growth
from report import one, percentile
from rig import Wrong, run
from rows import ROWS, Shown

PYTHONS = [sys.executable, "/usr/bin/python3"]
STYLE = {
    # Text stays text, and names of clip paths do not change from run to run.
    "svg.fonttype": "none", "svg.hashsalt": "fettlefs", "font.size": 8, "font.sans-serif": ["DejaVu Sans", "Arial"],
    "axes.grid": True, "axes.axisbelow": True, "grid.color": "#dddddd", "grid.linewidth": 0.6,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
}
# Told apart by those who see few colours, too.
COLOURS = {"native": "#777777", "overlayfs": "#009e73", "fuse-overlayfs": "#e69f00", "unionfs-fuse": "#56b4e9",
           "mergerfs": "#cc79a7", "fettlefs": "#d55e00", "by rings": "#7a3500"}
# Further builds of ours.
OTHER_COLOUR = "#000000"
LINE_COLOURS = ["#0072b2", "#009e73", "#e69f00", "#d55e00"]
# Of a row's height, all bars together.
BARS_SHARE = 0.8
ROW_INCHES = 0.42
# Costs that are said to be flat are drawn from 0; the others lie too far apart.
FLAT = ("walk", "save", "create", "stat")
CONFIRM_GOALS_MS = {1: 10, 100: 250, 10_000: 30_000}


# In the process of the bench.

def plot(directory, sources):
    run(python_that_draws(), __file__, directory, *sources)


def python_that_draws():
    for python in PYTHONS:
        if Path(python).exists() and run(python, "-c", "import matplotlib", check=False).returncode == 0:
            return python
    raise Wrong("no matplotlib: apt-get install python3-matplotlib, or --install")


# In one of its own.

def main(directory, sources):
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams.update(STYLE)
    Path(directory).mkdir(parents=True, exist_ok=True)
    for source in sources:
        for name, figure in figures(document_of(source), source):
            drawn = io.StringIO()
            figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight")
            Path(directory, name).write_text(compact(drawn.getvalue()))


def document_of(source):
    try:
        return json.loads(Path(source).read_text())
    except ValueError as err:
        raise Wrong(f"{source}: {err}") from err


def compact(svg):
    """Without indentation, and without thousandths of a point: a fifth of it."""
    return re.sub(r"(\.\d\d)\d+", r"\1", re.sub(r"\s*\n\s*", "\n", svg))


def figures(document, source):
    schema = document.get("schema")
    if schema == growth.SCHEMA:
        yield "growth.svg", growth_figure(document)
    elif schema == comparison.SCHEMA:
        rows = [row for row in ROWS if any(document["rows"].get(row.name, {}).values())]
        ratios = [row for row in rows if row.shown is not Shown.WAITS and document["rows"][row.name]["native"]]
        waits = [row for row in rows if row.shown is Shown.WAITS]
        if ratios:
            yield "ratios.svg", ratio_figure(document, ratios)
        if waits:
            yield "waits.svg", wait_figure(document, waits)
    else:
        raise Wrong(f"{source}: its schema is {schema!r}, not {comparison.SCHEMA} or {growth.SCHEMA}")


def colour(name):
    return COLOURS.get(name, OTHER_COLOUR)


def ratio_figure(document, rows):
    """A bar for the median of each system's ratios, a line over their range, a mark where the goal is."""
    others = [name for name in document["systems"] if name != "native"]
    figure, axes = rows_figure(rows, "times the plain directory; line: range of the rounds; black mark: goal")
    for at, row in enumerate(rows):
        native = document["rows"][row.name]["native"]
        for name, place, height in places(at, others):
            values = document["rows"][row.name].get(name)
            if values:
                ratios = [one(value) / one(base) for value, base in zip(values, native)]
                axes.barh(place, statistics.median(ratios) - 1, height, left=1, color=colour(name))
                axes.hlines(place, min(ratios), max(ratios), color="#333333", linewidth=0.7)
        if row.goal:
            axes.vlines(row.goal, at - 0.5, at + 0.5, color="black", linewidth=1.6)
    axes.axvline(1, color="#333333", linewidth=0.8)
    add_legend(axes, others)
    return figure


def wait_figure(document, rows):
    """From the middle one of all single operations to the longest, with a mark where 99 of 100 are shorter."""
    names = document["systems"]
    figure, axes = rows_figure(rows, "µs: from p50 to the longest; mark: p99")
    for at, row in enumerate(rows):
        for name, place, height in places(at, names):
            every = [ns / 1e3 for values in document["rows"][row.name].get(name, []) for ns in values]
            if every:
                middle, longest = percentile(every, 0.5), max(every)
                axes.barh(place, longest - middle, height * 0.7, left=middle, color=colour(name))
                axes.plot(percentile(every, 0.99), place, "k|", markersize=5)
    add_legend(axes, names)
    return figure


def rows_figure(rows, what):
    """Axes with a place for each row, the first at the top."""
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(8, 1 + ROW_INCHES * len(rows)))
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [row.title for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    plain_numbers(axes.xaxis, (1,))
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(what)
    return figure, axes


def places(at, names):
    """Where the bar of each system lies within a row, and how high it is."""
    height = BARS_SHARE / len(names)
    return [(name, at - BARS_SHARE / 2 + (number + 0.5) * height, height) for number, name in enumerate(names)]


def add_legend(axes, names):
    from matplotlib.patches import Patch
    handles = [Patch(color=colour(name), label=name) for name in names]
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.4, 1), ncol=len(names))


def growth_figure(document):
    """Each cost against the number of files, a line for each number of held changes; then the confirms."""
    from matplotlib import pyplot
    figure, grid = pyplot.subplots(2, 4, figsize=(13, 6))
    panels = grid.flat
    for axes, (name, title, unit, _) in zip(panels, growth.COLUMNS):
        curves(axes, document["points"], "held", "files", lambda each, name=name, unit=unit: [
            value / unit for value in each["values"][name]])
        finish_panel(axes, title, "files", ticks=None if name in FLAT else (1, 2, 5))
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="upper center", ncol=len(LINE_COLOURS))
    confirm_panel(grid.flat[len(growth.COLUMNS)], document["confirm"])
    figure.tight_layout(rect=(0, 0, 1, 0.96))
    return figure


def confirm_panel(axes, confirms):
    def milliseconds(each):
        return [value / 1e6 for value in each["values"]]

    curves(axes, [each for each in confirms if not each["beside"]], "files", "count", milliseconds)
    axes.plot(list(CONFIRM_GOALS_MS), list(CONFIRM_GOALS_MS.values()), "k_", markersize=9, label="goal")
    axes.legend(fontsize=7)
    curves(axes, [each for each in confirms if each["beside"]], "files", "count", milliseconds, line="o:")
    most = max(each["beside"] for each in confirms)
    finish_panel(axes, "confirm, ms", f"confirmed at once; dotted: beside {spaced(most)} held", ticks=(1,))


def curves(axes, measured, of_line, of_x, values, line="o-"):
    """A line for each `of_line`, through the medians at each `of_x`, with the ranges."""
    for key, colour in zip(sorted({each[of_line] for each in measured}), LINE_COLOURS):
        points = [each for each in measured if each[of_line] == key]
        places = [each[of_x] for each in points]
        spread = [sorted(values(each)) for each in points]
        axes.plot(places, [statistics.median(each) for each in spread], line, markersize=3, color=colour,
                  label=f"{spaced(key)} {of_line}")
        axes.vlines(places, [each[0] for each in spread], [each[-1] for each in spread], color=colour, linewidth=0.8)


def finish_panel(axes, title, what, ticks):
    """The ticks within each power of ten, or None where costs are drawn from 0."""
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(what)
    axes.set_xscale("log")
    plain_numbers(axes.xaxis, (1,))
    if ticks is None:
        axes.set_ylim(bottom=0)
    else:
        axes.set_yscale("log")
        plain_numbers(axes.yaxis, ticks)


def plain_numbers(axis, ticks):
    """On a logarithmic axis: 1 000, not a power of ten."""
    from matplotlib import ticker
    axis.set_major_locator(ticker.LogLocator(subs=ticks))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: spaced(value)))
    axis.set_minor_locator(ticker.NullLocator())


def spaced(number):
    return f"{number:,.10g}".replace(",", " ")


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2:])
    except (Wrong, OSError) as err:
        sys.exit(str(err))
