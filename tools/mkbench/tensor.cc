#include "tools/mkbench/tensor.h"

#include <cblas.h>

#include "kernels/cpu/memory/convert.h"

namespace mkernel::bench {

std::vector<std::uint16_t> random_tensor(DataType type, std::uint64_t seed, std::size_t count, float scale) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = scale * uniform(seed, i);
  std::vector<std::uint16_t> stored(count);
  kernels::narrow(type, values.data(), stored.data(), count);
  return stored;
}

std::vector<float> to_float(DataType type, const std::vector<std::uint16_t>& stored) {
  std::vector<float> values(stored.size());
  kernels::widen(type, stored.data(), values.data(), stored.size());
  return values;
}

std::vector<std::uint16_t> poisoned(std::size_t count) {
  return std::vector<std::uint16_t>(count, 0xffff);
}

void reference_gemm(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b,
                    Layout b_layout, float* c) {
  if (m == 0) return;
  const bool column = b_layout == Layout::kColumnMajor;
  const auto narrow = [](std::int64_t size) { return static_cast<blasint>(size); };
  cblas_sgemm(CblasRowMajor, CblasNoTrans, column ? CblasTrans : CblasNoTrans, narrow(m), narrow(n),
              narrow(k), 1, a, narrow(k), b, narrow(column ? k : n), 0, c, narrow(n));
}

}  // namespace mkernel::bench
