#include "tests/support/on_host/sm90.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/memory/convert.h"

namespace mkernel::test {
namespace {

constexpr std::uint32_t kOffset = 0xffffff, kRowBytes = 128;

struct Map {
  std::byte* base;
  std::int64_t rows, columns, leading;
  std::int32_t box_rows, box_columns;
  bool packed;

  std::uint32_t box_row_bytes() const { return static_cast<std::uint32_t>(box_columns) * 2; }
};
static_assert(sizeof(Map) <= sizeof(kernels::TensorMap));

Map map_at(const void* place) {
  Map map;
  std::memcpy(&map, place, sizeof map);
  return map;
}

/// The 128-byte swizzle: 16-byte pieces of a row of 128 bytes change places with its number.
std::uint32_t swizzled(std::uint32_t offset) {
  return offset ^ (offset >> 7 & 7) << 4;
}

/// Row `row` of the matrix that begins with row z of a map's memory.
std::byte* row_of(const Map& map, std::int64_t z, std::int64_t row) {
  return map.base + (z + row) * map.leading * 2;
}

thread_local std::deque<std::function<void()>> copies;
/// Groups of stores that are not done, by thread: how many stores each has left.
thread_local std::map<const HostThread*, std::vector<std::shared_ptr<int>>> stores;
thread_local std::map<const HostThread*, std::shared_ptr<int>> open_group;

/// The elements of a box: row and column in the matrix, place in shared memory, whether the matrix has it.
template <class Each>
void each_element(const Map& map, std::uint32_t shared, std::int32_t x, std::int32_t y, const Each& each) {
  for (std::int32_t row = 0; row < map.box_rows; ++row) {
    for (std::int32_t column = 0; column < map.box_columns; ++column) {
      const auto at = shared + static_cast<std::uint32_t>(row) * map.box_row_bytes() +
                      static_cast<std::uint32_t>(column) * 2;
      const bool inside = y + row >= 0 && y + row < map.rows && x + column >= 0 && x + column < map.columns;
      each(y + row, x + column, map.packed ? at : swizzled(at), inside);
    }
  }
}

/// Into the open group of the calling thread.
void queue_store(std::function<void()> store) {
  auto& group = open_group[&host_thread()];
  if (group == nullptr) group = std::make_shared<int>(0);
  ++*group;
  copies.push_back([store = std::move(store), left = group] {
    store();
    --*left;
  });
}

void require_aligned(std::uint32_t shared, const void* global, std::uint32_t bytes) {
  if ((shared | bytes | reinterpret_cast<std::uintptr_t>(global)) % 16 == 0) return;
  throw std::runtime_error("a bulk copy of " + std::to_string(bytes) + " bytes that is not aligned to 16");
}

}  // namespace

namespace {

kernels::TensorMap host_map(const kernels::MatrixView& view, bool packed) {
  const Map map{const_cast<std::byte*>(static_cast<const std::byte*>(view.base)),
                view.rows,
                view.columns,
                view.leading > 0 ? view.leading : view.columns,
                view.box_rows,
                view.box_columns,
                packed};
  kernels::TensorMap made{};
  std::memcpy(&made, &map, sizeof map);
  return made;
}

}  // namespace

kernels::TensorMap host_tensor_map(const kernels::MatrixView& view) {
  return host_map(view, false);
}
kernels::TensorMap host_packed_map(const kernels::MatrixView& view) {
  return host_map(view, true);
}

std::uint32_t host_shared_address(const void* pointer) {
  const HostThread& self = host_thread();
  return static_cast<std::uint32_t>(static_cast<const std::byte*>(pointer) -
                                    self.cluster_shared[self.cluster_rank]);
}

std::byte* host_shared_at(std::uint32_t address) {
  const HostThread& self = host_thread();
  const std::uint32_t cta = address >> 24;
  return self.cluster_shared[cta == 0 ? self.cluster_rank : cta - 1] + (address & kOffset);
}

void HostBarrier::init(std::uint32_t arrivals) {
  expected = pending = arrivals;
  phase = 0;
  bytes = 0;
}
void HostBarrier::arrive(std::int32_t more_bytes) {
  bytes += more_bytes;
  --pending;
  end_phase();
}
void HostBarrier::take(std::int32_t copied_bytes) {
  bytes -= copied_bytes;
  end_phase();
}
void HostBarrier::end_phase() {
  if (pending != 0 || bytes != 0) return;
  pending = expected;
  phase ^= 1;
}

void host_load(std::uint32_t shared, const void* map_place, std::int32_t x, std::int32_t y, std::int32_t z,
               std::uint32_t barrier, std::uint32_t ctas) {
  const HostThread& self = host_thread();
  const Map map = map_at(map_place);
  const std::uint32_t to = ctas != 0 ? ctas : 1U << self.cluster_rank;
  for (std::uint32_t cta = 0; to >> cta != 0; ++cta) {
    if ((to >> cta & 1) == 0) continue;
    std::byte* memory = self.cluster_shared[cta];
    copies.push_back([=] {
      each_element(map, shared & kOffset, x, y,
                   [&](std::int64_t row, std::int64_t column, std::uint32_t at, bool inside) {
                     std::uint16_t element = 0;
                     if (inside) std::memcpy(&element, row_of(map, z, row) + column * 2, 2);
                     std::memcpy(memory + at, &element, 2);
                   });
      reinterpret_cast<HostBarrier*>(memory + (barrier & kOffset))
          ->take(static_cast<std::int32_t>(map.box_row_bytes()) * map.box_rows);
    });
  }
}

void host_store(const void* map_place, std::int32_t x, std::int32_t y, std::int32_t z, std::uint32_t shared) {
  if (x < 0 || y < 0 || z < 0) throw std::runtime_error("a TMA store at a negative coordinate");
  const Map map = map_at(map_place);
  const HostThread& self = host_thread();
  const std::byte* memory = self.cluster_shared[self.cluster_rank];
  // Who reads while it is made may see any of the elements come before any other.
  thread_local std::mt19937 random;
  const std::uint32_t early = random();
  for (const bool now : {true, false}) {
    queue_store([=] {
      each_element(map, shared & kOffset, x, y,
                   [&](std::int64_t row, std::int64_t column, std::uint32_t at, bool inside) {
                     if (inside && ((early >> (row + column) % 32 & 1) != 0) == now)
                       std::memcpy(row_of(map, z, row) + column * 2, memory + at, 2);
                   });
    });
  }
}

void host_bulk_load(std::uint32_t shared, const void* global, std::uint32_t bytes, std::uint32_t barrier) {
  require_aligned(shared, global, bytes);
  std::byte* to = host_shared_at(shared);
  HostBarrier* full = &host_barrier_at(barrier);
  copies.push_back([=] {
    std::memcpy(to, global, bytes);
    full->take(static_cast<std::int32_t>(bytes));
  });
}

void host_bulk_store(void* global, std::uint32_t shared, std::uint32_t bytes) {
  require_aligned(shared, global, bytes);
  const std::byte* from = host_shared_at(shared);
  queue_store([=] { std::memcpy(global, from, bytes); });
}

void host_bulk_add(float* global, std::uint32_t shared, std::uint32_t bytes) {
  require_aligned(shared, global, bytes);
  const std::byte* from = host_shared_at(shared);
  queue_store([=] {
    for (std::uint32_t i = 0; i < bytes / sizeof(float); ++i) {
      float value;
      std::memcpy(&value, from + i * sizeof value, sizeof value);
      global[i] += value;
    }
  });
}

void host_commit_stores() {
  auto& group = open_group[&host_thread()];
  if (group != nullptr) stores[&host_thread()].push_back(std::exchange(group, nullptr));
}

void host_wait_stores(std::size_t pending) {
  auto& groups = stores[&host_thread()];
  while (groups.size() > pending) {
    if (*groups.front() > 0) {
      host_yield();
    } else {
      groups.erase(groups.begin());
    }
  }
}

void host_store_shared(std::uint32_t shared, const float4& value, std::uint32_t barrier) {
  std::byte* to = host_shared_at(shared);
  HostBarrier* counter = &host_barrier_at(barrier);
  copies.push_back([=] {
    std::memcpy(to, &value, sizeof value);
    counter->take(sizeof value);
  });
}

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

constexpr std::uint32_t kStep = 16;  ///< of k: what one product sums
constexpr std::uint32_t kLanes = 32, kRows = 16, kMostColumns = 256;

/// A matrix in shared memory, in rows of 128 bytes. Most of the time of a play is spent in what reads it.
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
    std::memcpy(bits, memory_ + swizzled(at), sizeof bits);
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

void host_copy_engine() {
  std::mt19937 random(11);
  while (!host_is_over() || !copies.empty()) {
    host_yield();
    // When there are many copies, they are small ones.
    for (std::size_t made = random() % (8 + copies.size() / 8); made > 0 && !copies.empty(); --made) {
      const auto chosen =
          copies.begin() + static_cast<std::ptrdiff_t>(random() % std::min<std::size_t>(copies.size(), 6));
      const std::function<void()> copy = std::move(*chosen);
      copies.erase(chosen);
      copy();
    }
  }
  stores.clear();
  open_group.clear();
  products.clear();
}

}  // namespace mkernel::test
