// The parts of the module, each in its file; module.cpp calls them in this order. The signatures
// that they give are what the package's stub shows.
#pragma once

#include <attend/option_list.h>

#include <nanobind/nanobind.h>

namespace attend::python {

namespace nb = nanobind;

void bind_context(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_plan(nb::module_& m);
void bind_torch_calls(nb::module_& m);
void bind_cuda(nb::module_& m);
void bind_trace(nb::module_& m);
void bind_inspect(nb::module_& m);
void bind_files(nb::module_& m);
void bind_kv_cache(nb::module_& m);
void bind_layers(nb::module_& m);
void bind_embedding(nb::module_& m);
void bind_multi_head(nb::module_& m);
void bind_block(nb::module_& m);
void bind_model(nb::module_& m);
void bind_train(nb::module_& m);
void bind_groups(nb::module_& m);
void bind_layouts(nb::module_& m);
void bind_distributed(nb::module_& m);

}  // namespace attend::python

// The options of attention in a signature: "scale: float | None = None, softcap: ...".
#define ATTEND_OPTIONS ATTEND_OPTION_LIST(ATTEND_SIGNATURE)
#define ATTEND_SIGNATURE(kind, name) #name ": " ATTEND_TYPE_##kind(name) ", "
#define ATTEND_TYPE_number(name) "float = 0.0"
#define ATTEND_TYPE_flag(name) "bool = False"
#define ATTEND_TYPE_optional_number(name) "float | None = None"
#define ATTEND_TYPE_optional_integer(name) "int | None = None"
#define ATTEND_TYPE_mask_tensor(name) "Array | None = None"
#define ATTEND_TYPE_float_tensor(name) "Array | None = None"
#define ATTEND_TYPE_head_tensor(name) "Array | None = None"
#define ATTEND_TYPE_key_tensor(name) "Array | None = None"
#define ATTEND_TYPE_integer_tensor(name) "Array | None = None"
#define ATTEND_TYPE_own_type(name) ATTEND_TYPE_of_##name " | None = None"
#define ATTEND_TYPE_of_window "WindowLike"
#define ATTEND_TYPE_of_query_offset "int | Array"
#define ATTEND_TYPE_of_blocks "BlocksLike"
#define ATTEND_TYPE_of_dropout "DropoutLike"

// What a call hands out besides its result: nothing, or something.
#define ATTEND_NOTHING_ELSE                                                      \
  "return_lse: Literal[False] = False, return_weights: Literal[False] = False, " \
  "return_scores: None = None, weight_heads: None = None, "
#define ATTEND_MORE                                                       \
  "return_lse: bool = False, return_weights: bool = False, "              \
  "return_scores: Literal['raw', 'softcapped', 'masked'] | None = None, " \
  "weight_heads: Sequence[int] | None = None, "

// The arguments of inspect besides them.
#define ATTEND_INSPECT                                                                  \
  "top_k: int = 0, key_mass: bool = True, metrics: bool = True, local_width: int = 8, " \
  "tokens: Array | Sequence[str] | None = None, tile_rows: int = 0, tile_columns: int = 0, "
