#include "client/src/session.h"

#include <unistd.h>

#include <cerrno>

#include "client/src/digest.h"
#include "client/src/failure.h"
#include "client/src/gpu_memory.h"

namespace mkernel::client {
namespace {

/// An active session rings at its next put when its last bell is this long ago (nanoseconds): the daemon may
/// by then take a session for idle that says it is active but writes nothing.
constexpr std::int64_t kBellInterval = 1'000'000'000;

Status check_options(const SessionOptions& options) {
  if (options.name.size() >= abi::kNameBytes) {
    return {StatusCode::kInvalidArgument, "session name '" + options.name + "' has " +
                                              std::to_string(options.name.size()) + " bytes, allowed are " +
                                              std::to_string(abi::kNameBytes - 1)};
  }
  if (options.weight < 1 || options.weight > 64) {
    return {StatusCode::kInvalidArgument,
            "session weight " + std::to_string(options.weight) + " is not 1..64"};
  }
  if (options.timeout.count() <= 0) {
    return {StatusCode::kInvalidArgument,
            "session timeout " + std::to_string(options.timeout.count()) + " ms"};
  }
  return {};
}

/// A name for a session that was given none: that of the program. Bytes that daemons refuse, which take
/// printable ASCII alone, become '?', a long name is cut, and a name that was changed so ends with a digest
/// of the whole.
std::string name_of_program() {
  const std::string_view whole = ::program_invocation_short_name;
  if (whole.empty()) return "pid " + std::to_string(::getpid());
  std::string name(whole);
  for (char& c : name) c = c >= ' ' && c <= '~' ? c : '?';
  if (name == whole && name.size() < abi::kNameBytes) return name;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string digest = "~";
  for (std::uint64_t rest = digest_of(whole), i = 0; i < 8; ++i, rest >>= 4U) digest += kDigits[rest & 15U];
  return name.substr(0, abi::kNameBytes - 1 - digest.size()) + digest;
}

std::int64_t now_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

}  // namespace

SessionCore::SessionCore(const SessionOptions& options)
    : timeout_(options.timeout), device_(options.device) {}

Result<std::shared_ptr<SessionCore>> SessionCore::connect(const SessionOptions& options) {
  MK_RETURN_IF_ERROR(check_options(options));
  auto socket = dial(options.socket, Clock::now() + options.timeout);
  if (!socket.ok()) return socket.status();
  const std::shared_ptr<SessionCore> core = shared_at_home(new SessionCore(options));
  auto connection = Connection::open(std::move(*socket), "daemon at " + options.socket,
                                     [self = core.get()](const Status& why) { self->lost(why); });
  if (!connection.ok()) return connection.status();
  core->connection_ = std::move(*connection);
  MK_RETURN_IF_ERROR(core->hello(options));
  return core;
}

Result<int> SessionCore::gpu() const {
  if (device_ >= 0) return device_;
  return Status(StatusCode::kFailedPrecondition, "needs a GPU; the session has SessionOptions::device = " +
                                                     std::to_string(device_) + " (host memory only)");
}

Status SessionCore::pin_segment() {
  const MutexLock lock(gpu_mutex_);
  if (pinned_ != nullptr) return {};
  auto pinned = pin_for_gpu(device_, segment_.data(), segment_.bytes());
  if (pinned.ok()) pinned_ = std::move(*pinned);
  return pinned.status();
}

Result<std::shared_ptr<MemorySource>> SessionCore::gpu_memory() {
  MK_RETURN_IF_ERROR(gpu().status());
  const MutexLock lock(gpu_mutex_);
  if (gpu_ != nullptr) return gpu_;
  auto opened = open_gpu_memory(device_);
  if (opened.ok()) gpu_ = *opened;
  return opened;
}

Status SessionCore::hello(const SessionOptions& options) {
  abi::Hello hello{};
  ipc::copy_text(hello.client_name, options.name.empty() ? name_of_program() : options.name);
  hello.device = options.device;
  hello.pci_address = gpu_pci_address(options.device);
  hello.weight = options.weight;
  abi::HelloReply reply;
  std::vector<ipc::UniqueFd> fds;
  MK_RETURN_IF_ERROR(
      connection_->request(abi::MessageType::kHello, hello, reply, request_deadline(), {}, &fds));
  id_ = reply.session_id;
  max_lanes_ = reply.max_lanes;
  node_name_ = ipc::text_of(reply.node_name);
  connection_->name_daemon("daemon of node " + node_name_);
  return adopt_segment(reply, std::move(fds)).with_context("session segment of node " + node_name_);
}

Status SessionCore::adopt_segment(const abi::HelloReply& reply, std::vector<ipc::UniqueFd> fds) {
  if (reply.ring_count < 1 || reply.ring_count > abi::kMaxRings || fds.size() != 1 + reply.ring_count) {
    return {StatusCode::kInternal, std::to_string(reply.ring_count) + " rings announced, " +
                                       std::to_string(fds.size()) + " fds received"};
  }
  if (reply.segment_bytes < sizeof(abi::SessionSegment)) {
    return {StatusCode::kInternal, std::to_string(reply.segment_bytes) + " bytes are too few"};
  }
  MK_RETURN_IF_ERROR(ipc::check_shared_memory(fds[0].get(), 0, reply.segment_bytes));
  auto mapping = ipc::Mapping::map(fds[0].get(), 0, reply.segment_bytes);
  if (!mapping.ok()) return mapping.status();
  const auto* header = mapping->at<abi::SessionSegment>(0);
  abi::SessionSegment wanted{};
  if (header->log2_slots > 30 ||
      abi::layout_session(wanted, reply.ring_count, header->log2_slots) > reply.segment_bytes ||
      header->magic != wanted.magic || header->version != wanted.version ||
      header->ring_count != wanted.ring_count || header->slots_offset != wanted.slots_offset) {
    return {StatusCode::kInternal, "its layout is not that of version " + std::to_string(abi::kVersion)};
  }
  doorbells_.assign(std::make_move_iterator(fds.begin() + 1), std::make_move_iterator(fds.end()));
  const MutexLock lock(watched_mutex_);
  segment_ = std::move(*mapping);
  adopted_ = true;
  if (!lost_.ok()) raise_failure(segment()->failure, segment()->abort, -1, node_name_, lost_);
  return {};
}

Status SessionCore::status() const {
  return connection_->status();
}

std::vector<kernels::RingView> SessionCore::rings() {
  std::vector<kernels::RingView> rings(doorbells_.size());
  abi::SessionSegment* header = segment();
  for (std::uint32_t r = 0; r < rings.size(); ++r) {
    rings[r] = {.slots = segment_.at<abi::WorkSlot>(
                    abi::ring_offset(header->ring_count, header->log2_slots, abi::RingWriter::kThreads, r)),
                .log2_slots = header->log2_slots,
                .tail = &header->head(abi::RingWriter::kThreads, r).tail,
                .head = &heads_[r]};
  }
  return rings;
}

Result<std::shared_ptr<kernels::RingsOnDevice>> SessionCore::rings_on_gpu() {
  MK_RETURN_IF_ERROR(pin_segment());
  const MutexLock lock(gpu_mutex_);
  if (rings_on_gpu_ != nullptr) return rings_on_gpu_;
  auto made = make_rings_on_gpu(device_, *segment());
  if (made.ok()) rings_on_gpu_ = *made;
  return made;
}

void SessionCore::begin_activity() {
  std::atomic_ref(segment()->active).fetch_add(1);
  ring_doorbells();
}

void SessionCore::end_activity() {
  // The last bell makes the proxies look once more: a put that was published while the session was active
  // rang none.
  if (std::atomic_ref(segment()->active).fetch_sub(1) == 1) ring_doorbells();
}

void SessionCore::count_launch() {
  std::atomic_ref(segment()->launches).fetch_add(1, std::memory_order_relaxed);
}

void SessionCore::count_fallback() {
  std::atomic_ref(segment()->fallbacks).fetch_add(1, std::memory_order_relaxed);
}

void SessionCore::published(std::uint32_t ring) {
  // Orders the slot before the read of `active`. If that read still sees an activity, the slot is visible
  // before the activity's last bell, so the proxy that this bell wakes finds it. Pairs with the
  // read-modify-write in end_activity().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const bool polled = std::atomic_ref(segment()->active).load() != 0;
  const std::int64_t since_bell = now_nanoseconds() - last_bell_[ring].load(std::memory_order_relaxed);
  if (!polled || since_bell > kBellInterval) ring_doorbell(ring);
}

void SessionCore::ring_doorbell(std::uint32_t ring) {
  last_bell_[ring].store(now_nanoseconds(), std::memory_order_relaxed);
  const std::uint64_t one = 1;
  // Only a full counter refuses the write, and then the proxy has a bell to see anyway.
  [[maybe_unused]] const ssize_t written = ::write(doorbells_[ring].get(), &one, sizeof(one));
}

void SessionCore::ring_doorbells() {
  for (std::uint32_t ring = 0; ring < doorbells_.size(); ++ring) ring_doorbell(ring);
}

void SessionCore::keep(std::shared_ptr<const ipc::WriteHold> memfd) {
  const MutexLock lock(kept_mutex_);
  kept_.insert(std::move(memfd));
}

void SessionCore::watch(abi::GroupSegment* group) {
  const MutexLock lock(watched_mutex_);
  watched_.insert(group);
  if (!lost_.ok()) raise_failure(*group, node_name_, lost_);
}

void SessionCore::unwatch(abi::GroupSegment* group) {
  const MutexLock lock(watched_mutex_);
  watched_.erase(group);
}

void SessionCore::lost(const Status& why) {
  const MutexLock lock(watched_mutex_);
  lost_ = why;
  if (adopted_) raise_failure(segment()->failure, segment()->abort, -1, node_name_, why);
  for (abi::GroupSegment* group : watched_) raise_failure(*group, node_name_, why);
}

}  // namespace mkernel::client
