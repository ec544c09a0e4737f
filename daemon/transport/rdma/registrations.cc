#include "daemon/transport/rdma/registrations.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace mkernel::transport::rdma {
namespace {

constexpr int kTarget = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

std::string memlock_text() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  return "; the limit of locked memory is " + std::to_string(limit.rlim_cur) +
         " bytes: a service needs LimitMEMLOCK=infinity in its unit";
}

}  // namespace

Registrations::Registrations(const VerbsLibrary& verbs, ibv_pd* pd, std::string device,
                             std::uint64_t chunk_bytes)
    : verbs_(verbs), pd_(pd), device_(std::move(device)), chunk_bytes_(chunk_bytes) {}

Result<Object<ibv_mr>> Registrations::register_host(std::byte* at, std::uint64_t bytes, int access) const {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  auto made = own(verbs_.reg_mr(pd_, at, bytes, address, static_cast<unsigned>(access)), verbs_.dereg_mr);
  if (made != nullptr) return made;
  const int error = errno;
  const Status failed =
      call_failed(device_, "registering " + std::to_string(bytes) + " bytes of host memory", error);
  return Status(failed.code(), failed.text() + (error == ENOMEM ? memlock_text() : ""));
}

/// The base must lie on a page of the dma-buf: it is moved down, and the address with it.
Result<Object<ibv_mr>> Registrations::register_dma_buf(const memory::Region& region, std::uint64_t at,
                                                       std::uint64_t bytes, int access) const {
  if (!region.dma_buf.valid()) {
    return Status(StatusCode::kFailedPrecondition,
                  device_ + ": GPU memory without a dma-buf cannot be registered: " +
                      (region.no_dma_buf.empty() ? "its client gave none" : region.no_dma_buf));
  }
  const std::uint64_t begin = region.dma_buf_offset + at;
  const std::uint64_t before = begin % static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  auto made = own(
      verbs_.reg_dmabuf_mr(pd_, begin - before, bytes + before, begin - before, region.dma_buf.get(), access),
      verbs_.dereg_mr);
  if (made != nullptr) return made;
  return call_failed(device_, "registering " + std::to_string(bytes) + " bytes of GPU memory by dma-buf",
                     errno);
}

Result<Registration> Registrations::register_region(const memory::Region& region, int access) const {
  Registration made;
  for (std::uint64_t at = 0; at < region.bytes; at += chunk_bytes_) {
    const std::uint64_t bytes = std::min(chunk_bytes_, region.bytes - at);
    auto piece = region.on_gpu() && region.mapping.data() == nullptr
                     ? register_dma_buf(region, at, bytes, access)
                     : register_host(region.host(at), bytes, access);
    if (!piece.ok()) return piece.status();
    const std::uint64_t address = region.mapping.data() == nullptr
                                      ? region.dma_buf_offset + at
                                      : reinterpret_cast<std::uintptr_t>(region.host(at));
    made.chunks.push_back({address, (*piece)->lkey, (*piece)->rkey});
    made.regions.push_back(std::move(*piece));
  }
  return made;
}

Result<const Registration*> Registrations::source(const memory::Region& region) {
  if (const auto found = sources_.find(&region); found != sources_.end()) return &found->second;
  auto made = register_region(region, 0);
  if (!made.ok()) return made.status();
  return &sources_.emplace(&region, std::move(*made)).first->second;
}

Result<const Registration*> Registrations::target(const memory::Region& region) {
  auto found = targets_.find(&region);
  if (found == targets_.end()) {
    auto made = register_region(region, kTarget | IBV_ACCESS_RELAXED_ORDERING);
    if (!made.ok()) return made.status();
    found = targets_.emplace(&region, Counted{std::move(*made)}).first;
  }
  ++found->second.uses;
  return &found->second.registration;
}

const Registration* Registrations::granted(const memory::Region& region) const {
  const auto found = targets_.find(&region);
  return found == targets_.end() ? nullptr : &found->second.registration;
}

void Registrations::release(const memory::Region& region) {
  const auto found = targets_.find(&region);
  if (found == targets_.end() || --found->second.uses > 0) return;
  targets_.erase(found);
  ++generation_;
}

Result<std::uint32_t> Registrations::words(std::span<std::byte> words) {
  auto found = words_.find(words.data());
  if (found == words_.end()) {
    auto made = register_host(words.data(), words.size(), kTarget);
    if (!made.ok()) return made.status();
    Counted counted;
    counted.registration.regions.push_back(std::move(*made));
    found = words_.emplace(words.data(), std::move(counted)).first;
  }
  ++found->second.uses;
  return found->second.registration.regions.front()->rkey;
}

void Registrations::release_words(std::span<std::byte> words) {
  const auto found = words_.find(words.data());
  if (found != words_.end() && --found->second.uses == 0) words_.erase(found);
}

void Registrations::forget(const memory::Region& region) {
  if (sources_.erase(&region) + targets_.erase(&region) > 0) ++generation_;
}

}  // namespace mkernel::transport::rdma
