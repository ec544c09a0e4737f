#include "tests/support/fake_nic/hosts.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <utility>

namespace mkernel::test::nic {
namespace {

constexpr std::size_t kSlots = 72;  ///< post_rate has 65 hosts

std::mutex slots_lock;
std::array<Host*, kSlots> slots{};

template <std::size_t Slot>
ibv_device** list(int* count) {
  const std::lock_guard held(slots_lock);
  const Host* const host = slots[Slot];
  if (host == nullptr) return fail(ENOSYS);
  const std::size_t devices = host->devices.size();
  auto* const out = new ibv_device* [devices + 1] {};
  std::copy(host->devices.begin(), host->devices.end(), out);
  if (count != nullptr) *count = static_cast<int>(devices);
  return out;
}

template <std::size_t... Slot>
constexpr auto listers(std::index_sequence<Slot...>) {
  return std::array{&list<Slot>...};
}

}  // namespace

void take_slot(Host& host) {
  const std::lock_guard held(slots_lock);
  const auto free = std::find(slots.begin(), slots.end(), nullptr);
  if (free == slots.end()) std::abort();
  *free = &host;
  host.slot = static_cast<std::size_t>(free - slots.begin());
}

void give_back_slot(Host& host) {
  const std::lock_guard held(slots_lock);
  slots[host.slot] = nullptr;
}

ibv_device** (*lister(std::size_t slot))(int* count) {
  static constexpr auto kListers = listers(std::make_index_sequence<kSlots>());
  return kListers[slot];
}

}  // namespace mkernel::test::nic
