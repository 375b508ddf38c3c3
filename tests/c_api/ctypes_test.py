#!/usr/bin/env python3
"""The C API of the shared library through ctypes.

The declarations are read from the installed header, so that what is called is what is declared.
Every function of the header that can fail is called with good arguments; then each argument that
may not be NULL is NULL, and each struct has a struct_size of zero and one too large: the call must
refuse it and name the argument.
"""
import argparse
import ctypes
import pathlib
import re
import sys
import tempfile

C = ctypes
TYPES = {"size_t": C.c_size_t, "double": C.c_double, "int32_t": C.c_int32, "uint32_t": C.c_uint32,
         "int64_t": C.c_int64, "uint64_t": C.c_uint64}
OK, INVALID_ARGUMENT, FILE_ERROR = 0, 1, 4
F32, F64, I64 = 0, 1, 4

# Arguments that may be NULL besides these types and names: what each function says.
OPTIONAL_NAMES = {"options", "outputs", "context", "self", "cross", "lengths", "lse_out", "kernel",
                  "format"}
OPTIONAL = {("attend_finish_partial", "lse"), ("attend_kernel_at", "*"), ("attend_plan_describe", "*"), ("attend_trace_at", "*"),
            ("attend_tensor_file_at", "*"), ("attend_tensor_file_metadata_at", "*"),
            ("attend_gradients_at", "*"), ("attend_layer_parameter_at", "*"),
            ("attend_block_parameter_at", "*"), ("attend_kv_cache_views", "*"), ("attend_kv_cache_scales", "*"),
            ("attend_layer_forward", "key"), ("attend_layer_forward_train", "key"), ("attend_layer_trace", "key"),
            ("attend_layer_forward", "value"), ("attend_layer_forward_train", "value"),
            ("attend_layer_trace", "value"), ("attend_block_forward", "memory"),
            ("attend_block_trace", "memory"), ("attend_block_forward_train", "memory"),
            ("attend_block_forward_cached", "memory")}
REQUIRED_OPTIONS = {"attend_layer_create", "attend_block_create", "attend_kv_cache_create",
                    "attend_layer_get_options", "attend_block_get_options"}

failures = []


def check(condition, what):
    if not condition:
        failures.append(what)
        print("does not hold:", what)


def parse(header):
    """Structs as {name: ctypes class}, functions as {name: [(type, argument)]}."""
    text = re.sub(r"/\*.*?\*/", " ", header, flags=re.S)
    structs = {}
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, re.S):
        fields = []
        for line in filter(None, (part.strip() for part in body.split(";"))):
            pointer = "*" in line
            field = re.search(r"\(\*(\w+)\)|(\w+)$", line)
            fields.append((field[1] or field[2], C.c_void_p if pointer else TYPES[line.split()[0]]))
        structs[name] = type(name, (C.Structure,), {"_fields_": fields})
    functions = {}
    for result, name, arguments in re.findall(
            r"ATTEND_API (attend_status|void|const char\*) (attend_\w+)\(([^)]*)\);", text):
        words = [" ".join(a.split()) for a in arguments.split(",")]
        functions[name] = result, [tuple(re.fullmatch(r"(.*?)\s*(\w+)", w).groups())
                                   for w in words if w != "void"]
    return structs, functions


class Library:
    def __init__(self, prefix):
        self.structs, self.functions = parse((prefix / "include/attend/c_api.h").read_text())
        self.dll = C.CDLL(str(next(prefix.rglob("libattend.so"))))
        self.kept = []                           # what C has pointers to
        for name, (result, arguments) in self.functions.items():
            function = getattr(self.dll, name)   # AttributeError: it is not exported
            function.restype = {"attend_status": C.c_int32, "void": None}.get(result, C.c_char_p)
            function.argtypes = [C.c_void_p if "*" in t else TYPES.get(t, C.c_int32)
                                 for t, _ in arguments]

    def call(self, name, *arguments):
        return getattr(self.dll, name)(*arguments)

    def ok(self, name, *arguments):
        status = self.call(name, *arguments)
        check(status == OK, f"{name}: {status} {self.error()}")

    def error(self):
        return self.dll.attend_last_error().decode()

    def make(self, kind, **fields):
        made = self.structs[kind]()
        made.struct_size = C.sizeof(made)
        for field, value in fields.items():
            if not isinstance(value, (int, float, type(None))):
                self.kept.append(value)
                value = C.cast(value if isinstance(value, C.Array) else C.pointer(value), C.c_void_p)
            setattr(made, field, value)
        self.kept.append(made)
        return made

    def view(self, values, *shape, dtype=F64):
        code = {F32: C.c_float, F64: C.c_double, I64: C.c_int64}[dtype]
        count = 1
        for size in shape:
            count *= size
        return self.make("attend_view", data=(code * count)(*values), dtype=dtype, rank=len(shape),
                         shape=(C.c_int64 * len(shape))(*shape))

    def handle(self, name, *arguments):
        made = C.c_void_p()
        self.ok(name, *arguments, C.byref(made))
        return made

    def numbers(self, view, code=C.c_double):
        count = 1
        for size in C.cast(view.shape, C.POINTER(C.c_int64))[:view.rank]:
            count *= size
        return list(C.cast(view.data, C.POINTER(code))[:count])


def calls(lib, folder):
    """Good arguments for every function with a status, {name: arguments}; None stands for NULL."""
    ref, blank = C.byref, lambda: lib.make("attend_view")
    q, k, v = (lib.view(x, 1, 1, 2, 2) for x in ([1, 3, 2, .5], [.5, 2, 1, 3], [0, 4, 1, 2]))
    out, lse = lib.view([0] * 4, 1, 1, 2, 2), lib.view([0] * 2, 1, 1, 2)
    lib.kept.append((q, k, v, out, lse))
    outputs = lib.make("attend_attention_outputs", lse=lse)
    options = lib.make("attend_attention_options")
    lib.ok("attend_attention", *map(ref, (q, k, v, out, options, outputs)), None)
    for found, wanted in zip(lib.numbers(out), (0.9223615, 2.1552770, 0.7428167, 2.5143666)):
        check(abs(found - wanted) < 5e-8, f"the worked example: {found} is {wanted}")

    gradients = lib.make("attend_attention_gradients", dq=lib.view([0] * 4, 1, 1, 2, 2))
    plan = lib.handle("attend_plan_attention", *map(ref, (q, k, v, out, options)), None, None, None)
    inputs = lib.make("attend_backward_inputs", q=q, k=k, v=v, out=out, lse=lse, dout=out)
    backward = tuple(map(ref, (inputs, options, gradients)))
    plan_backward = lib.handle("attend_plan_attention_backward", *backward, None, None)
    one, two = (C.c_void_p * 1)(C.addressof(out)), (C.c_void_p * 1)(C.addressof(lse))
    merged = lib.view([0] * 4, 1, 1, 2, 2)
    state, joined = lib.view([0] * 12, 1, 1, 2, 6), lib.view([0] * 12, 1, 1, 2, 6)
    states = (C.c_void_p * 1)(C.addressof(state))
    lib.kept.append(state)

    layer_options = lib.make("attend_layer_options", model_dim=2, dtype=F64)
    block_options = lib.make("attend_block_options", attention=layer_options, cross=1, hidden_dim=4)
    cache_options = lib.make("attend_kv_cache_options", key_heads=1, d_k=2, capacity=9, dtype=F64)
    x = lib.view([1, 2, 3, 4], 1, 2, 2)
    layer = lib.handle("attend_layer_create", ref(layer_options))
    block = lib.handle("attend_block_create", ref(block_options))
    cache = lib.handle("attend_layer_make_cache", layer, 1, 100, 0, 0)
    memory = lib.handle("attend_block_make_memory_cache", block, ref(x), None, None)
    trace = lib.handle("attend_layer_trace", layer, ref(x), None, None, None, None)
    tensor = lib.handle("attend_layer_forward", layer, ref(x), None, None, None, None, None)
    shown = blank()
    lib.ok("attend_tensor_view", tensor, ref(shown))
    output = blank()
    lib.ok("attend_trace_find", trace, b"output", ref(output))
    check(lib.numbers(shown) == lib.numbers(output), "forward gives the trace's output")
    layer_saved, block_saved, y = C.c_void_p(), C.c_void_p(), C.c_void_p()
    train = (ref(y), ref(layer_saved))
    lib.ok("attend_layer_forward_train", layer, ref(x), None, None, None, None, *train)
    block_train = (block, ref(x), ref(x), None, None, None, ref(y), ref(block_saved))
    lib.ok("attend_block_forward_train", *block_train)
    made = lib.handle("attend_layer_backward", layer, ref(x), layer_saved, None)

    path = {n: str(folder / n).encode() for n in ("x.npy", "x.st", "layer.st", "block.st", "trace.st")}
    names, views = (C.c_char_p * 1)(b"x"), (C.c_void_p * 1)(C.addressof(x))
    saving = (path["x.st"], 1, names, views, 1, names, names)
    lib.ok("attend_save_safetensors", *saving)
    lib.ok("attend_save_npy", path["x.npy"], ref(x))
    lib.ok("attend_layer_save", layer, path["layer.st"], 0)
    lib.ok("attend_block_save", block, path["block.st"])
    file = lib.handle("attend_load_safetensors", path["x.st"])
    weights = lib.handle("attend_load_safetensors", path["layer.st"])
    lib.ok("attend_tensor_file_find", file, b"x", ref(shown))
    check(lib.numbers(shown) == [1, 2, 3, 4], "a file gives back its tensor")

    new, text, number = (lambda: ref(C.c_void_p())), (lambda: ref(C.c_char_p())), C.c_int64()
    small, n = ref(C.c_int32()), ref(number)
    shape = (C.c_int64 * 4)(2, 2)
    return {
        "attend_dtype_size": (F32, n),
        "attend_tensor_create": (F32, 2, shape, new()),
        "attend_tensor_copy": (ref(x), new()),
        "attend_tensor_view": (tensor, ref(blank())),
        "attend_context_create": (ref(lib.make("attend_context_options", threads=1)), new()),
        "attend_context_threads": (None, small),
        "attend_kernel_count": (n,),
        "attend_kernel_at": (0, text(), text(), small),
        "attend_attention": (*map(ref, (q, k, v, out, options, outputs)), None),
        "attend_weights_shape": (*map(ref, (q, k, v, options)), shape),
        "attend_attention_backward": (*backward, None),
        "attend_attention_partial": (*map(ref, (q, k, v, state, options)), None),
        "attend_merge_partial": (1, states, ref(joined), None),
        "attend_finish_partial": (1, states, ref(merged), None, None),
        "attend_merge": (1, one, two, ref(merged), None, None),
        "attend_plan_attention": (*map(ref, (q, k, v, out, options)), None, None, None, new()),
        "attend_plan_attention_backward": (*backward, None, None, new()),
        "attend_plan_run": (plan, *map(ref, (q, k, v, out, options)), None),
        "attend_plan_run_backward": (plan_backward, *backward),
        "attend_plan_describe": (plan, text(), text(), n),
        "attend_load_npy": (path["x.npy"], new()),
        "attend_save_npy": (path["x.npy"], ref(x)),
        "attend_load_safetensors": (path["x.st"], new()),
        "attend_save_safetensors": saving,
        "attend_tensor_file_count": (file, n),
        "attend_tensor_file_at": (file, 0, text(), ref(blank())),
        "attend_tensor_file_find": (file, b"x", ref(blank())),
        "attend_tensor_file_metadata_count": (file, n),
        "attend_tensor_file_metadata_at": (file, 0, text(), text()),
        "attend_tensor_file_metadata_find": (file, b"x", text()),
        "attend_trace_attention": (*map(ref, (q, k, v, options)), None, new()),
        "attend_trace_count": (trace, n),
        "attend_trace_at": (trace, 0, text(), text(), text(), ref(blank())),
        "attend_trace_find": (trace, b"output", ref(blank())),
        "attend_trace_save": (trace, path["trace.st"]),
        "attend_kv_cache_create": (ref(cache_options), new()),
        "attend_kv_cache_append": (cache, ref(q), ref(v), None),
        "attend_kv_cache_truncate": (cache, 0, 0),
        "attend_kv_cache_length": (cache, 0, n),
        "attend_kv_cache_free_pages": (cache, n),
        "attend_kv_cache_views": (cache, *(ref(blank()) for _ in range(4))),
        "attend_kv_cache_scales": (cache, *(ref(blank()) for _ in range(2))),
        "attend_gradients_count": (made, n),
        "attend_gradients_at": (made, 0, text(), ref(blank())),
        "attend_gradients_find": (made, b"dx", ref(blank())),
        "attend_layer_create": (ref(layer_options), new()),
        "attend_layer_load": (path["layer.st"], ref(lib.make("attend_weights_format")), new()),
        "attend_layer_load_from": (weights, None, new()),
        "attend_layer_save": (layer, path["layer.st"], 1),
        "attend_layer_to": (layer, F64, new()),
        "attend_layer_quantize": (layer, new()),
        "attend_layer_get_options": (layer, ref(lib.make("attend_layer_options"))),
        "attend_layer_parameter_count": (layer, n),
        "attend_layer_parameter_at": (layer, 0, text(), ref(blank())),
        "attend_layer_parameter_find": (layer, b"q.weight", ref(blank())),
        "attend_layer_end_writing": (layer,),
        "attend_layer_forward": (layer, ref(x), None, None, ref(options), None, None, new()),
        "attend_layer_trace": (layer, ref(x), ref(x), ref(x), None, None, new()),
        "attend_layer_forward_train": (layer, ref(x), None, None, None, None, new(), new()),
        "attend_layer_backward": (layer, ref(x), layer_saved, None, new()),
        "attend_layer_make_cache": (layer, 1, 4, 0, 0, new()),
        "attend_layer_forward_cached": (layer, ref(x), cache, None, None, None, new()),
        "attend_layer_append": (layer, ref(x), ref(x), cache, None, None),
        "attend_layer_attend": (layer, ref(x), cache, None, None, new()),
        "attend_block_create": (ref(block_options), new()),
        "attend_block_load": (path["block.st"], new()),
        "attend_block_save": (block, path["block.st"]),
        "attend_block_to": (block, F64, new()),
        "attend_block_quantize": (block, new()),
        "attend_block_get_options": (block, ref(lib.make("attend_block_options"))),
        "attend_block_parameter_count": (block, n),
        "attend_block_parameter_at": (block, 0, text(), ref(blank())),
        "attend_block_parameter_find": (block, b"attention.q.weight", ref(blank())),
        "attend_block_end_writing": (block,),
        "attend_block_forward": (block, ref(x), ref(x), None, None, None, new()),
        "attend_block_trace": (block, ref(x), ref(x), None, None, None, new()),
        "attend_block_forward_train": (*block_train[:6], new(), new()),
        "attend_block_backward": (block, ref(x), block_saved, None, new()),
        "attend_block_make_cache": (block, 1, 4, 0, 0, new()),
        "attend_block_make_memory_cache": (block, ref(x), None, None, new()),
        "attend_block_forward_cached": (block, ref(x), cache, memory, None, None, None, None, new()),
    }


def refused(lib, name, arguments, at, value, part):
    changed = (*arguments[:at], value, *arguments[at + 1:])
    status = lib.call(name, *changed)
    check(status == INVALID_ARGUMENT and part in lib.error(),
          f"{name} refuses argument {at} with `{part}`: {status} {lib.error()}")


def check_arguments(lib, name, arguments):
    """What must be refused, one argument at a time. Returns how many calls that were."""
    count = 0
    declared = lib.functions[name][1]
    check(len(declared) == len(arguments), f"{name} takes {len(declared)} arguments")
    for at, (kind, argument) in enumerate(declared):
        if "*" not in kind:
            continue
        optional = (argument in OPTIONAL_NAMES and name not in REQUIRED_OPTIONS or
                    (name, argument) in OPTIONAL or (name, "*") in OPTIONAL and at > 0)
        if argument == "shape" and name == "attend_tensor_create":
            optional = True                      # refused in other words
        if not optional:
            refused(lib, name, arguments, at, None, f"{argument} is NULL")
            count += 1
        struct_name = re.fullmatch(r"(?:const )?(attend_\w+)\*", kind)
        if arguments[at] is None or not struct_name or struct_name[1] not in lib.structs:
            continue
        for size in (0, 4096):
            spoilt = lib.structs[struct_name[1]]()
            spoilt.struct_size = size
            refused(lib, name, arguments, at, C.byref(spoilt), f"{argument}.struct_size is {size}")
            count += 1
        known = int(re.search(r"knows (\d+) bytes", lib.error())[1])
        check(known == C.sizeof(lib.structs[struct_name[1]]), f"{struct_name[1]} has {known} bytes")
    return count


def documented():
    """The functions in the table of docs/c_api.md, where `x_{a,b}` stands for two."""
    document = pathlib.Path(__file__).resolve().parents[2] / "docs/c_api.md"
    table = re.search(r"^\| what \|.*?\n\n", document.read_text(), re.M | re.S)[0]
    names = set()
    for stem, ends in re.findall(r"`(\w+)(?:\{([\w,]+)\})?`", table):
        names |= {f"attend_{stem}{end}" for end in ends.split(",")}
    return names


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prefix", required=True, type=pathlib.Path, help="an installed shared attend")
    lib = Library(parser.parse_args().prefix)
    version = lib.dll.attend_version().decode()
    check(re.fullmatch(r"\d+\.\d+\.\d+", version), f"{version} is a version")
    check(lib.dll.attend_status_name(FILE_ERROR) == b"file_error", "a status has a name")
    check(lib.dll.attend_dtype_name(F64) == b"f64", "a type has a name")
    check(lib.error() == "", "no error before the first")
    check(lib.call("attend_load_npy", b"no/such.npy", C.byref(C.c_void_p())) == FILE_ERROR and
          "no/such.npy" in lib.error(), "a file that is not there is a file error")
    with tempfile.TemporaryDirectory() as folder:
        table = calls(lib, pathlib.Path(folder))
        wanted = {n for n, (result, _) in lib.functions.items() if result == "attend_status"}
        check(set(table) == wanted, f"every function is called: {sorted(set(table) ^ wanted)}")
        count = 0
        for name, arguments in table.items():
            lib.ok(name, *arguments)
            count += check_arguments(lib, name, arguments)
    for name, (result, arguments) in lib.functions.items():
        if result == "void":
            lib.call(name, None)
    # Every function of the header is called by the C tests too.
    sources = "".join(f.read_text() for f in pathlib.Path(__file__).parent.glob("*.c"))
    absent = [name for name in lib.functions if not re.search(rf"\b{name}\(", sources)]
    check(not absent, f"the C tests call every function: {absent}")
    check(documented() == set(lib.functions), "docs/c_api.md has every function: "
          f"{sorted(documented() ^ set(lib.functions))}")
    print(f"{len(lib.functions)} functions, {count} refused calls, {len(failures)} failures")
    return 1 if failures or len(lib.functions) < 80 else 0


if __name__ == "__main__":
    sys.exit(main())
