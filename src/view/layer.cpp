#include "view/layer.h"

#include "core/text.h"

#include <attend/option_list.h>

#include <algorithm>
#include <cmath>

namespace attend::view {
namespace {

// [1, heads, length, d] as f32, contiguous.
std::vector<float> floats(const ConstTensorView& x) {
  const Strided t = strided(x);
  std::vector<float> out;
  out.reserve(static_cast<std::size_t>(x.count()));
  std::vector<double> row(static_cast<std::size_t>(x.size(3)));
  for (std::int64_t h = 0; h < x.size(1); ++h)
    for (std::int64_t i = 0; i < x.size(2); ++i) {
      load_row(t, t.offset(0, h, i), x.size(3), row.data());
      out.insert(out.end(), row.begin(), row.end());
    }
  return out;
}

std::int64_t not_finite(const ConstTensorView& x) {
  const Strided t = strided(x);
  std::vector<double> row(static_cast<std::size_t>(x.size(3)));
  std::int64_t count = 0;
  for (std::int64_t h = 0; h < x.size(1); ++h)
    for (std::int64_t i = 0; i < x.size(2); ++i) {
      load_row(t, t.offset(0, h, i), x.size(3), row.data());
      count += std::count_if(row.begin(), row.end(), [](double v) { return !std::isfinite(v); });
    }
  return count;
}

// Any tensor of statistics, all elements as doubles.
std::vector<double> doubles(const Tensor& tensor) {
  std::vector<double> out(static_cast<std::size_t>(tensor.count()));
  load_row({static_cast<std::byte*>(const_cast<void*>(tensor.view().data())),
            tensor.dtype(),
            true,
            {0, 0, 0, 1}},
           0, tensor.count(), out.data());
  return out;
}

template <class To>
std::vector<To> cast(const std::vector<double>& from) {
  std::vector<To> to;
  to.reserve(from.size());
  for (const double x : from) to.push_back(static_cast<To>(x));
  return to;
}

class Writer {
 public:
  Writer(const LayerInput& layer, const LayerContent& content, Blobs& blobs, Context& context)
      : layer_(layer), s_(layer.single), content_(content), blobs_(blobs), context_(context) {
    stats_ = inspect(s_.q, s_.k, s_.options,
                     {.top_k = std::min(content.top_k, s_.keys()),
                      .tokens = layer.tokens,
                      .tile_rows = content.tiles,
                      .tile_columns = content.tiles},
                     context);
    json_.set("name", layer.name);
  }

  Json write() {
    put_sizes();
    put_options();
    put_tensors();
    put_tiles();
    put_windows();
    put_rows();
    put_heads();
    return std::move(json_);
  }

 private:
  Json numbers(const ConstTensorView& view) const {
    if (!view) return nullptr;
    Json list = Json::array();
    const Strided t = strided(view);
    for (std::int64_t h = 0; h < view.size(0); ++h) list.push(load(t, t.offset(0, 0, 0, h)));
    return list;
  }

  void put_sizes() {
    json_.set("heads", s_.heads());
    json_.set("key_heads", s_.key_heads());
    json_.set("queries", s_.queries());
    json_.set("keys", s_.keys());
    json_.set("d", s_.q.size(3));
    json_.set("dv", s_.v ? s_.v.size(3) : 0);
  }

  // Numbers, flags and what is one number a head, by their names; the others in other words.
  void put_options() {
    for_each_option(s_.options, [&]<class Member>(const Option& option, const Member& member) {
      if constexpr (std::is_same_v<Member, double> || std::is_same_v<Member, bool>)
        json_.set(option.name, member);
      else if constexpr (std::is_same_v<Member, std::optional<double>>)
        json_.set(option.name, member ? Json(*member) : Json());
      else if constexpr (std::is_same_v<Member, TensorOrView>)
        if (option.kind == OptionKind::head_tensor) json_.set(option.name, numbers(member));
    });
    const auto limit = [](std::int64_t n) { return n == kUnlimited ? -1 : n; };
    const Window& window = s_.options.window;
    json_.set("window", window.left == kUnlimited && window.right == kUnlimited
                            ? Json()
                            : Json::array(std::vector{limit(window.left), limit(window.right)}));
    json_.set("query_offset", s_.query_offset);
    json_.set("key_length", s_.key_length);
  }

  // What every cell can be computed from.
  void put_tensors() {
    const auto heads = [&](const ConstTensorView& x) {
      return blobs_.add("f32", {x.size(1), x.size(2), x.size(3)}, floats(x));
    };
    json_.set("q", content_.exact ? heads(s_.q) : Json());
    json_.set("k", content_.exact ? heads(s_.k) : Json());
    json_.set("v", content_.values ? heads(s_.v) : Json());
    json_.set("mask", content_.exact && s_.masked() ? mask() : Json());
    json_.set("bias", content_.exact && s_.options.bias ? bias() : Json());
  }

  Json mask() {
    const std::int64_t heads = s_.masked_by_head() ? s_.heads() : 1;
    std::vector<std::uint8_t> bits(
        static_cast<std::size_t>((heads * s_.queries() * s_.keys() + 7) / 8));
    std::size_t n = 0;
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t i = 0; i < s_.queries(); ++i)
        for (std::int64_t j = 0; j < s_.keys(); ++j, ++n)
          if (j < s_.key_length && s_.allowed(h, i, j))
            bits[n / 8] = static_cast<std::uint8_t>(bits[n / 8] | 1U << n % 8);
    return blobs_.add("bits", {heads, s_.queries(), s_.keys()}, bits);
  }

  // Every row as long as the keys; what stands behind the end of a shorter bias is hidden anyway.
  Json bias() {
    const ConstTensorView& view = s_.options.bias;
    const Strided t = strided(view);
    std::vector<float> numbers;
    for (std::int64_t h = 0; h < view.size(1); ++h)
      for (std::int64_t i = 0; i < view.size(2); ++i)
        for (std::int64_t j = 0; j < s_.keys(); ++j)
          numbers.push_back(view.size(3) == 1 || j < view.size(3)
                                ? static_cast<float>(load(t, t.offset(0, h, i, j)))
                                : 0.0F);
    return blobs_.add("f32", {view.size(1), view.size(2), s_.keys()}, numbers);
  }

  void put_tiles() {
    const Shape& shape = stats_.tile_mean.shape();
    const std::int64_t rows = shape[2], columns = shape[3];
    const auto quantised = [&](const Tensor& map) {
      std::vector<std::uint8_t> bytes;
      for (const double p : doubles(map)) bytes.push_back(log8(p));
      return blobs_.add("log8", {s_.heads(), rows, columns}, bytes);
    };
    Json tiles = Json::object();
    tiles.set("rows", rows);
    tiles.set("columns", columns);
    tiles.set("queries", stats_.tile_queries);
    tiles.set("keys", stats_.tile_keys);
    tiles.set("mean", quantised(stats_.tile_mean));
    tiles.set("maximum", quantised(stats_.tile_maximum));
    tiles.set("visible", visible(rows, columns));
    json_.set("tiles", tiles);
  }

  // How much of a tile is visible: 0 nothing, 1 some of it, 2 all of it.
  Json visible(std::int64_t rows, std::int64_t columns) {
    const std::int64_t heads = s_.masked_by_head() ? s_.heads() : 1;
    std::vector<std::uint8_t> bytes;
    std::vector<std::int64_t> seen(static_cast<std::size_t>(columns));
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t begin = r * stats_.tile_queries;
        const std::int64_t end = std::min(begin + stats_.tile_queries, s_.queries());
        std::fill(seen.begin(), seen.end(), 0);
        for (std::int64_t i = begin; i < end; ++i) count_visible(h, i, seen);
        for (std::int64_t c = 0; c < columns; ++c) {
          const std::int64_t width = std::min(stats_.tile_keys, s_.keys() - c * stats_.tile_keys);
          const std::int64_t count = seen[static_cast<std::size_t>(c)];
          bytes.push_back(count == 0 ? 0 : count < width * (end - begin) ? 1 : 2);
        }
      }
    return blobs_.add("u8", {heads, rows, columns}, bytes);
  }

  void count_visible(std::int64_t h, std::int64_t i, std::vector<std::int64_t>& seen) const {
    const KeyRange keys = s_.positions(i);
    if (keys.begin >= keys.end) return;
    const std::int64_t size = stats_.tile_keys;
    for (std::int64_t c = keys.begin / size; c <= (keys.end - 1) / size; ++c) {
      const std::int64_t begin = std::max(keys.begin, c * size);
      const std::int64_t end = std::min(keys.end, (c + 1) * size);
      std::int64_t& count = seen[static_cast<std::size_t>(c)];
      if (!s_.masked()) count += end - begin;
      for (std::int64_t j = begin; s_.masked() && j < end; ++j) count += s_.allowed(h, i, j);
    }
  }

  void put_windows() {
    Json windows = Json::array();
    for (const WeightsWindow& w : content_.windows) {
      const Tensor weights = weights_of(s_.q, s_.k, stats_.lse, w, s_.options, context_);
      windows.push(Json::object()
                       .set("head", w.head)
                       .set("query", w.query)
                       .set("queries", w.queries)
                       .set("key", w.key)
                       .set("keys", w.keys)
                       .set("weights",
                            blobs_.add("f32", {w.queries, w.keys}, cast<float>(doubles(weights)))));
    }
    json_.set("windows", windows);
  }

  // Statistics [heads, queries] and [heads, keys].
  void put_rows() {
    const auto put = [&](const Tensor& tensor, std::int64_t length, bool halves) -> Json {
      if (!content_.rows) return nullptr;
      const Shape shape{s_.heads(), length};
      const std::vector<double> x = doubles(tensor);
      return halves ? blobs_.add("f16", shape, cast<f16>(x))
                    : blobs_.add("f32", shape, cast<float>(x));
    };
    // Of use with q and k alone, and then with all its bits.
    json_.set("lse", content_.exact ? put(stats_.lse, s_.queries(), false) : Json());
    json_.set("entropy", put(stats_.entropy, s_.queries(), content_.halves));
    json_.set("maximum", put(stats_.maximum, s_.queries(), content_.halves));
    json_.set("mass", put(stats_.key_mass, s_.keys(), content_.halves));
    if (content_.top_k == 0) return;
    const Shape shape{s_.heads(), s_.queries(), stats_.top_keys.size(3)};
    const auto* keys = stats_.top_keys.data<std::int64_t>();
    json_.set(
        "top_keys",
        blobs_.add("i32", shape, std::vector<std::int32_t>(keys, keys + stats_.top_keys.count())));
    json_.set("top_weights", blobs_.add("f32", shape, cast<float>(doubles(stats_.top_weights))));
  }

  void put_heads() {
    Json metrics = Json::object();
    const auto put = [&](const char* name, double HeadStatistics::*metric) {
      Json list = Json::array();
      bool known = false;
      for (const HeadStatistics& head : stats_.heads) {
        list.push(head.*metric);  // what is no number is null in JSON
        known |= std::isfinite(head.*metric);
      }
      metrics.set(name, known ? list : Json());
    };
    put("entropy", &HeadStatistics::entropy);
    put("evenness", &HeadStatistics::evenness);
    put("maximum", &HeadStatistics::maximum);
    put("distance", &HeadStatistics::distance);
    put("previous", &HeadStatistics::previous);
    put("first", &HeadStatistics::first);
    put("diagonal", &HeadStatistics::diagonal);
    put("local", &HeadStatistics::local);
    put("duplicate", &HeadStatistics::duplicate);
    put("induction", &HeadStatistics::induction);
    metrics.set("contribution",
                layer_.contribution.empty() ? Json() : Json::array(layer_.contribution));
    json_.set("metrics", metrics);
    Json labels = Json::array();
    for (const HeadStatistics& head : stats_.heads) {
      const HeadLabel label = label_of(head);
      labels.push(Json::object()
                      .set("name", label.name)
                      .set("score", label.score)
                      .set("definition", label.definition));
    }
    json_.set("labels", labels);
  }

  const LayerInput& layer_;
  const Single& s_;
  const LayerContent& content_;
  Blobs& blobs_;
  Context& context_;
  Statistics stats_;
  Json json_ = Json::object();
};

}  // namespace

LayerBytes::LayerBytes(const Single& s) {
  const std::int64_t number = sizeof(float);
  exact = number * (s.q.count() + s.k.count());
  if (s.masked()) exact += (s.masked_by_head() ? s.heads() : 1) * s.queries() * s.keys() / 8;
  if (s.options.bias) exact += number * s.options.bias.size(1) * s.options.bias.size(2) * s.keys();
  if (s.v) values = number * s.v.count();
  rows = s.heads() * (2 * s.queries() + s.keys());
}

Json layer_json(const LayerInput& layer, const LayerContent& content, Blobs& blobs, Notes& notes,
                Context& context) {
  for (const auto& [name, x] : {std::pair{"q", layer.single.q}, {"k", layer.single.k}})
    if (const std::int64_t count = not_finite(x); count > 0)
      notes.add(
          text(layer.name, ": ", name, " has ", count,
               " numbers that are not finite; weights that see them are NaN."),
          text(layer.name, "：", name, " 中有 ", count, " 个非有限数；看到它们的权重为 NaN。"));
  return Writer(layer, content, blobs, context).write();
}

}  // namespace attend::view
