// The tensor cores of the host: products of a warp, which are made when it waits for them.
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/cpu/memory/convert.h"
#include "tests/support/host_grid.h"
#include "tests/support/on_host/sm90.h"

namespace mkernel::test {
namespace {

/// A lane's part of a product of its warp.
struct Product {
  float* d;
  HostProduct kind;
  const std::uint32_t* a_registers;  ///< null: a lies in shared memory
  std::uint64_t a, b;
  bool accumulate;
};

struct Products {
  std::vector<Product> open;
  std::deque<std::vector<Product>> groups;
};
thread_local std::map<const HostThread*, Products> products;

float value_of(std::uint16_t bits, bool bf16) {
  return bf16 ? kernels::bf16_to_float(bits) : kernels::f16_to_float(bits);
}

constexpr std::uint32_t kStep = 16;  ///< the extent of one product along k
constexpr std::uint32_t kRowBytes = 128, kLanes = 32, kRows = 16, kMostColumns = 256;

/// A matrix in shared memory, in rows of 128 bytes.
class SharedMatrix {
 public:
  SharedMatrix(std::uint64_t descriptor, bool bf16)
      : memory_(host_thread().cluster_shared[host_thread().cluster_rank]),
        begin_(static_cast<std::uint32_t>(descriptor & 0x3fff) << 4),
        leading_(static_cast<std::uint32_t>(descriptor >> 16 & 0x3fff) << 4),
        bf16_(bf16) {}

  /// Eight neighbours, which the swizzle leaves together. Rows wider than 64 go on in the next block.
  void read(std::uint32_t row, std::uint32_t column, float* values) const {
    const std::uint32_t at = begin_ + column / 64 * leading_ + row * kRowBytes + column % 64 * 2;
    std::uint16_t bits[8];
    std::memcpy(bits, memory_ + host_swizzled(at), sizeof bits);
    for (std::uint32_t i = 0; i < 8; ++i) values[i] = value_of(bits[i], bf16_);
  }

 private:
  const std::byte* memory_;
  std::uint32_t begin_, leading_;
  bool bf16_;
};

/// An operand by k: `kWidth` rows of a or columns of b beside each other.
template <std::uint32_t kWidth>
using Operand = float[kStep][kWidth];

/// `count` rows of a or columns of b, from `first` on. `by_k`: the matrix has a row for each.
template <std::uint32_t kWidth>
void read_operand(const SharedMatrix& matrix, bool by_k, std::uint32_t first, std::uint32_t count,
                  Operand<kWidth>& operand) {
  if (!by_k) {
    for (std::uint32_t k = 0; k < kStep; ++k) {
      for (std::uint32_t i = 0; i < count; i += 8) matrix.read(k, first + i, operand[k] + i);
    }
    return;
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    float values[kStep];
    for (std::uint32_t k = 0; k < kStep; k += 8) matrix.read(first + i, k, values + k);
    for (std::uint32_t k = 0; k < kStep; ++k) operand[k][i] = values[k];
  }
}

/// From the registers of all lanes, each of which has two rows, and four elements of either.
void read_registers(const std::array<const Product*, kLanes>& parts, Operand<kRows>& a) {
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
    for (std::uint32_t i = 0; i < 8; ++i) {
      const std::uint32_t odd = i % 2, half = i / 2 % 2, right = i / 4;
      const std::uint32_t pair = parts[lane]->a_registers[2 * right + half];
      a[8 * right + 2 * (lane % 4) + odd][lane / 4 + 8 * half] =
          value_of(static_cast<std::uint16_t>(pair >> 16 * odd), parts[lane]->kind.bf16);
    }
  }
}

/// Calls `each(of a lane's d, of the warp's)` for all elements: of each eight columns a lane has two beside
/// each other, in its row and in the eighth after it.
template <class Each>
void each_sum(const std::array<const Product*, kLanes>& parts, float (&sums)[kRows][kMostColumns],
              const Each& each) {
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
    const auto count = static_cast<std::uint32_t>(parts[lane]->kind.columns) / 2;
    for (std::uint32_t i = 0; i < count; ++i) {
      each(parts[lane]->d[i], sums[lane / 4 + 8 * (i / 2 % 2)][i / 4 * 8 + 2 * (lane % 4) + i % 2]);
    }
  }
}

/// One product of the warp that runs: sixteen rows of d (+)= a x b.
void multiply(const std::array<const Product*, kLanes>& parts) {
  thread_local Operand<kRows> a;
  thread_local Operand<kMostColumns> b;
  thread_local float sums[kRows][kMostColumns];
  const Product& product = *parts[0];
  const auto columns = static_cast<std::uint32_t>(product.kind.columns);
  if (product.a_registers != nullptr) {
    read_registers(parts, a);
  } else {
    const std::uint32_t warp = host_thread().thread.x / kLanes % 4;
    read_operand(SharedMatrix(product.a, product.kind.bf16), product.kind.a_by_k, kRows * warp, kRows, a);
  }
  read_operand(SharedMatrix(product.b, product.kind.bf16), product.kind.b_by_k, 0, columns, b);
  each_sum(parts, sums, [&](float d, float& sum) { sum = product.accumulate ? d : 0; });
  for (std::uint32_t row = 0; row < kRows; ++row) {
    for (std::uint32_t k = 0; k < kStep; ++k) {
      for (std::uint32_t column = 0; column < columns; ++column)
        sums[row][column] += a[k][row] * b[k][column];
    }
  }
  each_sum(parts, sums, [](float& d, float sum) { d = sum; });
}

/// The oldest group of products of all lanes, which have as many.
void multiply_group(const std::uint64_t* lanes) {
  const auto of = [&](std::uint32_t lane) { return reinterpret_cast<Products*>(lanes[lane]); };
  const std::size_t count = of(0)->groups.front().size();
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
    if (of(lane)->groups.size() != of(0)->groups.size() || of(lane)->groups.front().size() != count)
      throw std::runtime_error("the lanes of a warp wait for different products");
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::array<const Product*, kLanes> parts;
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) parts[lane] = &of(lane)->groups.front()[i];
    multiply(parts);
  }
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) of(lane)->groups.pop_front();
}

}  // namespace

void host_wgmma(float* d, const HostProduct& product, std::uint64_t a, std::uint64_t b, bool accumulate) {
  products[&host_thread()].open.push_back({d, product, nullptr, a, b, accumulate});
}

void host_wgmma(float* d, const HostProduct& product, const std::uint32_t* a, std::uint64_t b,
                bool accumulate) {
  products[&host_thread()].open.push_back({d, product, a, 0, b, accumulate});
}

void host_commit_products() {
  Products& mine = products[&host_thread()];
  mine.groups.push_back(std::exchange(mine.open, {}));
}

namespace {
thread_local std::int64_t slow_warpgroup = -1;
}

HostSlowWarpgroup::HostSlowWarpgroup(std::uint32_t warpgroup) {
  slow_warpgroup = warpgroup;
}
HostSlowWarpgroup::~HostSlowWarpgroup() {
  slow_warpgroup = -1;
}

void host_wait_products(std::size_t pending) {
  Products& mine = products[&host_thread()];
  // Long enough for the copy engine to refill what was given back before the products have read it.
  const int turns = host_thread().thread.x / 128 == slow_warpgroup ? 100 : 4;
  for (int turn = 0; turn < turns && mine.groups.size() > pending; ++turn) host_yield();
  if (mine.groups.size() > pending) {
    const std::uint64_t* lanes = host_exchange(~0U, reinterpret_cast<std::uintptr_t>(&mine));
    // One lane multiplies for all, when all are here.
    while (host_thread().thread.x % kLanes == 0 && mine.groups.size() > pending) multiply_group(lanes);
  }
  // The products are the warp's: none of its lanes goes on before they are done.
  host_warp_sync(~0U);
}

void host_forget_products() {
  products.clear();
}

}  // namespace mkernel::test
