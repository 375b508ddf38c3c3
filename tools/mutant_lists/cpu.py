"""Mutants of src/cpu: of what the instruction sets share, so that any of them shows what is wrong."""
import functools

from . import mutant

FORWARD = "src/cpu/flash_forward.h"
BACKWARD = "src/cpu/flash_backward.h"
SCORES = "src/cpu/scores.h"
MASK = "src/cpu/score_mask.h"
SPANS = "src/cpu/key_spans.h"
FEW = "src/cpu/few_rows.h"
VEC = "src/cpu/vec.h"
SUMS = "src/cpu/sums.h"
EXP2 = "src/cpu/exp2.h"
PACK = "src/cpu/pack.h"
ELEMENTS = "src/cpu/elements.h"
GRADIENTS = "src/cpu/score_gradients.h"
SOFTMAX = "src/cpu/softmax_gradient.h"
SEGMENTS = "src/cpu/segments.h"
KEY_SUMS = "src/cpu/key_sums.h"
BIAS = "src/cpu/bias_gradient.h"
GEMM = "src/cpu/gemm.h"
GEMM_NARROW = "src/cpu/gemm_narrow.h"
GEMM_FEW = "src/cpu/gemm_few.h"
GEMM_SUMS = "src/cpu/gemm_sums.h"
NORM = "src/cpu/norm.h"
ACTIVATION = "src/cpu/activation.h"
ROTARY = "src/cpu/rotary.h"
CONVERT = "src/cpu/convert.h"
INSPECT_ROWS = "src/cpu/inspect_rows.h"
INSPECT_KEYS = "src/cpu/inspect_keys.h"
INSPECT_MAP = "src/cpu/inspect_map.h"
DECLINES = "src/cpu/declines.cpp"
SCALES = "src/cpu/scales.h"

attention = functools.partial(mutant, tests=("conformance",))
product = functools.partial(mutant, tests=("matmul",))
rows = functools.partial(mutant, tests=("row_operations",))
scales = functools.partial(mutant, tests=("eight_bit_keys", "conformance"))
BYTES = ("eight_bit_weights",)

MUTANTS = (
    # ---- forward ----
    attention("cpu_chunks_at_the_first_key", "chunks begin at the first visible key: bits depend on a window",
              (FORWARD, "std::int64_t at = begin / kChunk * kChunk", "begin / kChunk * kChunk", "begin"),
              tests=("properties_rows", "conformance")),
    attention("cpu_hidden_chunk_has_a_base", "a row that sees nothing of a chunk subtracts -inf from -inf",
              (SUMS, "select(less(most, V::set(std::numeric_limits<SumOf<V>>::lowest())), V::set(0), most)", "most")),
    attention("cpu_dropout_underflows", "with dropout the smallest weights are 0 at once",
              (FORWARD, "drops ? exp2_gradual(t) : exp2_of(t)", "exp2_of(t)"),
              tests=("traps_extremes",)),
    attention("cpu_slice_of_values_overruns", "the last slice of values is as long as the others",
              (FORWARD, "span.count - x < slice ? span.count - x : slice", "slice")),
    attention("cpu_hidden_values_are_summed", "a row with NaN is summed again with the keys it does not see",
              (FORWARD, "if (!scores_.mask.sees(tile, n, j)) continue;", ""), tests=("properties_nan_place",)),
    attention("cpu_summed_again_not_divided", "and is not divided then",
              (FORWARD, "divisors != nullptr && x < whole", "false"), tests=("properties_nan_place",)),
    attention("cpu_piece_ends_early", "a piece of the keys leaves out its last chunk",
              (FORWARD, "all * (index + 1) / cuts", "all * (index + 1) / cuts - (index + 1 < cuts ? 1 : 0)")),
    attention("cpu_piece_leaves_nothing", "a chunk whose blocks are all hidden leaves what was there before",
              (FORWARD, "for (int n = 0; n < tile.lanes; ++n) to.top[n] = kHidden, to.sum[n] = 0;", "")),
    attention("cpu_pieces_overlap", "the values of a piece lie on its sums",
              (FORWARD, "at + 2 * kMost", "at + kMost")),
    attention("cpu_piece_of_nothing_joins", "a chunk that begins where the keys end is joined",
              (FORWARD, "c * kChunk >= tile.end", "c * kChunk > tile.end")),

    # ---- scores and mask ----
    attention("cpu_diagonal_unmasked", "the keys that all rows see end where those of the last row do",
              (SCORES, "keys.end < tile.all.end ? keys.end : tile.all.end", "tile.all.end")),
    attention("cpu_diagonal_off_by_one", "the first key that is not for all rows is hidden from none",
              (MASK, "hide_keys(tile, first, last, seen_to, span.count, s + span.at * tile.stride);",
               "hide_keys(tile, first, last, seen_to + 1, span.count, s + span.at * tile.stride);")),
    attention("cpu_hidden_keys_in_the_maximum", "the maximum is that of all keys, the hidden ones too",
              (MASK, "if (partial) find_top(tile, s, spans.keys, top);", ""),
              tests=("properties_extreme", "properties_hidden")),
    attention("cpu_features_of_the_first_chain", "of more than 256 features the last chain alone counts",
              (SCORES, "      if (add) {", "add", "false")),
    attention("cpu_scale_of_a_power_of_two", "other scales are ignored",
              (SCORES, "scale != 1", "false")),
    attention("cpu_positions_of_the_first_row", "all rows of a tile see what the first one sees",
              (SCORES, "moves && g == 0", "false")),
    attention("cpu_pages_in_order", "keys on pages are read as if their pages lay in order",
              (SCORES, "p.keys != KeyAddressing::paged && count == row_width", "p.keys != KeyAddressing::paged", "true")),
    attention("cpu_blocks_from_anywhere", "blocks are counted from the first visible key",
              (SPANS, "p.blocks ? p.block_keys - j % p.block_keys : to - j", "p.block_keys - j % p.block_keys", "p.block_keys")),
    attention("cpu_alibi_without_distance", "keys behind the query get a bonus",
              (MASK, "distance < 0 ? -distance : distance", "distance")),
    attention("cpu_lowest_bias_hides", "a finite bias makes a score -inf",
              (MASK, "u = select(less(before, lowest), u, larger(lowest, u));", ""),
              tests=("properties_extreme", "traps_extremes")),
    attention("cpu_mask_stride_ignored", "the mask is read as if its keys lay side by side",
              (MASK, "mask[x * stride] == 0", "mask[x] == 0")),
    attention("cpu_overlapping_hidden_ranges", "keys are hidden twice where no key is for all rows",
              (MASK, "if (seen_to < seen_from) seen_from = seen_to = 0;", ""),
              equivalent="the two ranges of keys then overlap, and together are all keys, as they are with "
              "the line: it saves work"),

    # ---- few rows ----
    attention("cpu_few_rows_see_all", "few rows see every key of a span, whatever hides some from one of them",
              (FEW, "tile.keys[n].begin > span.key || tile.keys[n].end < span.key + span.count", "false")),
    attention("cpu_few_rows_overrun", "the last keys of few rows do not step back",
              (FEW, "j + kEach <= keys_ ? j : keys_ - kEach", "j"), tests=("properties_memory", "conformance")),
    attention("cpu_few_rows_of_two_types", "few rows read values as if they were of the type of the keys",
              (FEW, "type == (p.own_v_type ? p.v_type : p.type)", "true")),
    attention("cpu_few_rows_turned_wrongly", "two keys of 8 or 16 bits change places where few rows turn them",
              (VEC, "reinterpret_cast<const E*>(rows.at(r, 0))", "rows.at(r, 0)", "rows.at(r ^ 1, 0)"),
              tests=("few_rows", "conformance")),
    attention("cpu_few_rows_values_of_keys", "values of 8 or 16 bits are one row behind",
              (FEW, "narrow_values<1>(x, of.v + j * of.v_stride", "j * of.v_stride", "(j + 1) * of.v_stride"),
              tests=("few_rows", "conformance")),
    attention("cpu_few_rows_unscaled", "few rows ignore a scale that is no power of two",
              (FEW, "to < d ? 1 : scores_.scale", "Sum{1}")),
    attention("cpu_few_rows_chain", "of more than 256 features the last chain alone counts for few rows",
              (FEW, "if (from > 0) sum[g][r] = sum[g][r] + V::load(s);", "")),
    attention("cpu_few_rows_stale_maximum", "lanes behind the last key take part in the maximum",
              (FEW, "for (std::int64_t j = keys_; j % V::kLanes != 0; ++j) s[j] = kHidden;", ""),
              tests=("properties_hidden", "properties_rows", "conformance")),
    attention("cpu_few_rows_maximum_of_some_lanes", "the maximum leaves out the last lane",
              (FEW, "for (int n = 1; n < V::kLanes; ++n) top", "n < V::kLanes", "n < V::kLanes - 1")),
    attention("cpu_few_rows_values_overrun", "the last slice of values is as long as the others",
              (FEW, "keys_ - j < kSlice ? keys_ - j : kSlice", "kSlice")),

    # ---- sums ----
    attention("cpu_chunks_not_rescaled", "earlier chunks keep their own maximum's weight",
              (SUMS, "mine *= rescale_factor(tile.top[n], part.top);", "")),
    attention("cpu_empty_chunk_joins", "a chunk that a row sees nothing of joins its sums",
              (SUMS, "if (chunk_sum == 0) continue;", "")),
    attention("cpu_hidden_row_not_cleared", "a row that sees nothing keeps what was in memory",
              (SUMS, "clear(tile.to.o + n * tile.to.stride, width(p));", ";")),
    attention("cpu_lse_of_another_unit", "lse forgets the unit of the sum of one chunk",
              (SUMS, "tile.l[n] *= tile.up[n];", "")),
    attention("cpu_sink_of_the_last_part", "a sink that an earlier part counted is counted again",
              (SUMS, "tile.sink[n] || row.sink", "row.sink"), tests=("properties_parts",)),
    attention("cpu_tail_of_a_row", "the last features are stored as a whole vector",
              (SUMS, "x + V::kLanes <= dv", "true")),

    # ---- powers of two, packing ----
    attention("cpu_exp2_of_minus_infinity", "2^x is not 0 below the smallest exponent",
              (EXP2, "larger(V::set(V::kLowestPower - 1), x)", "x")),
    attention("cpu_tanh_overflows", "tanh of a large number is not 1",
              (EXP2, "select(less(most, x), most, x)", "x"), tests=("properties_extreme", "conformance")),
    attention("cpu_ln2_of_29_bits", "the rest of a power of two lacks the low part of ln 2",
              (EXP2, "s - m * D::set(kLn2High) - m * D::set(kLn2Low)", "s - m * D::set(kLn2High)")),
    attention("cpu_last_features_not_packed", "features behind the last whole vector stay out of the lanes",
              (PACK, "if (x < length) square(x, std::false_type{}, length - x);", "")),
    attention("cpu_tail_of_wide_sums", "features behind the last whole vector are not added in f64",
              (PACK, "for (; x < count; ++x) total[x] += static_cast<double>(part[x]);", "")),
    attention("cpu_stride_ignored", "elements that are converted are read as if they lay side by side",
              (ELEMENTS, "from[x * stride]", "from[x]")),

    # ---- backward ----
    attention("cpu_delta_not_rescaled", "delta of earlier chunks keeps their own maximum's weight",
              (GRADIENTS, "tile.delta[n] * mine_factor", "tile.delta[n]")),
    attention("cpu_weights_of_the_chunk", "weights stay relative to their chunk's maximum",
              (SOFTMAX, "exp_of_difference(chunk_top, tile.m[n]) / tile.l[n]", "1 / tile.l[n]")),
    attention("cpu_slopes_of_the_first_chunk", "every chunk uses the softcap's derivative of the first",
              (GRADIENTS, "slopes_ + (row_ + first) * stride", "(row_ + first) * stride", "first * stride")),
    attention("cpu_dropped_weights_flow", "what dropout dropped still has a gradient at its value",
              (SOFTMAX, "select(dropped, zero, keep)", "keep")),
    attention("cpu_dlse_ignored", "the gradient at lse is dropped",
              (GRADIENTS, "problem_.dlse && n < tile.rows", "false")),
    attention("cpu_dsinks_not_normalised", "the weight of the sink is not divided by the sum",
              (BACKWARD, "exp_of_difference(sink, tile.m[n]) / tile.l[n]",
               "exp_of_difference(sink, tile.m[n])")),
    attention("cpu_dq_of_the_last_span", "dq begins anew with every span of visible blocks",
              (BACKWARD, "r == 0 && x == 0", "x == 0")),
    attention("cpu_dq_of_the_last_chunk", "dq of more than one chunk is that of the last",
              (BACKWARD, "if (joined)\n          add_wide<V>(arrays_.dq[t], group_.tiles[t].rows * width(p.d),"
               " arrays_.dq_sum[t]);", "")),
    attention("cpu_hidden_pairs_in_dq", "a NaN of a hidden key reaches dq",
              (BACKWARD, "if (group_.p[pair - group_.ds] == TileGroup::kHidden) continue;", ""),
              tests=("properties_nan_place",)),
    attention("cpu_hidden_pairs_in_dk", "a NaN of a row that does not see a key reaches its gradient",
              (KEY_SUMS, "group_.p[pair + n] != TileGroup::kHidden", "true"), tests=("properties_nan_place",)),
    attention("cpu_unseen_keys_not_cleared", "keys behind those that the first rows see have no zeros",
              (KEY_SUMS, "clear(sums_ + end * width_, (keys - end) * width_);", "")),
    attention("cpu_unseen_keys_not_written", "dk and dv of keys that nobody sees are not written",
              (KEY_SUMS, "group_.end == scores_.sequence.k_stored", "true")),
    attention("cpu_last_key_of_a_tile", "a tile does not see a step of keys of which it sees one",
              (KEY_SUMS, "group_.tiles[t].end > key", "group_.tiles[t].end > key + 1")),
    attention("cpu_last_sums_not_joined", "f32 sums since the last flush are lost",
              (KEY_SUMS, "if (flushed_ && plain()) add_wide<V>(sums, count_, total);", "")),
    attention("cpu_stale_totals", "the f64 sums of dk and dv begin with what was in memory",
              (KEY_SUMS, "if (!flushed_) clear(total, count_);", "")),
    attention("cpu_first_segment_lost", "dk and dv count the second segment of the rows for the first",
              (SEGMENTS, "row + s * segment", "s * segment", "(s == 0 ? 1 : s) * segment")),
    attention("cpu_dsinks_of_the_first_batch", "dsinks and dalibi are those of the first batch element",
              (SEGMENTS, "head < heads; head += p.kv_heads", "head < heads", "head < p.kv_heads")),
    attention("cpu_dbias_of_heads_again", "the sums of a key head are counted with the next one, too",
              (BIAS, "head[x] = 0;", "")),

    # ---- products of matrices ----
    product("cpu_depth_of_one_block", "of more than 256 steps the last block alone counts",
            (GEMM_SUMS, "if (!first) unrolled<kRows>", "!first", "false")),
    product("cpu_bias_for_each_block", "the bias is added once for every 256 steps",
            (GEMM, "p.bias != nullptr && k + depth == p.k", "p.bias != nullptr")),
    product("cpu_stale_panel", "a panel of b that was packed for other steps is used",
            (GEMM, "k != k_ || column < column_", "k != k_", "k_ < 0")),
    product("cpu_bias_first", "few rows add the bias before the sums of later blocks",
            (GEMM_FEW, "k + depth == p.k ? p.bias : nullptr", "k == 0 ? p.bias : nullptr")),
    product("cpu_last_columns_in_place", "columns behind the last whole vector are not made",
            (GEMM_FEW, "columns % V::kLanes == 0", "true")),
    product("cpu_more_rows_than_there_are", "lanes without a row are stored",
            (GEMM_SUMS, "r < rows && r < kVectors * V::kLanes", "r < kVectors * V::kLanes")),
    product("cpu_last_columns_of_c", "the last columns of c are stored as a whole vector",
            (GEMM_SUMS, "if (all) sum.store(c + n);", "all", "true")),
    product("cpu_last_columns_of_b", "columns behind the last whole vector are packed as the last one",
            (GEMM, "n + r < columns ? wide : 0", "wide")),

    mutant("cpu_scales_for_each_block", "sums with weights of 8 bits are scaled once for every 256 steps",
           (GEMM, "p.scales != nullptr && k + depth == p.k", "p.scales != nullptr"), tests=BYTES),
    mutant("cpu_scales_of_the_first_block", "few rows scale the first 256 steps alone",
           (GEMM_NARROW, "last && scaled ? scales : nullptr", "last && scaled", "k == 0 && scaled"), tests=BYTES),
    mutant("cpu_bytes_of_the_first_columns", "every tile of few rows reads the first weights of a line",
           (GEMM_NARROW, "(x, line + n, finish)", "line + n", "line"), tests=BYTES),
    mutant("cpu_bytes_behind_the_last_column", "a line of packed weights goes on behind the last column",
           (GEMM_NARROW, "column + n < range.column_end ? from[x * p.b_depth] : E{}", "column + n < range.column_end",
            "true"), tests=BYTES),
    mutant("cpu_second_half_of_a_pair", "columns of bf16 weights in pairs are packed where the first of each pair stands",
           (GEMM_NARROW, "at % V::kLanes * 2 + at / V::kLanes % 2", "at / V::kLanes % 2", "0"), tests=("matmul",)),
    mutant("cpu_widened_from_the_first_pair", "panels of packed weights begin at the first column of their line",
           (GEMM_NARROW, "line_of<E>(p, k, column + n) + (column + n) % kNarrowColumns", "(column + n) % kNarrowColumns", "0"),
           tests=("matmul", "eight_bit_weights")),

    # ---- rows of features ----
    rows("cpu_epsilon_outside", "epsilon is added to the deviation, not to the variance",
         (NORM, "1 / std::sqrt(squares / count + epsilon)", "1 / (std::sqrt(squares / count) + epsilon)")),
    rows("cpu_norm_of_whole_vectors", "the last features do not count for the mean",
         (NORM, "for (; c < dim; ++c) total += of(widened(x[c]));", "")),
    rows("cpu_rms_norm_has_a_mean", "RMSNorm's gradient subtracts a mean",
         (NORM, "p.kind == NormKind::layer_norm ? mean_g / dim : 0", "mean_g / dim")),
    rows("cpu_norm_overflows", "the squares of large numbers are infinite",
         (NORM, "unit == 1 && !std::isfinite(squares)", "false")),
    rows("cpu_gelu_tanh_slope", "the derivative of x^3 is x^2",
         (ACTIVATION, "static_cast<T>(3 * kTwice * kCube)", "static_cast<T>(kTwice * kCube)")),
    rows("cpu_silu_slope", "the derivative of silu is the sigmoid",
         (ACTIVATION, "fma(x * of.s, of.rest, of.s)", "of.s")),
    rows("cpu_activation_overruns", "the last elements are stored as a whole vector",
         (ACTIVATION, "store_elements(value, hidden + n, end - n);", "store_elements(value, hidden + n);")),
    rows("cpu_gate_gradient_without_up", "the gradient at the gate is not multiplied by up",
         (ACTIVATION, "d * u * g.slope", "d * g.slope")),
    rows("cpu_rotary_not_turned_back", "backward turns by the same angle as forward",
         (ROTARY, "back ? D::set(0) - s : s", "s")),
    rows("cpu_rotary_halves_of_the_table", "of more than 64 pairs the second halves are those of the first 64",
         (ROTARY, "(c + call.pairs) * feature", "(c + count) * feature")),
    rows("cpu_convert_without_tail", "elements behind the last whole vector are not converted",
         (CONVERT, "for (std::int64_t n = x; n < count; ++n) to[n] = made[n - x];", ""), tests=("convert",)),

    # ---- statistics ----
    attention("cpu_entropy_not_rescaled", "the entropy of earlier chunks keeps their own maximum",
              (INSPECT_ROWS, "(tile.turn[n] + octaves(tile.top[n], most) * tile.seen[n]) * mine",
               "tile.turn[n] * mine")),
    attention("cpu_top_keys_bound_too_high", "the last of the largest keys does not enter the list",
              (INSPECT_ROWS, "last[n] - size * T{0x1p-16F} - std::numeric_limits<T>::min()", "last[n]")),
    attention("cpu_mass_counted_again", "the mass of a key is added again after eight tiles",
              (INSPECT_KEYS, "V::set(0).store(lanes + n * V::kLanes);", "")),
    attention("cpu_local_off_by_one", "the farthest key that is local is left out",
              (INSPECT_KEYS, "back + p.local_width + 1", "back + p.local_width")),
    attention("cpu_induction_of_the_token_itself", "induction looks at the token, not at the one before it",
              (INSPECT_KEYS, "equal(arrays_.left[at + x], u)", "equal(arrays_.token[at + x], u)")),
    attention("cpu_map_of_the_last_span", "a column of the map holds the last span of visible blocks",
              (INSPECT_MAP, "const bool once = spans.size == 1", "spans.size == 1", "true")),

    # ---- scales of keys and values ----
    scales("cpu_scale_of_the_chunk", "all keys of a chunk have the scale of the first",
           (SCALES, "head.kv_head, j)", "j", "from")),
    scales("cpu_nan_scale_beside_the_row", "a scale that is not finite multiplies scores and weights",
           (SCALES, "(size != 0) & (size - least > most - least)", "false")),
    scales("cpu_scale_taken_twice", "a row that was multiplied by its scale is multiplied once more",
           (SCALES, "scale = 1;", "")),
    scales("cpu_scaled_scores_unchanged", "scores of whole tiles do not know the scales of the keys",
           (SCORES, "if (scales != nullptr) {", "scales != nullptr", "false")),
    scales("cpu_few_scores_unchanged", "nor do those of few rows",
           (FEW, "to == d && k_scales_ != nullptr", "false")),
    scales("cpu_few_weights_unchanged", "weights of few rows do not know the scales of the values",
           (FEW, "s[j] *= v_scales_[j];", "")),

    # ---- what the kernels decline ----
    mutant("cpu_takes_a_huge_scale", "a scale whose inverse is no normal number is taken",
           (DECLINES, "size >= kLeast && size <= kMost", "size >= kLeast"), tests=("properties_extreme",)),
    mutant("cpu_takes_any_softcap", "a softcap that the type of the sums cannot hold is taken",
           (DECLINES, "if (!holds(problem.softcap)) return reason(\"softcap\", problem.softcap);", ""),
           tests=("properties_extreme",)),
    mutant("cpu_takes_any_number_of_keys", "keys are counted in f32 beyond 2^24",
           (DECLINES, "problem.k_length > kMostKeys", "false"), tests=("errors",)),
)
