#include "tests/support/on_host/sm90.h"

#include <algorithm>
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

namespace mkernel::test {
namespace {

constexpr std::uint32_t kOffset = 0xffffff;

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
      each(y + row, x + column, map.packed ? at : host_swizzled(at), inside);
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
  host_forget_products();
}

}  // namespace mkernel::test
