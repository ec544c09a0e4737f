#include "daemon/transport/efa/domains.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace mkernel::transport::efa {

Result<std::shared_ptr<ibv_pd>> Domains::on(const Device& device) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.device == &device; });
  if (found != entries_.end()) return found->pd;
  std::shared_ptr<ibv_pd> pd =
      rdma::own(device.verbs().alloc_pd(device.context()), device.verbs().dealloc_pd);
  if (pd == nullptr) return rdma::call_failed(device.name(), "allocating a peer's protection domain", errno);
  entries_.push_back({&device, std::move(pd)});
  return entries_.back().pd;
}

}  // namespace mkernel::transport::efa
