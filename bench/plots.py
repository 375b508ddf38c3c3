#!/usr/bin/env python3
"""Plots of results.json, each as SVG and PNG: speed over length, and time and memory as the length grows.

    bench/plots.py FOLDER...      draws into the folders that hold a results.json
"""
import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from figures import type_of

plt.rcParams.update({"svg.hashsalt": "attend", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3,
                     "axes.spines.top": False, "axes.spines.right": False})
COLOURS = {"attend": "#c0392b", "attend.torch": "#e59866", "PyTorch": "#2471a3", "PyTorch compiled": "#7fb3d5",
           "ONNX Runtime": "#229954", "ggml": "#7d3c98", "NumPy": "#7f8c8d"}


def speed_over_length(results):
    """A panel for each number of cores and each mask: GFLOP/s of every library."""
    runs = [run for run in results["runs"] if run["case"]["suite"] == "length"]
    if not runs:
        return None
    counts = sorted({run["cores"] for run in runs})
    figure, axes = plt.subplots(len(counts), 2, figsize=(9, 3.2 * len(counts)), squeeze=False, sharex=True)
    for row, cores in enumerate(counts):
        for column, causal in enumerate((False, True)):
            axis = axes[row][column]
            chosen = [run for run in runs if run["cores"] == cores and run["case"]["causal"] == causal]
            for name, colour in COLOURS.items():
                points = [(run["case"]["keys"], run["case"]["flops"] / run["figures"][name]["seconds"] / 1e9)
                          for run in chosen if name in run["figures"]]
                if points:
                    axis.plot(*zip(*points), color=colour, label=name, marker="o", markersize=3,
                              linewidth=2 if name == "attend" else 1.2)
            axis.axhline(results["peaks"][str(cores)]["flops"] / 1e9, color="black", linestyle=":", label="peak")
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter("{x:.0f}")
            axis.set_ylim(bottom=0)
            axis.set_title(f"{'causal' if causal else 'full'}, {cores} core{'s'[:cores != 1]}")
            axis.set_ylabel("GFLOP/s")
    for axis in axes[-1]:
        axis.set_xlabel(f"length (2048 tokens in all, 8 heads of 64, {type_of(results)})")
    axes[0][-1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))  # beside: the lines need all the room
    return figure


def growth(results):
    """Time and memory of attend alone, with what squares and lines would be."""
    points = results["growth"]
    if len(points) < 2:
        return None
    keys = [point["keys"] for point in points]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    square = lambda first: [first * (n / keys[-1]) ** 2 for n in keys]
    seconds, memory = ([point[name] for point in points] for name in ("seconds", "memory_bytes"))
    left.plot(keys, seconds, color=COLOURS["attend"], marker="o", markersize=3, label="measured")
    left.plot(keys, square(seconds[-1]), color="black", linestyle=":", label="length squared")
    left.set_ylabel("seconds")
    left.set_title(f"time, {points[0]['cores']} core{'s'[:points[0]['cores'] != 1]}")
    mib = 2.0 ** 20
    right.plot(keys, [n / mib for n in memory], color=COLOURS["attend"], marker="o", markersize=3,
               label="measured, inputs included")
    right.plot(keys, [memory[-1] * n / keys[-1] / mib for n in keys], color="black", linestyle=":", label="length")
    size = 4 if type_of(results) == "f32" else 2
    right.plot(keys, [size * n * n / mib for n in keys], color="black", linestyle="--", label="a length x length matrix")
    right.set_ylabel("MiB")
    right.set_title("memory of the process")
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:.0f}")
        axis.set_yscale("log")
        axis.set_xlabel(f"length (one head of 64, {type_of(results)})")
        axis.legend(frameon=False)
    return figure


def draw(results, folder):
    for name, figure in (("speed", speed_over_length(results)), ("growth", growth(results))):
        if figure is None:
            continue
        figure.tight_layout()
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        figure.savefig(folder / f"{name}.png", dpi=120)
        plt.close(figure)


def main(folders):
    if not folders:
        print(__doc__, file=sys.stderr)
        return 2
    for folder in map(pathlib.Path, folders):
        draw(json.loads((folder / "results.json").read_text()), folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
