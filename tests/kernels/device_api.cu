// Every function of mkernel/device.cuh in one kernel, as a user's file has them; compiled only
// (cuda_12_9.py).
#include <mkernel/device.cuh>

namespace mkernel::test {
namespace {

namespace mk = mkernel::device;

template <class Group>
__device__ bool exchange(Group group, const mk::Endpoint& endpoint, const mk::Peers& peers,
                         std::uint32_t other, std::uint64_t* out) {
  mk::release(group);
  const std::uint64_t before = mk::issued(endpoint, other, 0), count = mk::launches(endpoint) + before;
  bool ok = mk::put(endpoint, other, 0, {0, 0}, {1, 4096}, 64) && mk::signal(endpoint, other, 0);
  ok = ok && mk::wait_arrival(group, endpoint, other, 0, count) &&
       mk::wait_completed(group, endpoint, other, 0, count);
  out[0] = mk::arrived(endpoint, other, 0) + mk::completed(endpoint, other, 0);
  if (mk::local_rank(endpoint, other) >= 0 && mk::local_size(endpoint) > 1)
    *mk::peer(peers, mk::local_rank(endpoint, other)) = std::byte{1};
  return ok;
}

}  // namespace

__global__ void device_api(mk::Endpoint endpoint, mk::Peers peers, std::uint32_t other, std::uint64_t* out) {
  if (mk::is_poller()) return mk::poll(endpoint);
  if (mk::stopped(endpoint)) return mk::leave(endpoint);
  const bool ok = exchange(mk::Cta{}, endpoint, peers, other, out) &&
                  exchange(mk::Warp{}, endpoint, peers, other, out) &&
                  exchange(mk::Thread{}, endpoint, peers, other, out) && mk::grid_barrier(endpoint) &&
                  mk::node_barrier(endpoint);
  out[1] = ok;
  mk::leave(endpoint);
}

}  // namespace mkernel::test
