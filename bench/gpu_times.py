"""Times on a GPU: events around many launches, libraries in turns. For bench/gpu.py and the scripts of src/cuda."""
import math

import torch

TURN = 4e-3  # seconds of a library's turn, at least


def timed(launch, count):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        launch()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / count


def turns(launches, rounds):
    """{name: seconds of each round}; they take turns."""
    counts, found = {}, {name: [] for name in launches}
    for name, launch in launches.items():
        launch()
        counts[name] = max(2, min(50, math.ceil(TURN / max(1e-6, timed(launch, 2)))))
    for _ in range(rounds):
        for name, launch in launches.items():
            found[name].append(timed(launch, counts[name]))
    return found


def graph_of(launch):
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        keep = launch()

    def replay(keep=(launch, keep)):  # and what it launches on
        graph.replay()
    return replay
