// Cases about options: each alone, and with those it meets.
#include "table.h"

namespace attend::cases {
namespace {

void add_masks(Cases& cases) {
  constexpr DType kMaskTypes[] = {DType::boolean, DType::u8, DType::i8, DType::i32, DType::i64};
  for (int n = 1; n <= static_cast<int>(Mask::nothing); ++n) {
    add(cases, small(), [&](Case& c) {
      c.mask = static_cast<Mask>(n);
      c.mask_type = kMaskTypes[n % 5];
      c.weights = true;
      c.dlse = n % 2 == 0;
    });
    add(cases, small(), [&](Case& c) {
      c.mask = static_cast<Mask>(n);
      c.mask_type = kMaskTypes[(n + 2) % 5];
      c.causal = true;
      c.layout = n % 3 == 0 ? Layout::transposed : Layout::padded;
      c.sinks = n % 2 == 1;
    });
  }
  for (const DType type : kMaskTypes)
    add(cases, small(), [&](Case& c) {
      c.mask = Mask::full;
      c.mask_type = type;
      c.scores = true;
    });
  for (const std::int64_t keys : {1, 2, 3})  // the shorter mask has no key at all
    add(cases, small(), [&](Case& c) {
      c.k_length = keys;
      c.mask = keys == 3 ? Mask::short_key : Mask::short_full;
    });
}

void add_biases(Cases& cases) {
  for (int n = 1; n <= static_cast<int>(Bias::short_full); ++n) {
    add(cases, small(), [&](Case& c) {
      c.bias = static_cast<Bias>(n);
      c.weights = n % 2 == 0;
    });
    add(cases, small(), [&](Case& c) {
      c.bias = static_cast<Bias>(n);
      c.bias_f32 = c.type != DType::f64;
      c.softcap = 2;
      c.bias_before_softcap = n % 2 == 0;
      c.mask = n % 3 == 0 ? Mask::rows : Mask::none;
      c.layout = n % 3 == 1 ? Layout::reversed : Layout::contiguous;
    });
  }
}

void add_blocks(Cases& cases) {
  constexpr std::int64_t kSizes[][2] = {{16, 16}, {7, 5}, {64, 8}, {1, 1}, {3, 64}};
  for (const BlockMask kind : {BlockMask::full, BlockMask::shared, BlockMask::rows})
    for (const auto& [block_q, block_k] : kSizes)
      add(cases, small(), [&, q = block_q, k = block_k](Case& c) {
        c.k_length = 41;
        c.blocks = kind;
        c.block_q = q;
        c.block_k = k;
        c.mask_type = q == 7 ? DType::i32 : DType::boolean;
        c.causal = k == 5 || k == 8;
        c.weights = c.scores = q == 16;
        c.mask = q == 3 ? Mask::full : Mask::none;
      });
}

void add_positions(Cases& cases) {
  const auto with_offset = [](Case& c, Offset kind, std::int64_t offset) {
    c.query_offset = kind;
    c.offset = offset;
  };
  for (const std::int64_t offset : {0, 5, -3, -40, 100})
    add(cases, small(), [&](Case& c) {
      c.causal = true;
      with_offset(c, Offset::one, offset);
      c.dlse = c.sinks = offset == -3;
    });
  for (const DType type : {DType::i32, DType::i64})
    add(cases, small(), [&](Case& c) {
      c.batch = 4;
      c.causal = true;
      c.index_type = type;
      with_offset(c, Offset::each, -2);
    });
  constexpr std::int64_t kWindows[][2] = {{0, 0}, {3, kUnlimited}, {kUnlimited, 2},
                                          {4, 1}, {0, kUnlimited}, {kUnlimited, 0},
                                          {9, 0}, {100, 100}};
  for (const auto& [window_left, window_right] : kWindows)
    for (const bool causal : {false, true})
      add(cases, small(), [&, left = window_left, right = window_right](Case& c) {
        c.window_left = left;
        c.window_right = right;
        c.causal = causal;
        c.weights = causal;
        if (!causal) with_offset(c, left % 2 ? Offset::one : Offset::each, left == 3 ? -9 : 6);
      });
}

void add_lengths_of_keys(Cases& cases) {
  for (const Lengths lengths : {Lengths::full, Lengths::mixed})
    for (const DType type : {DType::i32, DType::i64})
      for (const bool causal : {false, true})
        add(cases, small(), [&](Case& c) {
          c.batch = 5;
          c.key_lengths = lengths;
          c.index_type = type;
          c.causal = causal;
          c.scores = true;
          c.stage = causal ? ScoreStage::masked : ScoreStage::raw;
          c.window_left = type == DType::i64 ? 6 : kUnlimited;
        });
}

void add_scores(Cases& cases) {
  for (const double softcap : {0.5, 3.0, 50.0})
    add(cases, small(), [&](Case& c) { c.softcap = softcap; });
  for (const double scale : {0.0, -0.5, 2.5, 1e-3})
    add(cases, small(), [&](Case& c) { c.scale = scale; });
  for (const bool before : {false, true})
    for (const double softcap : {0.0, 4.0}) {
      add(cases, small(), [&](Case& c) {
        c.softcap = softcap;
        c.bias = Bias::full;
        c.bias_before_softcap = before;
        c.alibi = true;
      });
      for (const ScoreStage stage : {ScoreStage::raw, ScoreStage::softcapped, ScoreStage::masked})
        add(cases, small(), [&](Case& c) {
          c.softcap = softcap;
          c.bias = Bias::infinite;
          c.bias_before_softcap = before;
          c.alibi = stage == ScoreStage::softcapped;
          c.mask = Mask::per_key;
          c.scores = true;
          c.stage = stage;
        });
    }
  add(cases, small(), [](Case& c) { c.alibi = true; });
  add(cases, small(), [](Case& c) { c.alibi = c.causal = true; });
  add(cases, small(), [](Case& c) { c.sinks = true; });
  add(cases, small(), [](Case& c) {
    c.sinks = c.dlse = true;
    c.mask = Mask::rows;
  });
  add(cases, small(), [](Case& c) {
    c.sinks = c.weights = true;
    c.mask = Mask::nothing;
  });
}

void add_dropout(Cases& cases) {
  for (const double p : {0.1, 0.5, 1.0, 1e-6})
    for (const bool origin : {false, true})
      add(cases, small(), [&](Case& c) {
        c.dropout = p;
        c.dropout_origin = origin;
        c.weights = true;
        c.sinks = c.dlse = origin;
        c.causal = p == 0.5;
      });
  add(cases, small(), [](Case& c) {
    c.dropout = 0.3;
    c.addressing = Addressing::packed;
    c.batch = 4;
  });
}

void add_outputs(Cases& cases) {
  for (const Width width : {Width::same, Width::f32, Width::f64})
    for (const bool lse_f64 : {false, true})
      add(cases, small(), [&](Case& c) {
        c.width = width;
        c.lse_f64 = lse_f64;
        c.weights = c.scores = c.dlse = true;
        c.mask = Mask::rows;
        c.stage = lse_f64 ? ScoreStage::softcapped : ScoreStage::raw;
      });
  add(cases, small(), [](Case& c) { c.lse = false; });
  for (const Gradients gradients :
       {Gradients::dq, Gradients::dkdv, Gradients::dv, Gradients::extras})
    add(cases, small(), [&](Case& c) {
      c.gradients = gradients;
      c.bias = Bias::per_pair;
      c.sinks = c.alibi = true;
    });
}

// One case for each line of changes to `base`.
void add_lines(Cases& cases, const Case& base, std::initializer_list<const char*> lines) {
  for (const char* line : lines) cases.push_back(parse(line, base));
}

void add_key_offsets(Cases& cases) {
  add_lines(cases, small(),
            {"key_offset=256 causal=1 offset=-9", "key_offset=-7 causal=1 alibi=1 offset=4 dlse=1",
             "key_offset=300 window_left=4 window_right=2 query_offset=each offset=3 weights=1",
             "key_offset=1001 causal=1 dropout=0.3 dropout_origin=1 offset=6 scores=1",
             "key_offset=512 dropout=0.3"});
}

void add_values(Cases& cases) {
  for (const Values values : {Values::outliers, Values::cold, Values::constant}) {
    Case base = small();
    base.values = values;
    base.d = 24;
    add_lines(cases, base,
              {"", "causal=1 dlse=1", "k=64 mask=per_key", "sinks=1 mask=rows", "softcap=30",
               "batch=1 q=65 k=192 mask=rows"});
  }
}

void add_packed(Cases& cases) {
  for (const Addressing addressing : {Addressing::packed, Addressing::packed_self}) {
    Case base = small();
    base.addressing = addressing;
    base.batch = 4;
    if (addressing == Addressing::packed_self) base.k_length = base.q_length;
    add_lines(cases, base,
              {"index_type=i64", "causal=1 dlse=1", "batch=1 causal=1",
               "mask=full bias=full weights=1 scores=1", "bias=per_key alibi=1 sinks=1",
               "key_lengths=mixed window_left=4 causal=1",
               "blocks=full block_q=8 block_k=6 scores=1 stage=raw",
               "query_offset=each offset=2 causal=1", "key_offset=77 offset=2 causal=1 alibi=1"});
  }
}

void add_paged(Cases& cases) {
  for (const Addressing addressing :
       {Addressing::paged, Addressing::paged_shared, Addressing::packed_paged}) {
    Case base = small();
    base.addressing = addressing;
    base.batch = 4;
    base.key_lengths = Lengths::mixed;
    add_lines(cases, base,
              {"index_type=i64", "q=1 k=133 d=32 causal=1", "page_size=5 key_lengths=full dlse=1",
               "page_size=1 sinks=1 alibi=1", "page_size=64 mask=full bias=full weights=1",
               "scores=1 stage=raw softcap=4", "blocks=shared block_k=12 weights=1",
               "dropout=0.2 window_left=7 window_right=3",
               "key_offset=259 offset=1 causal=1 dropout=0.2"});
  }
}

}  // namespace

void add_options(Cases& cases) {
  add_masks(cases);
  add_biases(cases);
  add_blocks(cases);
  add_positions(cases);
  add_key_offsets(cases);
  add_lengths_of_keys(cases);
  add_scores(cases);
  add_dropout(cases);
  add_outputs(cases);
  add_values(cases);
  add_packed(cases);
  add_paged(cases);
}

}  // namespace attend::cases
