"""What is told of a comparison, as markdown."""

import statistics
import sys

from rows import ROWS, Shown


def report(document):
    """Prints what `compare` has measured."""
    about, names, taken = document["machine"], document["systems"], document["rows"]
    print(machine_line(about))
    print(f"{document['rounds']} interleaved rounds; {document['files']} files in the tree, {document['saves']} saves "
          "a round. Native: median of one operation. Others: ratio to native, median (range) of the rounds; lower is "
          "better.")
    if document["smoke"]:
        print("\nSmoke run: too short to say anything about speed.")
    print("\n".join(tables([row for row in ROWS if row.name in taken], names, taken)))
    kept = [f"{name} {size / (1 << 20):.1f} MiB" for name, size in about["memory"].items() if size]
    print(f"\nMemory of its own that a daemon has at the end: {', '.join(kept) or 'not known'}.")
    for name, note in document["notes"].items():
        print(f"\nNote, {name}: {note}")
    for failure in document["failed"]:
        print(f"\nFAILED {failure['system']}, {failure['row']}: {failure['why']}", file=sys.stderr)


def machine_line(about):
    versions = ", ".join(f"{name} {version}".strip() for name, version in about["versions"].items())
    return (f"{about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB, Linux {about['kernel']}, "
            f"{about['directory']}, load {about['load']:.1f} before and {about['load_after']:.1f} after, "
            f"{about['date']}. {versions}.")


def one(value):
    """What one operation took in a round."""
    return statistics.median(value) if isinstance(value, list) else value


def time_text(ns):
    if ns >= 1e8:
        return f"{ns / 1e9:.2f} s"
    if ns >= 1e5:
        return f"{ns / 1e6:.2f} ms"
    return f"{ns / 1e3:.2f} µs"


def ratio_text(values, native):
    ratios = [one(value) / one(base) for value, base in zip(values, native)]
    return cell(ratios, 1, 2) if ratios else "fails"


def cell(values, unit, digits):
    """The median and, where there are several, between which they lie."""
    told = [f"{value / unit:.{digits}f}" for value in (statistics.median(values), min(values), max(values))]
    return told[0] if len(values) == 1 else f"{told[0]} ({told[1]}-{told[2]})"


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def spread_text(rounds, share):
    """The percentile of all rounds together, and between which it lay in each."""
    whole = percentile([ns for each in rounds for ns in each], share) / 1e3
    apart = sorted(percentile(each, share) / 1e3 for each in rounds)
    return f"{whole:.0f}" if len(apart) == 1 else f"{whole:.0f} ({apart[0]:.0f}-{apart[-1]:.0f})"


def tables(rows, names, taken):
    ratios = [row for row in rows if row.shown is not Shown.WAITS]
    saves = [row for row in rows if row.shown is Shown.EACH]
    waits = [row for row in rows if row.shown is Shown.WAITS]
    return [
        *ratio_table(ratios, names, taken),
        *spread_table("one save, µs: p50 / p99", (0.5, 0.99), saves, names, taken),
        *spread_table("one save or read, µs: p50 / p99 / longest", (0.5, 0.99, 1), waits, names, taken),
    ]


def ratio_table(rows, names, taken):
    lines = ["", table_head(["workload", *names])] if rows else []
    for row in rows:
        native = taken[row.name]["native"]
        cells = [time_text(statistics.median(map(one, native))) if native else "fails"]
        cells += [ratio_text(taken[row.name][other], native) for other in names[1:]]
        lines.append(f"| {row.title} | " + " | ".join(cells) + " |")
    return lines


def spread_table(what, shares, rows, names, taken):
    lines = ["", table_head([f"{what}, each with the range of the rounds", *names])] if rows else []
    for row in rows:
        cells = [spread_cell(taken[row.name].get(name), shares) for name in names]
        lines.append(f"| {row.title} | " + " | ".join(cells) + " |")
    return lines


def spread_cell(rounds, shares):
    if rounds is None:
        return "–"
    return " / ".join(spread_text(rounds, share) for share in shares) if rounds else "fails"


def table_head(titles):
    return f"| {' | '.join(titles)} |\n" + "|---" * len(titles) + "|"
