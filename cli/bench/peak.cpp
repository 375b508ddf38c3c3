#include "peak.h"

#include "peak_tiles.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <vector>

namespace attend::cli {

#if defined(__x86_64__)
extern const PeakLoops kPeakSSE2, kPeakAVX2, kPeakAVX512;
#elif defined(__aarch64__)
extern const PeakLoops kPeakNEON;
#else
extern const PeakLoops kPeakPlain;
#endif

namespace {

using Clock = std::chrono::steady_clock;
constexpr double kTry = 0.005;  // seconds

double seconds_of(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Rounds a second of `work(rounds)`, at best: of many short tries some are not disturbed. The
// number of rounds grows until a try is long enough to be timed and for all threads to wake up.
double best_rate(double seconds, const std::function<void(std::int64_t)>& work) {
  std::int64_t rounds = 1;
  double time = seconds_of([&] { work(rounds); });
  while (time < kTry) {
    rounds *= 2;
    time = seconds_of([&] { work(rounds); });
  }
  double spent = time;
  for (int tries = 1; tries < 3 || spent < seconds; ++tries) {
    const double next = seconds_of([&] { work(rounds); });
    spent += next;
    time = std::min(time, next);
  }
  return static_cast<double>(rounds) / time;
}

// Keeps a result that nobody wants from being computed away.
void use(float x) {
  static std::atomic<float> last;
  last.store(x, std::memory_order_relaxed);
}

}  // namespace

const PeakLoops& peak_loops() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return kPeakAVX512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kPeakAVX2;
  return kPeakSSE2;
#elif defined(__aarch64__)
  return kPeakNEON;
#else
  return kPeakPlain;
#endif
}

PeakFlops measure_flops(Context& context, DType type, double seconds) {
  const int threads = context.threads();
  const auto rate = [&](double flops, double wanted, const auto& loop) {
    return threads * flops * best_rate(wanted, [&](std::int64_t rounds) {
             context.parallel_for(threads, [&](std::int64_t) { loop(rounds); });
           });
  };
  if (const TileLoop* tiles = tile_loop(type))
    return {tiles->name, type, rate(tiles->flops, seconds, tiles->multiply)};
  const PeakLoops& loops = peak_loops();
  const auto of = [&](float (*loop)(std::int64_t), double flops) {
    return rate(flops, seconds / 2, [&](std::int64_t rounds) { use(loop(rounds)); });
  };
  return {
      loops.name, DType::f32,
      std::max(of(loops.registers, loops.registers_flops), of(loops.panels, loops.panels_flops))};
}

double measure_reading(Context& context, std::size_t bytes, double seconds) {
  const PeakLoops& loops = peak_loops();
  // A part a thread, in steps that the loop takes whole.
  const std::int64_t threads = context.threads();
  const std::int64_t part =
      std::max<std::int64_t>(static_cast<std::int64_t>(bytes) / (4 * threads * 256), 1) * 256;
  const auto release = [](float* memory) { ::operator delete[](memory, std::align_val_t{64}); };
  const std::unique_ptr<float[], decltype(release)> array(
      new (std::align_val_t{64}) float[static_cast<std::size_t>(part * threads)], release);
  // Each thread touches its part first, so that it lies near it where memory is near to some.
  context.parallel_for(threads,
                       [&](std::int64_t n) { std::fill_n(array.get() + n * part, part, 1.0F); });
  return static_cast<double>(part * threads) * 4 * best_rate(seconds, [&](std::int64_t rounds) {
           for (std::int64_t round = 0; round < rounds; ++round)
             context.parallel_for(
                 threads, [&](std::int64_t n) { use(loops.sum(array.get() + n * part, part)); });
         });
}

}  // namespace attend::cli
