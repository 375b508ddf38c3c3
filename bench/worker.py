"""One library in a process of its own, pinned to the cores it may use: compare.py starts it, and it sleeps on its
standard input until it is told what to do. A line in, a line out, both JSON.

    python worker.py LIBRARY CORE,CORE,... [FOLDER]     FOLDER: of compare.py --kept

    {"do": "prepare", "case": {...}}   {"seconds": of the first call, "error": against f64, "note": ...} or {"left": why}
    {"do": "time", "seconds": 0.1}     {"seconds": [of each call], "stolen": part of the time that the cores were away}
    {"do": "growth", "case": {...}}    {"seconds": ..., "memory_bytes": ...}, in a process that did nothing else
"""
import contextlib
import gc
import json
import os
import pathlib
import pickle
import sys
import tempfile
import time
import zlib


def libraries():
    import ggml_peer
    import onnx_peer
    import peers
    return {"attend": peers.Attend, "attend.torch": peers.AttendTorch, "PyTorch": peers.Torch,
            "PyTorch compiled": peers.TorchCompiled, "ONNX Runtime": onnx_peer.OnnxRuntime, "ggml": ggml_peer.Ggml,
            "NumPy": peers.NumPy}


def make_data(case):
    """The tensors of a case, the same for every library: from the case's name, made in f32 and rounded to its type."""
    import numpy as np
    from formulas import array_type
    type = array_type(case["type"])
    random = np.random.default_rng(zlib.crc32(case["name"].encode()))
    normal = lambda *shape, scale=1: (random.standard_normal(shape, np.float32) * np.float32(scale)).astype(type, copy=False)
    batch, heads, d = (case.get(name) for name in ("batch", "heads", "d"))
    if case["operation"] == "matmul":
        return {"a": normal(case["size"], case["size"]), "b": normal(case["size"], case["size"])}
    if case["operation"].startswith("layer"):
        width = heads * d
        w = {}
        for name in "qkvo":
            w[name + ".weight"] = normal(width, width, scale=width ** -0.5)
            w[name + ".bias"] = normal(width)
        return {"x": normal(batch, case["queries"], width), "dy": normal(batch, case["queries"], width), "w": w}
    data = {"q": normal(batch, heads, case["queries"], d)}
    for name in "kv":
        data[name] = normal(batch, case["key_heads"], case["keys"], d)
    if case["operation"] != "forward":
        data["dout"] = normal(batch, heads, case["queries"], d)
    return data


def difference(found, truth, largest=0.0):
    """The largest difference, as a part of the largest value; NaN if there is one."""
    import numpy as np
    return float(np.max(np.abs(found.astype(np.float64) - truth)) / max(np.max(np.abs(truth)), largest))


def truths(case, data):
    """(name of a result, the part of it, that part by the formulas in f64 on the same rounded data, the value that an error
    is a part of if it is larger): whole for a layer; of attention some heads, and some of their rows where one row does
    not need the others."""
    import formulas
    import numpy as np
    wide = lambda x: x.astype(np.float64)
    if case["operation"] == "matmul":
        yield "c", slice(64), wide(data["a"][:64]) @ wide(data["b"]), 0.0
    elif case["operation"].startswith("layer"):
        x, w = wide(data["x"]), {name: wide(array) for name, array in data["w"].items()}
        if case["operation"] == "layer":
            truth = {"y": formulas.layer(x, w, case["heads"])}
        else:
            truth = formulas.layer_backward(x, w, case["heads"], wide(data["dy"]))
        # One scale for all: with one key the gradient at W^Q is zero, and what is found is rounding.
        largest = max(np.max(np.abs(array)) for array in truth.values())
        yield from ((name, ..., array, largest) for name, array in truth.items())
    else:
        group = case["heads"] // case["key_heads"]
        for b, h in {(0, 0), (case["batch"] // 2, case["heads"] // 3), (case["batch"] - 1, case["heads"] - 1)}:
            at = lambda name, head: wide(data[name][b:b + 1, head:head + 1])
            q, k, v = at("q", h), at("k", h // group), at("v", h // group)
            if case["operation"] == "forward":
                rows = np.unique(np.linspace(0, case["queries"] - 1, 64).astype(int))
                positions = rows + case["keys"] - case["queries"]
                truth = formulas.attention(q[:, :, rows], k, v, case["causal"], positions)
                yield "out", (b, h, rows), truth[0, 0], 0.0
            else:
                truth = formulas.attention_backward(q, k, v, at("dout", h), case["causal"])
                for name, array in zip(("dq", "dk", "dv"), truth):
                    yield name, (b, h), array[0, 0], 0.0


def errors(case, data, found, wanted=None):
    """Of each result against the truths, which are made where they are not given."""
    for name, part, truth, largest in wanted or truths(case, data):
        yield difference(found[name][part], truth, largest)


def keep(case, folder):
    """Makes the file of a case's data and truths, unless it is there."""
    file = pathlib.Path(folder) / (case["name"].replace("/", " ") + ".pickle")
    if not file.exists():
        data = make_data(case)
        part = file.with_suffix(f".{os.getpid()}")
        with open(part, "wb") as out:
            pickle.dump((case, data, list(truths(case, data))), out, protocol=5)
        part.rename(file)
    return file


def kept(case, folder):
    """(data, truths) of a case as `keep` made them, the data in memory as NumPy takes it itself."""
    with open(keep(case, folder), "rb") as file:
        of, data, wanted = pickle.load(file)
    if of != case:
        raise ValueError(f"{folder} has another case of the name {case['name']}")
    copied = lambda x: {name: copied(y) for name, y in x.items()} if isinstance(x, dict) else x.copy()
    return copied(data), wanted


def worst(values):
    """The largest, and NaN if there is one: max() could miss it."""
    values = list(values)
    return max(values) if all(value == value for value in values) else float("nan")


def prepare(library, case, folder=None):
    from peers import Left
    try:
        if case["type"] in library.lacks:
            raise Left(library.lacks[case["type"]])
        library.note, library.around = "", contextlib.nullcontext
        data, wanted = kept(case, folder) if folder else (make_data(case), None)
        call, results = getattr(library, case["operation"])(case, data)
        with library.around():
            call()                                  # tables, threads, compilation
            begin = time.perf_counter()
            value = call()
            seconds = time.perf_counter() - begin
        return call, {"seconds": seconds, "error": worst(errors(case, data, results(value), wanted)),
                      "note": library.note}
    except Left as reason:
        return None, {"left": str(reason)}
    except Exception as error:                      # a library that cannot is left out, with its own words
        return None, {"left": f"{type(error).__name__}: {error}".split("\n")[0][:300]}


def stolen_seconds(cores):
    """That a virtual machine's host has kept these cores for others, since the start; 0 where it is not told."""
    try:
        with open("/proc/stat") as file:
            rows = [line.split() for line in file]
        return sum(int(row[8]) for row in rows if row[0] in {f"cpu{core}" for core in cores}) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return 0.0


def time_calls(call, seconds):
    """Times of calls one after the other: at least three, unless they take much longer than `seconds`; and the part of
    all cores' time that the host took away meanwhile. The first wakes the threads, and counts only where it is so long
    that this is nothing."""
    cores = os.sched_getaffinity(0)

    def one():
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    before = stolen_seconds(cores)
    times, total = [], one()
    if total >= 3 * seconds:
        times.append(total)
    else:
        before, total = stolen_seconds(cores), 0.0
    while total < seconds or (len(times) < 3 and total < 3 * seconds):
        times.append(one())
        total += times[-1]
    return {"seconds": times, "stolen": (stolen_seconds(cores) - before) / (total * len(cores))}


def memory(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))


def growth(library, case):
    """One call after another that is not timed; and how far the process grew, its inputs and results included."""
    small = {**case, "queries": 64, "keys": 64}
    library.forward(small, make_data(small))[0]()   # threads, tables
    before = memory("VmRSS")
    data = make_data(case)
    call, results = library.forward(case, data)
    begin = time.perf_counter()
    value = call()
    seconds = time.perf_counter() - begin
    grown = memory("VmHWM") - before
    error = worst(errors(case, data, results(value)))
    return {"seconds": seconds, "memory_bytes": grown, "error": error, "note": library.note}


def main():
    name, cores = sys.argv[1], {int(core) for core in sys.argv[2].split(",")}
    folder = sys.argv[3] if len(sys.argv) > 3 else None
    os.sched_setaffinity(0, cores)                  # before any library counts them
    threads = str(len(cores))
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = threads
    # Compiled code is for one number of threads, and the compiler's cache does not tell them apart.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(tempfile.gettempdir(), f"attend-bench-{os.getuid()}-{threads}")
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)                                   # what a library prints is no reply

    def reply(value):
        print(json.dumps(value), file=replies, flush=True)

    try:
        library = libraries()[name]()
    except Exception as error:
        reply({"left": f"{type(error).__name__}: {error}".split("\n")[0]})
        return
    reply({"version": library.version})
    gc.disable()
    call = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "prepare":
            call = None
            gc.collect()
            call, answer = prepare(library, request["case"], folder)
            reply(answer)
        elif request["do"] == "time":
            with library.around():
                reply(time_calls(call, request["seconds"]))
        else:
            reply(growth(library, request["case"]))


if __name__ == "__main__":
    main()
