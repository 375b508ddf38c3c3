// Mistakes with layers in memory of a device, through the fake one.
#include "errors/layer_mistakes.h"
#include "support/fake_device.h"

#include <attend/block.h>
#include <attend/trace.h>
#include <attend/train.h>

namespace attend::test {
namespace {

// Calls use(layer, x, where) with a layer of the fake device and x [2, 4] there.
template <class Layer, class Use>
std::function<void()> there(const Layer& layer, const Use& use) {
  return [=] {
    FakeQueue queue;
    const Where where(default_context(), queue);
    const Layer moved = layer.to(kFakeDevice, where);
    const Tensor x = Tensor::copy_of(Tensor({2, 4}), kFakeDevice, where);
    use(moved, x, where);
  };
}

std::vector<NamedTensor> gradient_there(Queue& queue, DType type) {
  std::vector<NamedTensor> list;
  list.push_back({"w", Tensor::copy_of(Tensor({2}, type), kFakeDevice, queue)});
  return list;
}

}  // namespace

std::vector<LayerMistake> device_mistakes() {
  const Linear linear({.in = 4, .out = 4});
  const MultiHeadAttention layer({.model_dim = 4, .heads = 2});
  const AttentionBlock block({.attention = {.model_dim = 4}});
  const std::string start = "Unsupported: multi_head_attention: ";
  const std::string alone =
      " takes host memory alone, found cuda:0; make a copy in it: to() of a layer, "
      "Tensor::copy_of()";
  const std::string hides = ", as it may hide a row from all others; forward() does";
  return {
      {"x_of_the_host",
       there(linear,
             [](const Linear& l, const Tensor&, const Where& where) {
               l.forward(Tensor({2, 4}), where);
             }),
       "InvalidArgument: linear: x is on cpu, the layer on cuda:0; both must be on one device"},
      {"no_queue",
       there(linear, [](const Linear& l, const Tensor& x, const Where&) { l.forward(x); }),
       "InvalidArgument: linear: the tensors are on cuda:0; a queue of it must be given"},
      {"projections_on_two_devices",
       there(linear, [=](const Linear& l, const Tensor&,
                         const Where&) { MultiHeadAttention({.model_dim = 4}, l, linear, l, l); }),
       "InvalidArgument: multi_head_attention: k.weight is on cpu, q.weight on cuda:0; all must be "
       "on one device"},
      {"another_type_there",
       there(linear, [](const Linear& l, const Tensor&, const Where&) { l.to(DType::bf16); }),
       "Unsupported: linear: to() another type" + alone},
      {"quantize_there",
       there(layer, [](const auto& l, const Tensor&, const Where&) { l.quantize(); }),
       start + "quantize()" + alone},
      {"cache_there",
       there(layer, [](const auto& l, const Tensor&, const Where&) { l.make_cache(1, 4); }),
       start + "a KvCache" + alone},
      {"heads_there",
       there(layer,
             [](const auto& l, const Tensor& x, const Where& where) { l.heads(x, {}, where); }),
       start + "heads()" + alone},
      {"trace_there",
       there(layer,
             [](const auto& l, const Tensor& x, const Where& where) { l.trace(x, {}, where); }),
       start + "trace()" + alone},
      {"split_there",
       there(layer,
             [](const auto& l, const Tensor&, const Where&) { static_cast<void>(l.split()); }),
       start + "split()" + alone},
      {"trace_of_a_block_there",
       there(block,
             [](const auto& b, const Tensor& x, const Where& where) { b.trace(x, {}, where); }),
       "Unsupported: attention_block: trace()" + alone},
      {"trace_of_attention_there",
       [] {
         const Tensor q({1, 1, 2, 2});
         const ConstTensorView view(q.view().data(), DType::f32, q.shape(), kFakeDevice);
         trace_attention(view, view, view);
       },
       "Unsupported: trace: trace_attention()" + alone},
      {"training_that_may_hide_rows_there",
       there(layer, [](const auto& l, const Tensor& x,
                       const Where& where) { l.forward_train(x, {.window = {.left = 0}}, where); }),
       start + "forward_train on cuda:0 takes no window with 2 queries of 2 keys" + hides},
      {"training_with_an_offset_there",
       there(layer, [](const auto& l, const Tensor& x,
                       const Where& where) { l.forward_train(x, {.query_offset = 1}, where); }),
       start + "forward_train on cuda:0 takes no query_offset with 2 queries of 2 keys" + hides},
      {"training_over_more_keys_there",
       there(layer,
             [](const auto& l, const Tensor& x, const Where& where) {
               const ConstTensorView one = x.view().slice(0, 0, 1);
               l.forward_train(one, x, x, {.causal = true}, where);
             }),
       start + "forward_train on cuda:0 takes no causal with 1 queries of 2 keys" + hides},
      {"training_without_queries_there",
       there(layer,
             [](const auto& l, const Tensor& x, const Where& where) {
               l.forward_train(x.view().slice(0, 0, 0), x, x, {}, where);
             }),
       start + "forward_train on cuda:0 takes no call with 0 queries of 2 keys" + hides},
      {"saved_of_another_place",
       there(layer,
             [=](const auto& l, const Tensor& x, const Where& where) {
               l.backward(x, layer.forward_train(Tensor({2, 4})).second, where);
             }),
       "InvalidArgument: multi_head_attention: saved.q is on cpu, the layer on cuda:0; both must "
       "be "
       "on one device"},
      {"gradients_there",
       [] {
         FakeQueue queue;
         auto gradients = gradient_there(queue, DType::f32);
         clip_gradients(gradients, 1);
       },
       "InvalidArgument: clip_gradients: the gradient of 'w' is on cuda:0, not in host memory"},
      {"sum_of_gradients_there",
       [] {
         FakeQueue queue;
         std::vector<NamedTensor> sum;
         accumulate(sum, gradient_there(queue, DType::f32));
       },
       "InvalidArgument: accumulate: the gradient of 'w' is on cuda:0, not in host memory"},
      {"sum_there",
       [] {
         FakeQueue queue;
         std::vector<NamedTensor> sum = gradient_there(queue, DType::bf16), more;
         more.push_back({"w", Tensor({2})});
         accumulate(sum, more);
       },
       "InvalidArgument: accumulate: the gradient of 'w' is on cuda:0, not in host memory"},
      {"state_of_an_optimizer_there",
       [] {
         FakeQueue queue;
         Tensor value({2});
         std::vector<NamedTensor> state = gradient_there(queue, DType::f32);
         state[0].name = "momentum.w";
         SGD({.momentum = 0.5}).restore(1, std::move(state), {{"w", value}});
       },
       "InvalidArgument: sgd: tensor 'momentum.w' is on cuda:0, not in host memory"},
      {"parameter_of_an_optimizer_there",
       [] {
         FakeQueue queue;
         std::vector<NamedTensor> list = gradient_there(queue, DType::f32);
         SGD().restore(1, {}, {{"w", list[0].tensor}});
       },
       "InvalidArgument: sgd: parameter 'w' is on cuda:0, not in host memory"},
      {"file_of_tensors_there",
       [] {
         FakeQueue queue;
         Tensor value({2});
         TensorFile file;
         file.tensors = gradient_there(queue, DType::f32);
         load_parameters(file, {{"w", value}});
       },
       "InvalidArgument: load_parameters: 'w' is on cuda:0, not in host memory"},
  };
}

}  // namespace attend::test
