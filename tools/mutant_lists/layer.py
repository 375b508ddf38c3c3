"""Mutants of src/layer."""
from . import mutant

MATMUL = "src/layer/matmul.cpp"
PACKING = "src/layer/packing.cpp"
NORM = "src/layer/norm.cpp"
FEED_FORWARD = "src/layer/feed_forward.cpp"
BLOCK = "src/layer/block.cpp"
CACHE = "src/layer/kv_cache.cpp"
CACHED = "src/layer/multi_head_cache.cpp"
TRAINING = "src/layer/multi_head_training.cpp"
ROTARY = "src/layer/rotary.cpp"
HIDDEN = "src/layer/hidden_rows.cpp"
OPTIMIZER = "src/layer/optimizer.cpp"
LOSS = "src/layer/loss.cpp"
SCHEDULE = "src/layer/schedule.cpp"
POSITIONS = "src/layer/positions.cpp"
GRADIENTS = "src/layer/gradients.cpp"
EMBEDDING = "src/layer/embedding.cpp"
QUANTISE = "src/layer/quantise.h"
LOSS_SCALE = "src/layer/loss_scale.cpp"
TYPES = "src/layer/types.cpp"

PACKED = ("packed_weights", "writable_parameters")
TRAIN = ("train",)
TRAIN_16 = ("train_16_bits",)
EIGHT_BITS = ("eight_bit_cache",)
LAYERS = ("layer_formulas", "layer", "layer_gradient")

MUTANTS = (
    # ---- products and packed weights ----
    mutant("packed_copy_is_stale", "weights that were written are still used as they were packed before",
           (PACKING, "!others && state.readers == 0", "false"),
           (PACKING, "others || mine ? Status::outdated : Status::written", "state.status"), tests=PACKED),
    mutant("packed_while_written", "weights are packed while somebody may write them",
           (PACKING, "state.writers == 0 && ContextState", "state.writers == 0", "true"), tests=PACKED),
    mutant("packed_by_another_row", "a copy that another kernel packed is used",
           (PACKING, "self.packed_->row == &row", "true"), tests=PACKED),
    mutant("given_weights_are_packed", "weights that the caller still has a view of are packed",
           (PACKING, "packing->begin_writing();", ""), tests=PACKED),
    mutant("packed_b_of_another_product", "a product uses what was packed of another matrix",
           (MATMUL, "q.b == p.b && q.narrow == p.narrow", "q.b == p.b", "true"),
           tests=("matmul", "multi_head")),
    mutant("residual_of_the_first_columns", "every task adds the residual's first columns",
           (MATMUL, "(row * t.strides()[0] + column) * size_of(t.dtype())", "row * t.strides()[0] + column",
            "row * t.strides()[0]"), tests=("block", "layer_into", "matmul")),
    mutant("columns_of_the_copy", "a copied matrix lies as if its columns were side by side",
           (MATMUL, "n * next_run, next, run", "n * next_run", "n * run"), tests=("matmul",)),

    # ---- norms, feed forward, blocks ----
    mutant("norm_blocks_overlap", "dweight of a block of rows begins in the middle of the one before",
           (NORM, "block * 2 * dim + c", "block * dim + c"), tests=LAYERS),
    mutant("gate_forgotten_in_dx", "dx lacks what comes through the gate",
           (FEED_FORWARD, "add_to(gradients.dx, part.dx, where);", ""), tests=LAYERS),
    mutant("norm_backward_forgotten", "with the norm before a part its gradient goes around the norm",
           (BLOCK, "placement == NormPlacement::pre ? norm(f(dy)) : f(dy)", "f(dy)"), tests=("block",)),
    mutant("post_norm_backward_forgotten", "with the norm behind a part its gradient goes around the norm",
           (BLOCK, "if (placement == NormPlacement::post) dy = norm(dy);", ""), tests=("block",)),
    mutant("memory_gradient_of_keys", "dmemory lacks what comes through the values",
           (BLOCK, "add_to(g.dkey, g.dvalue, where);", ""), tests=("block",)),
    mutant("residual_is_the_norm", "the residual of a block is the norm of x",
           (BLOCK, "add(part, between, now, to);", "add(part, between, between, to);"), tests=("block",)),

    # ---- attention ----
    mutant("key_gradient_not_turned_back", "dk is turned forward by the rotary positions",
           (TRAINING, "by_heads(dk, o.key_heads), true, where", "true", "false"),
           tests=("rotary", "multi_head_gradient")),
    mutant("dx_without_values", "dx of self-attention lacks what comes through v",
           (TRAINING, "add_to(query.dx, value.dx, where);", ""), tests=("multi_head_gradient",)),
    mutant("hidden_rows_kept", "a NaN in a row that nobody sees reaches the gradients of the weights",
           (TRAINING, "clear_hidden_rows({saved.query, saved.key, saved.value}, q, k, v, options, where);", ""),
           tests=("layer_hidden",)),
    mutant("seen_rows_cleared", "a row that sees nothing is cleared though others see it",
           (HIDDEN, "as_query(b, row) && as_key(b, row)", "as_query(b, row)"), tests=("layer_hidden",)),
    mutant("causal_rows_never_hidden", "rows that a causal mask hides are not looked for",
           (HIDDEN, "(o.causal && queries != keys)", "false"), tests=("layer_hidden",)),
    mutant("rotary_offset_ignored", "query_offset of each sequence does not turn its queries",
           (ROTARY, "list_of(offset.each())", "list_of(ConstTensorView())"), tests=("rotary", "kv_cache")),

    # ---- KV cache ----
    mutant("cached_keys_from_position_0", "keys that are appended are turned as if the cache were empty",
           (ROTARY, "places.first_of_each = list_of(lengths);", ""), tests=("rotary", "kv_cache")),
    mutant("new_tokens_at_the_end", "with lengths, new tokens stand where the longest would",
           (CACHED, "placed.query_offset = undo.lengths();", ""), tests=("kv_cache", "traps_cache")),
    mutant("page_in_use_is_freed", "truncate frees the page that the last token is on",
           (CACHE, "page-- > pages_of(length)", "pages_of(length)",
            "(options_.page_size == 0 ? 1 : length / options_.page_size)"), tests=("kv_cache", "traps_cache")),
    mutant("failed_pass_keeps_tokens", "a pass that failed leaves its tokens in the cache",
           ("src/layer/kv_cache.h", "cache_.truncate(b, at(b));", ";"), tests=("kv_cache", "traps_cache")),
    mutant("values_on_the_page_of_keys", "values are stored from the first token of a page on",
           (CACHE, "copy_token(v, b, i, values_, page, held % size);", "held % size", "i % size"),
           tests=("kv_cache", "traps_cache")),

    # ---- 8-bit KV cache ----
    mutant("eight_bits_to_128", "the largest number of a row is 128, which 8 bits do not hold",
           (QUANTISE, "most / kMostOfEightBits", "most / 128"), tests=EIGHT_BITS),
    mutant("halves_away_from_zero", "of two nearest numbers the larger is taken",
           (QUANTISE, "rest == 0.5 && whole % 2 != 0", "rest == 0.5"), tests=EIGHT_BITS),
    mutant("negative_halves_to_zero", "numbers below 0 are rounded up",
           (QUANTISE, "x < 0 ? -1 : 1", "x < 0 ? 0 : 1"), tests=EIGHT_BITS),
    mutant("nan_is_zero_in_8_bits", "a row that holds NaN is stored as if it held 0",
           (QUANTISE, "check == 0 && most", "check == 0", "true"), tests=EIGHT_BITS),
    mutant("subnormal_scale", "the scale of the smallest rows is not a normal number",
           (QUANTISE, "std::max(static_cast<float>(most / kMostOfEightBits), std::numeric_limits<float>::min())",
            "static_cast<float>(most / kMostOfEightBits)"), tests=EIGHT_BITS),
    mutant("scales_on_the_first_page", "scales are stored where the first page has its own",
           (CACHE, "offset_of(scales, page, h, place)", "page", "0 * page"), tests=EIGHT_BITS),
    mutant("values_have_the_scales_of_keys", "a pass over the cache multiplies values by the scales of keys",
           (CACHED, "options.v_scales = cache.v_scales();", "cache.v_scales()", "cache.k_scales()"),
           tests=EIGHT_BITS),

    # ---- training in 16 bits ----
    mutant("infinite_gradients_are_used", "a step is taken with gradients that overflowed",
           (LOSS_SCALE, "!are_finite(gradient.tensor)", "false"), tests=TRAIN_16),
    mutant("gradients_stay_scaled", "gradients keep the scale of the loss",
           (LOSS_SCALE, "values[e] /= value_;", ""), tests=TRAIN_16),
    mutant("loss_scale_below_one", "the scale falls below 1",
           (LOSS_SCALE, "std::max(value_ / options_.factor, 1.0)", "value_ / options_.factor"),
           tests=TRAIN_16),
    mutant("loss_scale_without_end", "the scale grows beyond 2^64",
           (LOSS_SCALE, "std::min(value_ * options_.factor, kLargest)", "value_ * options_.factor"),
           tests=TRAIN_16),
    mutant("loss_scale_a_step_late", "the scale grows one step after the interval",
           (LOSS_SCALE, "good_steps_ >= options_.interval - 1", "good_steps_ >= options_.interval"),
           tests=TRAIN_16),
    mutant("good_steps_not_restored", "a resumed loss scale counts its steps from 0",
           (LOSS_SCALE, "good_steps_ = good_steps;", ""), tests=TRAIN_16),
    mutant("blocks_keep_their_type", "a model in another type has blocks in its own",
           (TYPES, "block = block.to(type);", ""), tests=TRAIN_16 + ("layer_types",)),

    # ---- training ----
    mutant("adamw_without_bias_correction", "the first steps are too short",
           (OPTIMIZER, "m / unbias1 / (std::sqrt(v / unbias2) + epsilon)",
            "m / (std::sqrt(v / unbias2) + epsilon)"), tests=TRAIN),
    mutant("adamw_epsilon_inside", "epsilon is added under the root",
           (OPTIMIZER, "std::sqrt(v / unbias2) + epsilon", "std::sqrt(v / unbias2 + epsilon)"), tests=TRAIN),
    mutant("adamw_decay_in_the_gradient", "weights do not decay",
           (OPTIMIZER, "weight_decay * elements.x[n] + direction);", "weight_decay * elements.x[n] + direction",
            "direction"), tests=TRAIN),
    mutant("nesterov_is_momentum", "nesterov looks no step ahead",
           (OPTIMIZER, "elements.g[n] + momentum * m", "m"), tests=TRAIN),
    mutant("state_without_masters", "with 16-bit parameters the second uses the copy of the first",
           (OPTIMIZER, "state_names_.size() + (master ? 1 : 0)", "state_names_.size()"), tests=TRAIN),
    mutant("steps_not_restored", "a resumed optimizer counts its steps from 0",
           (OPTIMIZER, "steps_ = steps;", ""), tests=TRAIN),
    mutant("ignored_targets_count", "the gradient is divided by all rows, ignored or not",
           (LOSS, "options.gradient_scale / static_cast<double>(count)",
            "options.gradient_scale / static_cast<double>(rows)"), tests=TRAIN),
    mutant("smoothing_twice", "the target's probability does not give up what smoothing takes",
           (LOSS, "z[target] -= (1 - smoothing) * scale;", "z[target] -= scale;"), tests=TRAIN),
    mutant("mse_gradient_halved", "the derivative of x^2 is x",
           (LOSS, "2 * difference / count", "difference / count"), tests=TRAIN),
    mutant("warmup_begins_with_0", "the first step of a warmup has a rate of 0",
           (SCHEDULE, "step + 1", "step"), tests=TRAIN),
    mutant("decay_counts_the_warmup", "the rate falls during the warmup's steps, too",
           (SCHEDULE, "step - warmup", "step"), tests=TRAIN),
    mutant("sum_of_gradients_is_the_last", "accumulate forgets what was there",
           (GRADIENTS, "a[e] += b[e];", "a[e] = b[e];"), tests=TRAIN),
    mutant("gradient_norm_overflows", "the squares of large gradients are infinite",
           (GRADIENTS, "largest > 0 ? largest : 1", "1.0"), tests=TRAIN),
    mutant("clipped_to_one", "gradients are clipped to a norm of 1",
           (GRADIENTS, "values[n] *= max_norm / norm;", "values[n] /= norm;"), tests=TRAIN),

    # ---- positions and embedding ----
    mutant("learned_offset_ignored", "positions begin with the first row of the table",
           (POSITIONS, "table + (offset + i) * dim", "(offset + i) * dim", "i * dim"), tests=LAYERS),
    mutant("learned_offset_ignored_in_backward", "their gradient begins with the first row of the table",
           (POSITIONS, "(saved.offset + i) * dim", "i * dim"), tests=LAYERS),
    mutant("sinusoidal_offset_ignored", "sinusoidal positions begin at 0",
           (POSITIONS, "static_cast<double>(i + offset)", "static_cast<double>(i)"), tests=LAYERS),
    mutant("one_gradient_a_token", "a token that occurs more than once has the gradient of its first place",
           (EMBEDDING, "return places[n]; }", "places[n]", "places[0 * n]"), tests=LAYERS),
)
