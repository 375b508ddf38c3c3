"""Mutants of src/reference, of what all kernels share in src/core, and of src/api."""
from . import mutant

REFERENCE = "src/reference/attention.cpp"
ROW = "src/reference/row.h"
MERGE = "src/reference/merge.cpp"
MASK = "src/core/mask.h"
SEQUENCE = "src/core/sequence.h"
PHILOX = "src/core/philox.h"
SOFTMAX = "src/core/softmax_state.h"

CASES = ("conformance",)

MUTANTS = (
    # ---- The ten that every attention library should be safe from ----
    mutant("no_scale", "scores are q . k, not scaled",
           (ROW, "p.scale * dot(row.q, row.k, p.d)", "dot(row.q, row.k, p.d)"), tests=CASES),
    mutant("mask_inverted", "0 in the mask means visible",
           (MASK, "load_integer(call.mask, call.mask.offset(b, h, i, j)) == 0",
            "load_integer(call.mask, call.mask.offset(b, h, i, j)) != 0")),
    mutant("offset_by_one", "without query_offset the last query stands one key too far",
           (SEQUENCE, "s.k_length - s.q_length", "s.k_length - s.q_length + 1")),
    mutant("heads_tiled", "query head h uses key head h % key heads",
           (ROW, "h / problem.group()", "h % problem.kv_heads")),
    mutant("softcap_after_bias", "the bias is capped too, asked for or not",
           (ROW, "p.bias_before_softcap ? s.raw + bias : s.raw", "s.raw + bias"),
           (ROW, "p.bias_before_softcap ? s.capped : s.capped + bias", "s.capped")),
    mutant("hidden_row_uniform", "a row that sees no key gives the mean of v, not 0",
           (REFERENCE, "divide(o, p.dv, total);",
            "for (std::int64_t j = 0; total.l == 0 && j < row.sequence.k_length; ++j) {"
            " row.load_value(j);"
            " for (std::int64_t x = 0; x < p.dv; ++x)"
            " o[x] += row.v[x] / static_cast<double>(row.sequence.k_length); }"
            " for (std::int64_t x = 0; total.l != 0 && x < p.dv; ++x) o[x] /= total.l;")),
    mutant("short_mask_padded_with_0", "keys past the end of a short mask are visible",
           (MASK, "if (problem.mask) keys.end = std::min(keys.end, problem.mask_keys);", ""),
           (MASK, "problem.mask && load_integer(call.mask, call.mask.offset(b, h, i, j)) == 0",
            "problem.mask && j < problem.mask_keys &&"
            " load_integer(call.mask, call.mask.offset(b, h, i, j)) == 0")),
    mutant("missing_rescale", "values summed so far keep the old maximum's weight",
           (REFERENCE, "part_o[x] * rescale + kept * row.v[x]", "part_o[x] + kept * row.v[x]")),
    mutant("dbias_not_reduced", "dbias gets the first of the rows that share it, not their sum",
           (REFERENCE, "size == 1 ? KeyRange{0, full} : KeyRange{at, at + 1}",
            "KeyRange{size == 1 && full == 0 ? 1 : at, at + 1}"), tests=CASES),
    mutant("dropout_mask_reused", "every head of every batch element drops the same weights",
           (PHILOX, "(b + draws.b) * draws.heads + h + draws.h",
            "draws.b * draws.heads + draws.h + 0 * (b + h)"), tests=CASES),

    # ---- Step 1, scores ----
    mutant("gradient_not_scaled", "dq and dk miss the scale", (REFERENCE, "p.scale * ds", "ds"),
           tests=CASES),
    mutant("raw_scores_capped", "the raw scores handed out are those after the softcap",
           (REFERENCE, "s.raw", "s.capped"), tests=CASES),

    # ---- Step 2, mask ----
    mutant("causal_off_by_one", "a query does not see its own position",
           (MASK, "position + 1", "position")),
    mutant("window_left_off_by_one", "the window begins one key late",
           (MASK, "std::min(problem.window_left, position)",
            "std::min(problem.window_left - 1, position)")),
    mutant("window_right_off_by_one", "the window ends one key early",
           (MASK, "std::min(problem.window_right, keys.end - 1 - position)",
            "std::min(problem.window_right - 1, keys.end - 1 - position)")),
    mutant("alibi_sign", "far keys are preferred",
           (MASK, "sum -= slope * std::abs(static_cast<double>(i + s.offset - j));",
            "sum += slope * std::abs(static_cast<double>(i + s.offset - j));"), tests=CASES),
    mutant("alibi_without_distance", "keys behind the query get a bonus",
           (MASK, "std::abs(static_cast<double>(i + s.offset - j))",
            "static_cast<double>(i + s.offset - j)"), tests=CASES),
    mutant("alibi_without_offset", "distances ignore where the queries stand",
           (MASK, "i + s.offset - j", "i - j"), tests=CASES),
    mutant("short_bias_padded_with_0", "keys past the end of a short bias are visible",
           (MASK, "if (problem.bias) keys.end = std::min(keys.end, problem.bias_keys);", ""),
           (MASK, "problem.bias && load(call.bias, call.bias.offset(b, h, i, j)) == kMinusInfinity",
            "problem.bias && j < problem.bias_keys &&"
            " load(call.bias, call.bias.offset(b, h, i, j)) == kMinusInfinity")),
    mutant("hidden_by_bias_is_read", "a key with a bias of -inf still touches the sum",
           (MASK, "load(call.bias, call.bias.offset(b, h, i, j)) == kMinusInfinity", "false")),
    mutant("key_lengths_ignored", "keys past key_lengths are visible",
           (SEQUENCE, "problem.key_lengths ? entry(call.key_lengths, b) : s.k_stored",
            "problem.key_lengths && problem.keys == KeyAddressing::paged"
            " ? entry(call.key_lengths, b) : s.k_stored")),
    mutant("hidden_blocks_counted", "visited_blocks counts what was skipped",
           (ROW, "++entered;", ""), (ROW, "j = block_end;", "++entered; j = block_end;"), tests=CASES),
    mutant("softcap_gradient_missing", "the derivative of tanh is taken for 1",
           (REFERENCE, "1 - (s.capped / p.softcap) * (s.capped / p.softcap)", "1.0"), tests=CASES),
    mutant("dbias_before_cap", "dbias is that of bias_before_softcap, asked for or not",
           (REFERENCE, "p.bias_before_softcap ? ds : after_cap", "ds"), tests=CASES),
    mutant("dalibi_sign", "dalibi has the other sign",
           (REFERENCE, "gradient.dadded * std::abs", "gradient.dadded", "-gradient.dadded"), tests=CASES),

    # ---- Step 3, softmax ----
    mutant("sum_not_rescaled", "the sum keeps the old maximum's weight",
           (SOFTMAX, "l * step.rescale + step.p", "l + step.p")),
    mutant("chunks_not_rescaled", "earlier chunks of keys keep their own maximum's weight",
           (REFERENCE, "o[x] * mine + part_o[x] * other", "o[x] + part_o[x] * other"),
           tests=("softmax_state",)),
    mutant("chunks_misplaced", "chunks end one key early: other bits than the parts of a merge",
           (REFERENCE, "j / kChunk != chunk", "(j + 1) / kChunk != chunk"),
           (REFERENCE, "chunk = j / kChunk;", "chunk = (j + 1) / kChunk;"), tests=("properties_merge", "properties_parts")),
    mutant("maximum_not_rounded", "rescales are not powers of two: bits depend on the blocks",
           (SOFTMAX, "m - std::ceil(log2_units(to))", "log2_units(from) - log2_units(to)"),
           tests=("softmax_state",)),
    mutant("fraction_of_log2", "the digits of a weight come from log2 units, which round",
           (SOFTMAX, "((s - m * kLn2High) - m * kLn2Low) * std::numbers::log2e",
            "s * std::numbers::log2e - m"), tests=("softmax_state",)),
    mutant("far_scores_in_log2", "scores far from 0 round before they are subtracted",
           (SOFTMAX, "std::abs(s) >= kFar", "false"), tests=("softmax_state",)),
    mutant("lse_in_log2", "lse adds bits to nats",
           (SOFTMAX, "std::ceil(log2_units(top)) * std::numbers::ln2", "std::ceil(log2_units(top))")),
    mutant("sink_ignored", "the sink does not join the sum",
           (REFERENCE, "if (sink != kMinusInfinity) total.add(sink);", "")),
    mutant("delta_missing", "softmax's gradient lacks the sum over the row",
           (REFERENCE, "shift = sees ? dot(dout, o, problem.dv) : 0.0;", "shift = 0;"), tests=CASES),
    mutant("dlse_ignored", "the gradient at lse is dropped",
           (REFERENCE, "if (problem.dlse) shift -= load(call.dlse, at(call.dlse));", ""), tests=CASES),
    mutant("empty_part_counts", "merge takes a part without keys for one with a weight",
           (MERGE, "if (lse == kMinusInfinity) continue;", ""), tests=("properties_merge",)),

    mutant("state_counts_sinks_again", "every part of the keys counts the sink",
           (REFERENCE, "if (!sink_counted) add_sink(row, total);", "add_sink(row, total);"),
           tests=("properties_parts",)),
    mutant("state_begins_anew", "a partial state forgets the keys before the last part",
           (REFERENCE, "if (state.kind == StateKind::empty) continue;", "continue;"),
           tests=("properties_parts",)),
    mutant("key_offset_ignored", "a part's first key is at position 0",
           (SEQUENCE, "s.offset -= call.key_offset;", ""), tests=("properties_parts",)),

    # ---- Step 4, values, and dropout ----
    mutant("values_of_the_first_head", "only the first head of a group gives its gradient",
           (REFERENCE, "h < (kv_head + 1) * p.group(); ++h) {\n    for_queries(row, h, 0",
            "h < (kv_head + 1) * p.group()", "h <= kv_head * p.group()")),
    mutant("dropout_not_scaled", "the weights that are kept are not made larger",
           (PHILOX, "65536.0 / (65536.0 - problem.drop_below)", "1.0"), tests=CASES),
    mutant("dropout_without_heads", "the heads of a batch element drop the same weights",
           (PHILOX, "h + draws.h;", "h + draws.h", "draws.h"), tests=CASES),
    mutant("dropout_without_offset", "every step of a training drops the same weights",
           (PHILOX, "draws.offset", "std::uint32_t{0}"), tests=CASES),
    mutant("dropout_in_backward_differs", "backward drops other weights than forward did",
           (REFERENCE, "double keep = dropout_factor(p, row.call, row.sequence.b, row.h, row.i, j)",
            "dropout_factor(p, row.call, row.sequence.b, row.h, row.i, j)",
            "dropout_factor(p, row.call, row.sequence.b, row.h, row.i + 1, j)"), tests=CASES),
    mutant("dropout_by_pairs", "two neighbouring keys share a draw", (PHILOX, "j % 2 * 16", "0"),
           tests=CASES),

    # ---- Around the kernel ----
    mutant("ties_away", "the 16-bit types round ties away from zero",
           ("src/core/sixteen_bits.h", "(bits + half - 1 + ((bits >> drop) & 1)) >> drop",
            "(bits + half) >> drop"), tests=("dtype",)),
    mutant("overlap_unchecked", "outputs may lie on top of inputs",
           ("src/api/checker.cpp", "overlap(w->view, other.view)", "false"), tests=("errors",)),
    mutant("strands_share_scratch", "two threads work in the same memory",
           ("src/api/run.cpp", "static_cast<std::size_t>(strand) * workspace.per_strand",
            "static_cast<std::size_t>(0 * strand) * workspace.per_strand"),
           tests=("run", "properties_threads")),
)
