"""What opens docs/performance.md: one table and one chart of how many times faster attend is than the best other library."""
from math import log2

from figures import means, type_of

# What is measured, in words, and the suite that measures it.
WORK = {
    "notes": "short sequences, 10 and 20 tokens",
    "bert": "BERT, 128 and 512 tokens",
    "gpt": "GPT, causal, 512 to 2048 tokens",
    "long": "long sequences, 2048 and 4096 tokens",
    "decode": "decode over a KV cache",
    "backward": "gradients",
    "layer": "a layer, forward",
    "layer training": "a layer, forward and backward",
}
COLOURS = ("#229954", "#2471a3", "#c0392b", "#b9770e")
TICKS = (0.5, 1, 2, 4, 8)
LEFT, TOP, WIDTH, ROW, RIGHT = 262, 58, 430, 26, 20      # of the chart, in pixels


class Series:
    """One machine and type, on all of its cores."""

    def __init__(self, results):
        machine = results["machine"]
        cores = max(run["cores"] for run in results["runs"])
        found = means(results["runs"])
        self.name = f"{plain(machine['processor'])}, {cores} core{'s'[:cores != 1]}, {type_of(results)}"
        self.means = {suite: found[suite, cores] for suite in WORK if (suite, cores) in found}


def plain(processor):
    return processor.replace("(R)", "").replace(" Processor", "").replace("Intel ", "").replace("Arm ", "")


def series_of(all_results):
    """Those that measured every kind of work, or all but one, on more than one core; the type that everybody has comes first."""
    found = [Series(results) for results in all_results if max(run["cores"] for run in results["runs"]) > 1]
    order = ("f32", "bf16", "f16")
    return sorted((one for one in found if len(one.means) >= len(WORK) - 1), key=lambda one: order.index(one.name.split(", ")[-1]))


def table(series):
    yield "| times as fast as the best other library | " + " | ".join(one.name for one in series) + " |"
    yield "|---|" + "--:|" * len(series)
    for suite, words in WORK.items():
        yield f"| {words} | " + " | ".join(f"{one.means[suite]:.2f}x" if suite in one.means else "" for one in series) + " |"


def place(value):
    """Where on the chart's logarithmic axis."""
    low, high = log2(TICKS[0]), log2(TICKS[-1])
    return LEFT + WIDTH * (min(max(log2(value), low), high) - low) / (high - low)


def chart(series):
    """The table as points, a line for each kind of work: to the right of 1x attend is ahead."""
    height = TOP + ROW * len(WORK) + 34
    bottom = TOP + ROW * len(WORK)
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + RIGHT} {height}" '
           'font-family="sans-serif" font-size="12">')
    yield f'<rect width="{LEFT + WIDTH + RIGHT}" height="{height}" fill="white"/>'
    for n, one in enumerate(series):
        x, y = LEFT + (n % 2) * 230, 16 + 18 * (n // 2)
        yield f'<circle cx="{x}" cy="{y - 4}" r="5" fill="{COLOURS[n % len(COLOURS)]}"/><text x="{x + 10}" y="{y}">{one.name}</text>'
    for tick in TICKS:
        x = place(tick)
        dark, wide = ("#333333", 2) if tick == 1 else ("#dddddd", 1)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{bottom}" stroke="{dark}" stroke-width="{wide}"/>'
        words = "as fast" if tick == 1 else f"{tick:g}x"
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{words}</text>'
    for n, (suite, words) in enumerate(WORK.items()):
        y = TOP + ROW * n + ROW / 2
        yield f'<text x="{LEFT - 12}" y="{y + 4:.0f}" text-anchor="end">{words}</text>'
        for k, one in enumerate(series):
            if suite not in one.means:
                continue
            yield f'<circle cx="{place(one.means[suite]):.1f}" cy="{y:.0f}" r="5" fill="{COLOURS[k % len(COLOURS)]}" fill-opacity="0.85"/>'
    yield f'<text x="{LEFT + WIDTH}" y="{bottom + 30}" text-anchor="end" fill="#555555">speed of attend / speed of the best other library</text>'
    yield "</svg>"
