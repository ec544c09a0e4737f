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

Result<Object<ibv_mr>> register_host(const Domain& domain, std::byte* at, std::uint64_t bytes, int access) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  auto made = own(domain.verbs->reg_mr(domain.pd.get(), at, bytes, address, static_cast<unsigned>(access)),
                  domain.verbs->dereg_mr);
  if (made != nullptr) return made;
  const int error = errno;
  const Status failed =
      call_failed(domain.device, "registering " + std::to_string(bytes) + " bytes of host memory", error);
  return Status(failed.code(), failed.text() + (error == ENOMEM ? memlock_text() : ""));
}

/// The base must lie on a page of the dma-buf: it is moved down, and the address with it.
Result<Object<ibv_mr>> register_dma_buf(const Domain& domain, const memory::Region& region, std::uint64_t at,
                                        std::uint64_t bytes, int access) {
  if (!region.dma_buf.valid()) {
    return Status(StatusCode::kFailedPrecondition,
                  domain.device + ": GPU memory without a dma-buf cannot be registered: " +
                      (region.no_dma_buf.empty() ? "its client gave none" : region.no_dma_buf));
  }
  const std::uint64_t begin = region.dma_buf_offset + at;
  const std::uint64_t before = begin % static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  auto made = own(domain.verbs->reg_dmabuf_mr(domain.pd.get(), begin - before, bytes + before, begin - before,
                                              region.dma_buf.get(), access),
                  domain.verbs->dereg_mr);
  if (made != nullptr) return made;
  return call_failed(domain.device,
                     "registering " + std::to_string(bytes) + " bytes of GPU memory by dma-buf", errno);
}

Status register_piece(const Domain& domain, const memory::Region& region, std::uint64_t at, int access,
                      Registration& made) {
  const std::uint64_t bytes = std::min(domain.chunk_bytes, region.bytes - at);
  auto piece = region.on_gpu() && region.mapping.data() == nullptr
                   ? register_dma_buf(domain, region, at, bytes, access)
                   : register_host(domain, region.host(at), bytes, access);
  if (!piece.ok()) return piece.status();
  const std::uint64_t address = region.mapping.data() == nullptr
                                    ? region.dma_buf_offset + at
                                    : reinterpret_cast<std::uintptr_t>(region.host(at));
  made.chunks.push_back({address, (*piece)->lkey, (*piece)->rkey});
  made.regions.push_back(std::move(*piece));
  return {};
}

}  // namespace

Registrations::Registrations(Domain domain) : domain_(std::move(domain)) {}

/// All of it goes here and now: whoever has a target's key may still write, and a device that has been given
/// a put may still read its source. What the registrar is giving back is waited for, and what it has not
/// begun to give back goes here.
Registrations::~Registrations() {
  for (const auto& [region, job] : leaving_) {
    const MutexLock held(job->giving_back);
    job->made = {};
  }
  for (const auto& [region, job] : sources_) job->dropped = true;
  for (const auto& [region, target] : targets_) target.job->dropped = true;
}

void Registrations::make(Job& job, const memory::Region& region) {
  for (std::uint64_t at = 0; at < region.bytes && job.status.ok() && !job.dropped;
       at += job.domain.chunk_bytes) {
    job.status = register_piece(job.domain, region, at, job.access, job.made);
  }
  if (!job.status.ok() || job.dropped) job.made = {};
}

std::shared_ptr<Registrations::Job> Registrations::begin(const memory::Region& region, int access) const {
  auto job = std::make_shared<Job>();
  job->domain = domain_;
  job->access = access;
  if (domain_.registrar != nullptr && region.bytes > kAtOnceBytes) {
    job->owner = region.weak_from_this().lock();
  }
  if (job->owner == nullptr) {
    make(*job, region);
    job->state = Job::State::kReady;
    return job;
  }
  domain_.registrar->post([job] { make(*job, *job->owner); },
                          [job] {
                            job->state = Job::State::kReady;
                            if (job->dropped) leave(job);  // after make() had looked for the last time
                          });
  return job;
}

/// On the registrar's thread, where it was made there.
void Registrations::leave(const std::shared_ptr<Job>& job) {
  if (job->owner == nullptr) {
    job->made = {};
    job->state = Job::State::kGone;
    return;
  }
  job->domain.registrar->post(
      [job] {
        {
          const MutexLock held(job->giving_back);
          job->made = {};
        }
        job->owner.reset();  // the last reference frees the memory, which takes long too
      },
      [job] { job->state = Job::State::kGone; });
}

/// Nobody has its keys.
void Registrations::drop(const std::shared_ptr<Job>& job) {
  job->dropped = true;
  if (job->state == Job::State::kReady) leave(job);
  ++generation_;
}

Result<const Registration*> Registrations::source(const memory::Region& region) {
  auto found = sources_.find(&region);
  if (found == sources_.end()) found = sources_.emplace(&region, begin(region, 0)).first;
  const Job& job = *found->second;
  if (job.state == Job::State::kMaking) return static_cast<const Registration*>(nullptr);
  if (job.status.ok()) return &job.made;
  const Status failed = job.status;
  sources_.erase(found);
  return failed;
}

Result<const Registration*> Registrations::target(const memory::Region& region) {
  auto found = targets_.find(&region);
  if (found == targets_.end()) {
    found = targets_.emplace(&region, Counted{begin(region, kTarget | IBV_ACCESS_RELAXED_ORDERING)}).first;
  }
  const Job& job = *found->second.job;
  if (job.state == Job::State::kMaking) return static_cast<const Registration*>(nullptr);
  if (job.status.ok()) {
    ++found->second.uses;
    return &job.made;
  }
  const Status failed = job.status;
  targets_.erase(found);
  return failed;
}

const Registration* Registrations::granted(const memory::Region& region) const {
  const auto found = targets_.find(&region);
  return found == targets_.end() || found->second.uses == 0 ? nullptr : &found->second.job->made;
}

void Registrations::release(const memory::Region& region) {
  const auto found = targets_.find(&region);
  if (found == targets_.end() || found->second.uses == 0 || --found->second.uses > 0) return;
  std::erase_if(leaving_, [](const auto& entry) { return entry.second->state == Job::State::kGone; });
  leave(found->second.job);
  if (found->second.job->state != Job::State::kGone) leaving_.emplace_back(&region, found->second.job);
  targets_.erase(found);
  ++generation_;
}

void Registrations::release_now(const memory::Region& region) {
  const auto found = targets_.find(&region);
  if (found == targets_.end() || found->second.uses == 0 || --found->second.uses > 0) return;
  targets_.erase(found);
  ++generation_;
}

bool Registrations::leaving(const memory::Region& region) const {
  return std::any_of(leaving_.begin(), leaving_.end(), [&](const auto& entry) {
    return entry.first == &region && entry.second->state != Job::State::kGone;
  });
}

bool Registrations::any_leaving() const {
  return std::any_of(leaving_.begin(), leaving_.end(),
                     [](const auto& entry) { return entry.second->state != Job::State::kGone; });
}

Result<std::uint32_t> Registrations::words(std::span<std::byte> words) {
  auto found = words_.find(words.data());
  if (found == words_.end()) {
    auto made = register_host(domain_, words.data(), words.size(), kTarget);
    if (!made.ok()) return made.status();
    found = words_.emplace(words.data(), Words{std::move(*made)}).first;
  }
  ++found->second.uses;
  return found->second.region->rkey;
}

void Registrations::release_words(std::span<std::byte> words) {
  const auto found = words_.find(words.data());
  if (found != words_.end() && --found->second.uses == 0) words_.erase(found);
}

void Registrations::forget(const memory::Region& region) {
  if (const auto found = sources_.find(&region); found != sources_.end()) {
    drop(found->second);
    sources_.erase(found);
  }
  const auto found = targets_.find(&region);
  if (found == targets_.end()) return;
  if (found->second.uses == 0) {
    drop(found->second.job);
  } else {
    ++generation_;
  }
  targets_.erase(found);
}

}  // namespace mkernel::transport::rdma
