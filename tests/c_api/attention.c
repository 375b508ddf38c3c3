/* Attention: the worked example, every option, parts and their merging. */
#include "check.h"

/* Two tokens, one head of two features, worked out by hand. */
static void worked_example(void) {
  const double q[] = {1, 3, 2, 0.5}, k[] = {0.5, 2, 1, 3}, v[] = {0, 4, 1, 2};
  const double scores_wanted[] = {4.5961941, 7.0710678, 1.4142136, 2.4748737};
  const double weights_wanted[] = {0.0776385, 0.9223615, 0.2571833, 0.7428167};
  const double out_wanted[] = {0.9223615, 2.1552770, 0.7428167, 2.5143666};
  double out[4], lse[2], weights[4], scores[4];
  const int64_t* shape = SHAPE(1, 1, 2, 2);
  const attend_view qv = view_of(q, ATTEND_F64, 4, shape), kv = view_of(k, ATTEND_F64, 4, shape);
  const attend_view vv = view_of(v, ATTEND_F64, 4, shape), ov = view_of(out, ATTEND_F64, 4, shape);
  const attend_view lv = view_of(lse, ATTEND_F64, 3, shape);
  const attend_view wv = view_of(weights, ATTEND_F64, 4, shape);
  const attend_view sv = view_of(scores, ATTEND_F64, 4, shape);
  attend_attention_outputs outputs = ATTEND_INIT(attend_attention_outputs);
  int64_t square[4] = {0};
  int n;
  outputs.lse = &lv;
  outputs.weights = &wv;
  outputs.scores = &sv;
  OK(attend_attention(&qv, &kv, &vv, &ov, NULL, &outputs, NULL));
  for (n = 0; n < 4; ++n) {
    NEAR(scores[n], scores_wanted[n], 5e-8);
    NEAR(weights[n], weights_wanted[n], 5e-8);
    NEAR(out[n], out_wanted[n], 5e-8);
  }
  NEAR(lse[0], log(exp(scores[0]) + exp(scores[1])), 1e-14);
  OK(attend_weights_shape(&qv, &kv, &vv, NULL, square));
  CHECK(square[0] == 1 && square[1] == 1 && square[2] == 2 && square[3] == 2);
}

/* One query 2 and keys 1 and 3: the scores are 2 and 6. */
static const double one_query[] = {2}, two_keys[] = {1, 3}, two_values[] = {10, 20};
static double last_scores[2];

/* The options make of them s0, s1, and add `rest` below the softmax. */
static void expect(const attend_attention_options* options, int32_t stage, double s0, double s1,
                   double rest, int line) {
  double out[1], weights[2];
  const double sum = exp(s0) + exp(s1) + rest;
  const attend_view q = view_of(one_query, ATTEND_F64, 4, SHAPE(1, 1, 1, 1));
  const int64_t* key_shape = options->block_table ? SHAPE(2, 1, 1, 1) : SHAPE(1, 1, 2, 1);
  const attend_view k = view_of(two_keys, ATTEND_F64, 4, key_shape);
  const attend_view v = view_of(two_values, ATTEND_F64, 4, key_shape);
  const attend_view o = view_of(out, ATTEND_F64, 4, SHAPE(1, 1, 1, 1));
  const attend_view w = view_of(weights, ATTEND_F64, 4, SHAPE(1, 1, 1, 2));
  const attend_view s = view_of(last_scores, ATTEND_F64, 4, SHAPE(1, 1, 1, 2));
  attend_attention_outputs outputs = ATTEND_INIT(attend_attention_outputs);
  const int before = failures;
  outputs.weights = &w;
  outputs.scores = &s;
  outputs.stage = stage;
  OK(attend_attention(&q, &k, &v, &o, options, &outputs, NULL));
  NEAR(weights[0], exp(s0) / sum, 1e-14);
  NEAR(weights[1], exp(s1) / sum, 1e-14);
  if (failures != before) printf("  in the call of line %d\n", line);
}
#define EXPECT(s0, s1) expect(&o, ATTEND_SCORES_MASKED, s0, s1, 0, __LINE__)
#define RESET o = ATTEND_INIT(attend_attention_options)

static void every_option_arrives(void) {
  attend_attention_options o = ATTEND_INIT(attend_attention_options);
  const double bias[] = {1, -1}, half[] = {0.5}, three[] = {3};
  const uint8_t second[] = {0, 1}, first[] = {1, 0};
  const int64_t zero[] = {0}, one[] = {1}, two[] = {2}, table[] = {1, 0};
  const attend_view bias_view = view_of(bias, ATTEND_F64, 1, SHAPE(2));
  const attend_view half_view = view_of(half, ATTEND_F64, 1, SHAPE(1));
  const attend_view three_view = view_of(three, ATTEND_F64, 1, SHAPE(1));
  const attend_view second_view = view_of(second, ATTEND_U8, 1, SHAPE(2));
  const attend_view first_view = view_of(first, ATTEND_BOOL, 4, SHAPE(1, 1, 1, 2));
  const attend_view zero_view = view_of(zero, ATTEND_I64, 1, SHAPE(1));
  const attend_view one_view = view_of(one, ATTEND_I64, 1, SHAPE(1));
  const attend_view two_view = view_of(two, ATTEND_I64, 1, SHAPE(1));
  const attend_view table_view = view_of(table, ATTEND_I64, 2, SHAPE(1, 2));
  const float scales[] = {0.5F, 2};
  const attend_view scales_view = view_of(scales, ATTEND_F32, 3, SHAPE(1, 1, 2));

  EXPECT(2, 6);
  o.has_scale = 1, o.scale = 0.5;
  EXPECT(1, 3);
  RESET, o.softcap = 4;
  EXPECT(4 * tanh(0.5), 4 * tanh(1.5));
  o.bias = &bias_view;
  EXPECT(4 * tanh(0.5) + 1, 4 * tanh(1.5) - 1);
  o.bias_before_softcap = 1;
  EXPECT(4 * tanh(0.75), 4 * tanh(1.25));
  RESET, o.causal = 1;
  EXPECT(2, 6); /* the last query stands at the last key */
  o.has_query_offset = 1;
  EXPECT(2, -INFINITY);
  o.query_offset = 1;
  EXPECT(2, 6);
  RESET, o.causal = 1, o.query_offsets = &zero_view;
  EXPECT(2, -INFINITY);
  RESET, o.causal = 1, o.has_query_offset = 1, o.query_offset = 9, o.key_offset = 9;
  o.has_key_offset = 1;
  EXPECT(2, -INFINITY);
  o.key_offset = 8;
  EXPECT(2, 6);
  RESET, o.has_window_left = 1;
  EXPECT(-INFINITY, 6);
  o.window_left = 1;
  EXPECT(2, 6);
  RESET, o.has_window_right = 1, o.has_query_offset = 1;
  EXPECT(2, -INFINITY);
  o.window_right = 1;
  EXPECT(2, 6);
  RESET, o.mask = &second_view;
  EXPECT(-INFINITY, 6);
  RESET, o.alibi = &half_view;
  EXPECT(1.5, 6);
  RESET, o.sinks = &three_view;
  expect(&o, ATTEND_SCORES_MASKED, 2, 6, exp(3), __LINE__);
  RESET, o.blocks_visible = &first_view, o.blocks_query_size = 1, o.blocks_key_size = 1;
  EXPECT(2, -INFINITY);
  RESET, o.key_lengths = &one_view;
  EXPECT(2, -INFINITY);
  RESET, o.key_lengths = &two_view, o.block_table = &table_view;
  EXPECT(6, 2);
  RESET, o.k_scales = &scales_view;
  EXPECT(1, 12);

  /* The three stages of the scores. */
  RESET, o.softcap = 4, o.mask = &second_view;
  EXPECT(-INFINITY, 4 * tanh(1.5));
  CHECK(last_scores[0] == -INFINITY);
  expect(&o, ATTEND_SCORES_RAW, -INFINITY, 4 * tanh(1.5), 0, __LINE__);
  CHECK(last_scores[0] == 2 && last_scores[1] == 6);
  expect(&o, ATTEND_SCORES_SOFTCAPPED, -INFINITY, 4 * tanh(1.5), 0, __LINE__);
  NEAR(last_scores[0], 4 * tanh(0.5), 1e-15);
}

/* A value whose flag was forgotten is refused, not ignored. */
static void a_value_needs_its_flag(void) {
  double number[1] = {0};
  const attend_view x = view_of(number, ATTEND_F64, 4, SHAPE(1, 1, 1, 1));
  attend_attention_options o = ATTEND_INIT(attend_attention_options);
#define REFUSED(part) \
  FAILS(ATTEND_INVALID_ARGUMENT, part, attend_attention(&x, &x, &x, &x, &o, NULL, NULL))
  o.scale = 0.5;
  REFUSED("attend_attention: options.scale is 0.5, but has_scale is 0; set that, too");
  RESET, o.window_left = 2;
  REFUSED("attend_attention: options.window_left is 2, but has_window_left is 0; set that, too");
  RESET, o.window_right = 3;
  REFUSED("attend_attention: options.window_right is 3, but has_window_right is 0; set that, too");
  RESET, o.query_offset = -4;
  REFUSED("attend_attention: options.query_offset is -4, but has_query_offset is 0; set that, too");
  RESET, o.key_offset = 5;
  REFUSED("attend_attention: options.key_offset is 5, but has_key_offset is 0; set that, too");
  RESET, o.max_q = 6;
  REFUSED("attend_attention: options.max_q is 6, but has_max_q is 0; set that, too");
  RESET, o.max_k = 7;
  REFUSED("attend_attention: options.max_k is 7, but has_max_k is 0; set that, too");
#undef REFUSED
}

static void packed_sequences_and_visited_blocks(void) {
  const double q[] = {2, 2}, k[] = {1, 3}, v[] = {10, 20};
  const int32_t each[] = {0, 1, 2}, second[] = {0, 0, 2};
  const uint8_t first[] = {1, 0};
  double out[2];
  const attend_view qv = view_of(q, ATTEND_F64, 4, SHAPE(1, 1, 2, 1));
  const attend_view kv = view_of(k, ATTEND_F64, 4, SHAPE(1, 1, 2, 1));
  const attend_view vv = view_of(v, ATTEND_F64, 4, SHAPE(1, 1, 2, 1));
  const attend_view ov = view_of(out, ATTEND_F64, 4, SHAPE(1, 1, 2, 1));
  const attend_view each_view = view_of(each, ATTEND_I32, 1, SHAPE(3));
  const attend_view second_view = view_of(second, ATTEND_I32, 1, SHAPE(3));
  const attend_view blocks = view_of(first, ATTEND_U8, 4, SHAPE(1, 1, 1, 2));
  attend_attention_options options = ATTEND_INIT(attend_attention_options);
  attend_attention_outputs outputs = ATTEND_INIT(attend_attention_outputs);
  int64_t visited = 0, shape[4];
  options.cu_seqlens_q = &each_view;
  OK(attend_attention(&qv, &kv, &vv, &ov, &options, NULL, NULL));
  CHECK(out[0] == 10 && out[1] == 20);
  options.has_max_q = options.has_max_k = 1, options.max_q = 3, options.max_k = 4;
  OK(attend_weights_shape(&qv, &kv, &vv, &options, shape));
  CHECK(shape[0] == 2 && shape[1] == 1 && shape[2] == 3 && shape[3] == 4);
  options.cu_seqlens_k = &second_view;
  OK(attend_attention(&qv, &kv, &vv, &ov, &options, NULL, NULL));
  NEAR(out[0], 0, 0);
  NEAR(out[1], 10 + 10 / (1 + exp(-4)), 1e-13);

  options = ATTEND_INIT(attend_attention_options);
  options.blocks_visible = &blocks;
  options.blocks_query_size = 2;
  options.blocks_key_size = 1;
  outputs.visited_blocks = &visited;
  OK(attend_attention(&qv, &kv, &vv, &ov, &options, &outputs, NULL));
  CHECK(visited == 2); /* each query enters the first block of keys */
}

/* Of two heads the second alone, whose scores are 0 and 2. */
static void weights_of_chosen_heads(void) {
  const double q[] = {0, 1}, k[] = {0, 2, 0, 2}, v[] = {1, 2, 3, 4};
  const int64_t second[] = {1}, third[] = {2};
  double out[2], weights[2];
  const attend_view qv = view_of(q, ATTEND_F64, 4, SHAPE(1, 2, 1, 1));
  const attend_view kv = view_of(k, ATTEND_F64, 4, SHAPE(1, 2, 2, 1));
  const attend_view vv = view_of(v, ATTEND_F64, 4, SHAPE(1, 2, 2, 1));
  const attend_view ov = view_of(out, ATTEND_F64, 4, SHAPE(1, 2, 1, 1));
  const attend_view wv = view_of(weights, ATTEND_F64, 4, SHAPE(1, 1, 1, 2));
  attend_attention_outputs outputs = ATTEND_INIT(attend_attention_outputs);
  outputs.weights = &wv;
  outputs.weight_heads = second, outputs.weight_heads_count = 1;
  OK(attend_attention(&qv, &kv, &vv, &ov, NULL, &outputs, NULL));
  NEAR(weights[0], 1 / (1 + exp(2)), 1e-15);
  NEAR(out[0], 1.5, 1e-15);
  outputs.weight_heads = third;
  FAILS(ATTEND_INVALID_ARGUMENT, "weight_heads holds 2; q has 2 heads",
        attend_attention(&qv, &kv, &vv, &ov, NULL, &outputs, NULL));
  outputs.weight_heads_count = 0;
  FAILS(ATTEND_INVALID_ARGUMENT, "weight_heads is given and weight_heads_count is 0",
        attend_attention(&qv, &kv, &vv, &ov, NULL, &outputs, NULL));
  outputs.weight_heads = NULL, outputs.weight_heads_count = 1;
  FAILS(ATTEND_INVALID_ARGUMENT, "weight_heads is NULL and weight_heads_count is 1",
        attend_attention(&qv, &kv, &vv, &ov, NULL, &outputs, NULL));
}

/* Equal scores and values 2^j: the output says in binary which of 16 keys were kept. */
static double kept(const attend_attention_options* options, int64_t b, int64_t h, int64_t i,
                   int64_t keys, double* all) {
  static double zeros[64], values[16];
  double out[8];
  int64_t j;
  attend_view q = view_of(zeros, ATTEND_F64, 4, SHAPE(b, h, i, 1));
  attend_view k = view_of(zeros, ATTEND_F64, 4, SHAPE(b, h, keys, 1));
  attend_view v = view_of(values, ATTEND_F64, 4, SHAPE(b, h, keys, 1));
  attend_view o = view_of(out, ATTEND_F64, 4, SHAPE(b, h, i, 1));
  v.strides = SHAPE(0, 0, 1, 1);
  for (j = 0; j < keys; ++j) values[j] = (double)(1 << (j + options->dropout_origin_j));
  OK(attend_attention(&q, &k, &v, &o, options, NULL, NULL));
  for (j = 0; j < b * h * i; ++j) out[j] *= (double)keys / 2; /* times 1 - p, p = 1/2 */
  if (all) memcpy(all, out, sizeof out);
  return out[0];
}

static void dropout_arrives(void) {
  attend_attention_options o = ATTEND_INIT(attend_attention_options);
  double all[8], other[8], low;
  o.dropout_p = 0.5;
  o.dropout_seed = 7;
  o.dropout_offset = 3;
  kept(&o, 2, 2, 2, 16, all);
  o.dropout_seed = 8;
  kept(&o, 2, 2, 2, 16, other);
  CHECK(memcmp(all, other, sizeof all) != 0);
  o.dropout_seed = 7, o.dropout_offset = 4;
  kept(&o, 2, 2, 2, 16, other);
  CHECK(memcmp(all, other, sizeof all) != 0);
  o.dropout_offset = 3;
  /* The last row alone, once it is told where it comes from; and its keys in halves. */
  o.dropout_origin_b = 1, o.dropout_origin_h = 1, o.dropout_origin_i = 1;
  o.dropout_origin_heads = 2;
  CHECK(kept(&o, 1, 1, 1, 16, NULL) == all[7]);
  low = kept(&o, 1, 1, 1, 8, NULL);
  o.dropout_origin_j = 8;
  CHECK(low + kept(&o, 1, 1, 1, 8, NULL) == all[7]);
}

static void halves_merge_into_the_whole(void) {
  double q[6] = {0}, k[12] = {0}, v[12] = {0}, whole[6] = {0}, joined[6] = {0};
  double parts[2][6], lse[2][2], joined_lse[2] = {0};
  const int64_t *rows = SHAPE(1, 1, 2, 3), *all = SHAPE(1, 1, 4, 3), *half = SHAPE(1, 1, 2, 3);
  const attend_view qv = view_of(q, ATTEND_F64, 4, rows), ov = view_of(whole, ATTEND_F64, 4, rows);
  const attend_view kv = view_of(k, ATTEND_F64, 4, all), vv = view_of(v, ATTEND_F64, 4, all);
  const attend_view jv = view_of(joined, ATTEND_F64, 4, rows);
  const attend_view jl = view_of(joined_lse, ATTEND_F64, 3, rows);
  attend_view pv[2], lv[2];
  const attend_view* const po[] = {&pv[0], &pv[1]};
  const attend_view* const pl[] = {&lv[0], &lv[1]};
  attend_attention_outputs outputs = ATTEND_INIT(attend_attention_outputs);
  int n;
  fill(q, 6, 1), fill(k, 12, 2), fill(v, 12, 3);
  for (n = 0; n < 2; ++n) {
    const attend_view kn = view_of(k + 6 * n, ATTEND_F64, 4, half);
    const attend_view vn = view_of(v + 6 * n, ATTEND_F64, 4, half);
    pv[n] = view_of(parts[n], ATTEND_F64, 4, rows);
    lv[n] = view_of(lse[n], ATTEND_F64, 3, rows);
    outputs.lse = &lv[n];
    OK(attend_attention(&qv, &kn, &vn, &pv[n], NULL, &outputs, NULL));
  }
  OK(attend_attention(&qv, &kv, &vv, &ov, NULL, NULL, NULL));
  OK(attend_merge(2, po, pl, &jv, &jl, NULL));
  for (n = 0; n < 6; ++n) NEAR(joined[n], whole[n], 1e-15);
  NEAR(joined_lse[0], log(exp(lse[0][0]) + exp(lse[1][0])), 1e-14);
  FAILS(ATTEND_INVALID_ARGUMENT, " is -1", attend_merge(-1, po, pl, &jv, NULL, NULL));
}

/* Keys 256 and 257 of a causal call, added to the state of the 256 before them. */
static void keys_added_in_turn_give_the_bits_of_the_whole(void) {
  static float q[4], k[258 * 2], v[258 * 2], whole[4], made[4], made_lse[2];
  static double states[3][2 * 6];
  const int64_t *rows = SHAPE(1, 1, 2, 2), *columns = SHAPE(1, 1, 2, 6);
  const attend_view qv = view_of(q, ATTEND_F32, 4, rows);
  const attend_view kv = view_of(k, ATTEND_F32, 4, SHAPE(1, 1, 258, 2));
  const attend_view vv = view_of(v, ATTEND_F32, 4, SHAPE(1, 1, 258, 2));
  const attend_view out = view_of(whole, ATTEND_F32, 4, rows);
  const attend_view result = view_of(made, ATTEND_F32, 4, rows);
  const attend_view result_lse = view_of(made_lse, ATTEND_F32, 3, rows);
  attend_view state[3];
  const attend_view* const each[] = {&state[0], &state[1], &state[2]};
  attend_attention_options o = ATTEND_INIT(attend_attention_options);
  int n;
  for (n = 0; n < 4; ++n) q[n] = (float)sin(n + 1);
  for (n = 0; n < 258 * 2; ++n) k[n] = (float)sin(n * 0.7), v[n] = (float)cos(n * 0.3);
  for (n = 0; n < 3; ++n) state[n] = view_of(states[n], ATTEND_F64, 4, columns);
  o.causal = o.has_query_offset = o.has_key_offset = 1;
  o.query_offset = 256;
  OK(attend_attention(&qv, &kv, &vv, &out, &o, NULL, NULL));
  for (n = 0; n < 2; ++n) {
    const int64_t* size = n == 0 ? SHAPE(1, 1, 256, 2) : SHAPE(1, 1, 2, 2);
    const attend_view kn = view_of(k + 512 * n, ATTEND_F32, 4, size);
    const attend_view vn = view_of(v + 512 * n, ATTEND_F32, 4, size);
    o.key_offset = 256 * n;
    OK(attend_attention_partial(&qv, &kn, &vn, &state[0], &o, NULL));
    OK(attend_attention_partial(&qv, &kn, &vn, &state[n + 1], &o, NULL));
  }
  OK(attend_finish_partial(1, each, &result, &result_lse, NULL));
  CHECK(memcmp(whole, made, sizeof made) == 0);
  OK(attend_finish_partial(2, each + 1, &result, NULL, NULL));
  CHECK(memcmp(whole, made, sizeof made) == 0);
  OK(attend_merge_partial(2, each + 1, &state[0], NULL));
  OK(attend_finish_partial(1, each, &result, NULL, NULL));
  CHECK(memcmp(whole, made, sizeof made) == 0);
  o.has_query_offset = 0, o.query_offset = 0;
  FAILS(ATTEND_INVALID_ARGUMENT, "query_offset is not given",
        attend_attention_partial(&qv, &kv, &vv, &state[0], &o, NULL));
}

void test_attention(void) {
  worked_example();
  every_option_arrives();
  a_value_needs_its_flag();
  packed_sequences_and_visited_blocks();
  weights_of_chosen_heads();
  dropout_arrives();
  halves_merge_into_the_whole();
  keys_added_in_turn_give_the_bits_of_the_whole();
}
