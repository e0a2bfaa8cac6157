#include "kernels/cpu/stream.h"

#include "support.h"

namespace sluice::test {
namespace {

TEST(Stream, TouchesEveryElementOnceAndComesBack) {
  with_targets([&] {
    for (std::int64_t n : lengths()) {
      const auto x = normal<float>(n, 1);
      auto y = x;
      kernels::stream_update(y);
      for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], -x[i]);
      kernels::stream_update(y);
      ASSERT_TRUE(same_bytes(x, y));
    }
  });
}

/// Doubles behind the alignment that the loops ask for, and one that must stay as it is.
struct Doubles {
  explicit Doubles(std::int64_t n, double first = 0) : storage(static_cast<std::size_t>(n) + 9, -1.0) {
    while (reinterpret_cast<std::uintptr_t>(storage.data() + offset) % 64 != 0) ++offset;
    for (std::int64_t i = 0; i < n; ++i) data()[i] = first + static_cast<double>(i) / 3;
  }
  double* data() { return storage.data() + offset; }
  std::vector<double> storage;
  std::size_t offset = 0;
};

TEST(Stream, LoopsAreThoseOfStream) {
  struct Case {
    void (*loop)(const kernels::StreamArrays&);
    double (*element)(double a, double b);
  };
  const Case cases[] = {{kernels::stream_copy, [](double a, double) { return a; }},
                        {kernels::stream_copy_nt, [](double a, double) { return a; }},
                        {kernels::stream_scale, [](double a, double) { return 3 * a; }},
                        {kernels::stream_add, [](double a, double b) { return a + b; }},
                        {kernels::stream_triad, [](double a, double b) { return a + 3 * b; }}};
  with_targets([&] {
    for (const std::int64_t n : lengths())
      for (const Case& c : cases) {
        Doubles a(n, 0.1), b(n, 7.3), out(n);
        c.loop({a.data(), b.data(), out.data(), n});
        for (std::int64_t i = 0; i < n; ++i)
          ASSERT_EQ(out.data()[i], c.element(a.data()[i], b.data()[i])) << "at " << i << " of " << n;
        EXPECT_EQ(out.data()[n], -1);
      }
  });
}

}  // namespace
}  // namespace sluice::test
