// sgemm() against fp64, at sizes around every block and panel; and by many threads at once.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "kernels/cpu/gemm/gemm.h"

using namespace mkernel::kernels;

namespace {

struct Problem {
  std::int64_t m, n, k;
  Transpose transpose;
  bool accumulate;
};

/// Random operands in buffers wider than the matrices; "true" when every element of c is right and nothing
/// beside c was touched.
bool right(const Problem& p, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  const bool transposed = p.transpose == Transpose::kYes;
  const std::int64_t lda = p.k + 3, ldb = (transposed ? p.k : p.n) + 5, ldc = p.n + 2;
  std::vector<float> a(static_cast<std::size_t>(p.m * lda));
  std::vector<float> b(static_cast<std::size_t>((transposed ? p.n : p.k) * ldb));
  std::vector<float> c(static_cast<std::size_t>(p.m * ldc));
  for (auto* matrix : {&a, &b, &c}) {
    for (float& value : *matrix) value = uniform(random);
  }
  const std::vector<float> before = c;
  if (!p.accumulate) std::fill(c.begin(), c.end(), NAN);
  sgemm(p.transpose, p.m, p.n, p.k, a.data(), lda, b.data(), ldb, p.accumulate, c.data(), ldc);
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = 0; j < ldc; ++j) {
      const auto at = static_cast<std::size_t>(i * ldc + j);
      if (j >= p.n) {
        if (p.accumulate ? c[at] != before[at] : !std::isnan(c[at])) return false;
        continue;
      }
      double expected = p.accumulate ? before[at] : 0, magnitude = std::abs(expected);
      for (std::int64_t s = 0; s < p.k; ++s) {
        const auto b_at = static_cast<std::size_t>(transposed ? j * ldb + s : s * ldb + j);
        const double product = static_cast<double>(a[static_cast<std::size_t>(i * lda + s)]) * b[b_at];
        expected += product;
        magnitude += std::abs(product);
      }
      if (!(std::abs(c[at] - expected) <= static_cast<double>(p.k + 2) * 0x1p-24 * magnitude)) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("sgemm is right at the edges of its panels and blocks") {
  std::uint64_t seed = 0;
  for (const auto transpose : {Transpose::kNo, Transpose::kYes}) {
    for (const bool accumulate : {false, true}) {
      for (const std::int64_t m : {1, 11, 12, 13, 193}) {
        for (const std::int64_t n : {1, 31, 33, 513}) {
          for (const std::int64_t k : {1, 7, 385}) {
            CAPTURE(m);
            CAPTURE(n);
            CAPTURE(k);
            CHECK(right({m, n, k, transpose, accumulate}, ++seed));
          }
        }
      }
    }
  }
}

TEST_CASE("sgemm is right where BLIS 0.9 reads at an address of chance, if it may read operands in place") {
  for (const auto transpose : {Transpose::kNo, Transpose::kYes}) {
    for (const std::int64_t m : {1, 31, 32, 33}) {
      CAPTURE(m);
      CHECK(right({m, 257, 1019, transpose, false}, 1));
    }
  }
}

TEST_CASE("sgemm is right when many threads call it at once") {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint64_t i = 0; i < 400; ++i) {
        if (!right({17, 33, 29, Transpose::kYes, false}, thread * 100 + i)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}
