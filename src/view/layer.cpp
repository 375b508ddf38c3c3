#include "view/layer.h"

#include "core/text.h"
#include "view/tensors.h"

#include <attend/option_list.h>

#include <algorithm>
#include <cmath>

namespace attend::view {
namespace {

class Writer {
 public:
  Writer(const LayerInput& layer, const LayerContent& content, Blobs& blobs, const HeadsDone& done,
         Context& context)
      : layer_(layer), s_(layer.single), content_(content), blobs_(blobs), context_(context),
        numbers_(numbers_of(s_, content, layer.tokens, done, context)) {
    json_.set("name", layer.name);
  }

  Json write() {
    put_sizes();
    put_options();
    put_tensors();
    put_tiles();
    put_windows();
    put_rows();
    put_statistics();
    put_norms();
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
    const bool exact = content_.exact;
    json_.set("q", exact ? add_tensor(s_.q, blobs_) : Json());
    json_.set("k", exact ? add_tensor(s_.k, blobs_) : Json());
    json_.set("v", content_.values ? add_tensor(s_.v, blobs_) : Json());
    json_.set("mask", exact && s_.masked() ? add_mask(s_, blobs_) : Json());
    json_.set("bias", exact && s_.options.bias ? add_bias(s_, blobs_) : Json());
    json_.set("why", content_.exact ? Json() : Json(content_.why));
  }

  void put_tiles() {
    const std::int64_t rows = numbers_.tile_rows, columns = numbers_.tile_columns;
    const std::vector<std::int64_t> pairs = visible_pairs(s_, numbers_, context_);
    const Shape shape{s_.heads(), rows, columns};
    json_.set("tiles", Json::object()
                           .set("rows", rows)
                           .set("columns", columns)
                           .set("queries", numbers_.tile_queries)
                           .set("keys", numbers_.tile_keys)
                           .set("mean", quantised(shape, numbers_.tile_mean))
                           .set("maximum", quantised(shape, numbers_.tile_maximum))
                           .set("visible", visible(pairs)));
    put_over_heads(pairs);
  }

  template <class Number>
  Json quantised(const Shape& shape, const std::vector<Number>& weights) {
    std::vector<std::uint8_t> bytes;
    bytes.reserve(weights.size());
    for (const Number p : weights) bytes.push_back(log8(static_cast<double>(p)));
    return blobs_.add("log8", shape, bytes);
  }

  // How much of a tile is visible: 0 nothing, 1 some of it, 2 all of it.
  Json visible(const std::vector<std::int64_t>& pairs) {
    const std::int64_t rows = numbers_.tile_rows, columns = numbers_.tile_columns;
    std::vector<std::uint8_t> bytes;
    for (std::int64_t n = 0; n < std::ssize(pairs); ++n) {
      const std::int64_t i = n / columns % rows * numbers_.tile_queries;
      const std::int64_t j = n % columns * numbers_.tile_keys;
      const std::int64_t all = std::min(numbers_.tile_queries, s_.queries() - i) *
                               std::min(numbers_.tile_keys, s_.keys() - j);
      const std::int64_t seen = pairs[static_cast<std::size_t>(n)];
      bytes.push_back(seen == 0 ? 0 : seen < all ? 1 : 2);
    }
    return blobs_.add("u8", {std::ssize(pairs) / rows / columns, rows, columns}, bytes);
  }

  // The mean over all visible pairs of a tile in all heads: where the heads see the same, the
  // tile's mean of the mean over heads. The maximum is that of any head.
  void put_over_heads(const std::vector<std::int64_t>& pairs) {
    const std::size_t size = static_cast<std::size_t>(numbers_.tile_rows * numbers_.tile_columns);
    std::vector<double> mean(size), maximum(size), count(size);
    for (std::size_t n = 0; n < numbers_.tile_mean.size(); ++n) {
      const auto seen = static_cast<double>(pairs[n % pairs.size()]);
      if (seen == 0) continue;
      mean[n % size] += seen * static_cast<double>(numbers_.tile_mean[n]);
      count[n % size] += seen;
      maximum[n % size] =
          std::max(maximum[n % size], static_cast<double>(numbers_.tile_maximum[n]));
    }
    for (std::size_t n = 0; n < size; ++n)
      if (count[n] > 0) mean[n] /= count[n];
    const Shape shape{numbers_.tile_rows, numbers_.tile_columns};
    json_.set("over_heads", Json::object()
                                .set("mean", quantised(shape, mean))
                                .set("maximum", quantised(shape, maximum)));
  }

  void put_windows() {
    Json windows = Json::array();
    for (std::size_t n = 0; n < content_.windows.size(); ++n) {
      const WeightsWindow& w = content_.windows[n];
      windows.push(
          Json::object()
              .set("head", w.head)
              .set("query", w.query)
              .set("queries", w.queries)
              .set("key", w.key)
              .set("keys", w.keys)
              .set("weights", blobs_.add("f32", {w.queries, w.keys}, numbers_.windows[n])));
    }
    json_.set("windows", windows);
  }

  // The keys of largest weight of each row, with all bits of lse: those are of use with q and k.
  void put_rows() {
    const std::int64_t rows = content_.rows;
    json_.set("lse", rows == 0 ? Json() : blobs_.add("f32", {s_.heads(), rows}, numbers_.lse));
    if (rows == 0) {
      json_.set("rows", nullptr);
      return;
    }
    const Shape shape{s_.heads(), rows, content_.k};
    const auto keys = [&]() -> Json {
      if (!short_keys(s_.keys())) return blobs_.add("i32", shape, numbers_.top_keys);
      std::vector<std::uint16_t> halves;
      halves.reserve(numbers_.top_keys.size());
      for (const std::int32_t key : numbers_.top_keys)
        halves.push_back(static_cast<std::uint16_t>(key));  // -1 becomes 65535
      return blobs_.add("u16", shape, halves);
    };
    json_.set("rows", Json::object()
                          .set("from", s_.queries() - rows)
                          .set("count", rows)
                          .set("k", content_.k)
                          .set("keys", keys())
                          .set("weights", blobs_.add("log16", shape, numbers_.top_weights)));
  }

  // Of rows and keys. The maximum of a row is the first of its weights too.
  void put_statistics() {
    const Shape rows{s_.heads(), s_.queries()}, keys{s_.heads(), s_.keys()};
    const bool there = content_.statistics, whole = there && !content_.reduced;
    json_.set("entropy", !there  ? Json()
                         : whole ? blobs_.add("f32", rows, numbers_.entropy)
                                 : blobs_.add("f16", rows, halves(numbers_.entropy)));
    json_.set("maximum", whole ? blobs_.add("f32", rows, numbers_.maximum) : Json());
    json_.set("mass", there ? positive(keys, numbers_.mass) : Json());
  }

  void put_norms() {
    const auto put = [&](const char* name, bool there, const auto& norms, std::int64_t heads) {
      json_.set(name, there ? positive({heads, s_.keys()}, norms()) : Json());
    };
    put(
        "value_norm", content_.norms, [&] { return value_norms(s_); }, s_.key_heads());
    put(
        "output_norm", content_.norms && layer_.w_o,
        [&] { return output_norms(s_, layer_.w_o, context_); }, s_.heads());
  }

  Json positive(const Shape& shape, const std::vector<float>& numbers) {
    return content_.reduced ? blobs_.add_halved(shape, numbers) : blobs_.add("f32", shape, numbers);
  }

  static std::vector<f16> halves(const std::vector<float>& numbers) {
    std::vector<f16> to;
    to.reserve(numbers.size());
    for (const float x : numbers) to.push_back(static_cast<f16>(x));
    return to;
  }

  void put_heads() {
    Json metrics = Json::object();
    const auto put = [&](const char* name, double HeadStatistics::*metric) {
      Json list = Json::array();
      bool known = false;
      for (const HeadStatistics& head : numbers_.heads) {
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
    for (const HeadStatistics& head : numbers_.heads) {
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
  LayerNumbers numbers_;
  Json json_ = Json::object();
};

}  // namespace

Json layer_json(const LayerInput& layer, const LayerContent& content, Blobs& blobs, Notes& notes,
                const HeadsDone& done, Context& context) {
  for (const auto& [name, x] : {std::pair{"q", layer.single.q}, {"k", layer.single.k}})
    if (const std::int64_t count = not_finite(x); count > 0)
      notes.add(
          text(layer.name, ": ", name, " has ", count,
               " numbers that are not finite; weights that see them are NaN."),
          text(layer.name, "：", name, " 中有 ", count, " 个非有限数；看到它们的权重为 NaN。"));
  return Writer(layer, content, blobs, done, context).write();
}

}  // namespace attend::view
