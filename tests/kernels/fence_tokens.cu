// A signal to another GPU or to the host that lacks its fence does not compile. Nothing here runs: the file
// builds, or the rule is broken.
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/comm/endpoint.cuh"
#include "kernels/cuda/ptx/fence.cuh"
#include "kernels/cuda/ptx/global.cuh"

namespace mkernel::kernels {
namespace {

// A token comes from the fence, or from whoever says in so many words that the caller has made it.
static_assert(!std::is_default_constructible_v<ptx::SysReleased>);
static_assert(!std::is_constructible_v<ptx::SysReleased, int>);
static_assert(std::is_same_v<decltype(ptx::fence_acq_rel_sys()), ptx::SysReleased>);
static_assert(std::is_empty_v<ptx::SysReleased>, "costs nothing at run time");

template <class... Released>
concept Stores = requires(std::uint64_t* word, Released... released) {
  ptx::st_relaxed_sys(word, 1, released...);
};
template <class... Released>
concept Adds = requires(std::uint64_t* word, Released... released) {
  ptx::red_add_relaxed_sys(word, 1, released...);
};
template <class... Released>
concept WritesSlots = requires(std::uint64_t* words, Released... released) {
  ptx::st_relaxed_sys_v2(words, 1, 2, released...);
};
template <class... Released>
concept Pushes = requires(const DeviceRing& ring, const abi::WorkRequest& request, DeviceWaitSite site,
                          DeviceWaitScope scope, Released... released) {
  ring.push(request, site, scope, released...);
};
template <class... Released>
concept Puts = requires(const device::Endpoint& endpoint, device::Place place, Released... released) {
  put(endpoint, 0U, 0U, place, place, 8U, DeviceRole::kInterSend, released...);
};

template <class... Released>
constexpr bool kAny = Stores<Released...> || Adds<Released...> || WritesSlots<Released...> ||
                      Pushes<Released...> || Puts<Released...>;
template <class... Released>
constexpr bool kAll = Stores<Released...>&& Adds<Released...>&& WritesSlots<Released...>&&
    Pushes<Released...>&& Puts<Released...>;

static_assert(kAll<ptx::SysReleased>, "with the fence every signal compiles");
static_assert(!kAny<>, "without it none does");
static_assert(!kAny<bool>, "nor with anything else");

}  // namespace
}  // namespace mkernel::kernels
