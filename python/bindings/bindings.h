// The parts of the module, each in its file; module.cpp calls them in this order. The signatures
// that they give are what the package's stub shows.
#pragma once

#include <nanobind/nanobind.h>

namespace attend::python {

namespace nb = nanobind;

void bind_context(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_plan(nb::module_& m);
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

}  // namespace attend::python

// The options of attention in a signature.
#define ATTEND_OPTIONS                                                                    \
  "scale: float | None = None, softcap: float = 0.0, bias_before_softcap: bool = False, " \
  "causal: bool = False, window: WindowLike | None = None, "                              \
  "query_offset: int | Array | None = None, key_offset: int | None = None, "              \
  "mask: Array | None = None, "                                                           \
  "bias: Array | None = None, alibi: Array | None = None, sinks: Array | None = None, "   \
  "blocks: BlocksLike | None = None, key_lengths: Array | None = None, "                  \
  "cu_seqlens_q: Array | None = None, cu_seqlens_k: Array | None = None, "                \
  "block_table: Array | None = None, dropout: DropoutLike | None = None, "

// What a call hands out besides its result: nothing, or something.
#define ATTEND_NOTHING_ELSE                                                      \
  "return_lse: Literal[False] = False, return_weights: Literal[False] = False, " \
  "return_scores: None = None, "
#define ATTEND_MORE                                          \
  "return_lse: bool = False, return_weights: bool = False, " \
  "return_scores: Literal['raw', 'softcapped', 'masked'] | None = None, "

// The arguments of inspect besides them.
#define ATTEND_INSPECT                                                                  \
  "top_k: int = 0, key_mass: bool = True, metrics: bool = True, local_width: int = 8, " \
  "tokens: Array | Sequence[str] | None = None, tiles: int | tuple[int, int] | None = None, "
