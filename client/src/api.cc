// The public handles: each call goes to the shared state behind it.
#include <algorithm>
#include <string>

#include "client/src/buffer.h"
#include "client/src/device_endpoint.h"
#include "client/src/gpu_memory.h"
#include "client/src/group.h"
#include "client/src/guard.h"
#include "client/src/operation.h"
#include "client/src/session.h"
#include "mkernel/client.h"

namespace mkernel {

static_assert(kMaxExchangeBytes <= sizeof(client::Ballot::data));

const char* version() {
  return MKERNEL_VERSION;
}

Session::Session(std::shared_ptr<client::SessionCore> core) : core_(std::move(core)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Result<Session> Session::connect(const SessionOptions& options) {
  return client::without_exceptions([&]() -> Result<Session> {
    auto core = client::SessionCore::connect(options);
    if (!core.ok()) return core.status();
    return Session(std::move(*core));
  });
}

Result<Group> Session::join(const GroupOptions& options) {
  return client::call(core_->home(), [&]() -> Result<Group> {
    auto core = client::GroupCore::join(core_, options);
    if (!core.ok()) return core.status();
    return Group(std::move(*core));
  });
}

std::uint64_t Session::id() const {
  return core_->id();
}
const std::string& Session::node_name() const {
  return core_->node_name();
}
Status Session::status() const {
  return client::call(core_->home(), [&] { return core_->status(); });
}

Status Session::count_fallback() {
  return client::call(core_->home(), [&]() -> Status {
    core_->count_fallback();
    return {};
  });
}

Group::Group(std::shared_ptr<client::GroupCore> core) : core_(std::move(core)) {}
Group::Group(Group&&) noexcept = default;
Group& Group::operator=(Group&&) noexcept = default;
Group::~Group() = default;

std::uint32_t Group::rank() const {
  return core_->view().rank();
}
std::uint32_t Group::world_size() const {
  return core_->view().world_size();
}
std::uint32_t Group::node_count() const {
  return core_->view().segment->node_count;
}
std::uint32_t Group::lanes() const {
  return core_->view().segment->lanes;
}
const std::string& Group::name() const {
  return core_->name();
}
RankInfo Group::rank_info(std::uint32_t rank) const {
  if (rank >= world_size()) return {RankInfo::kNowhere, RankInfo::kNowhere, {}};
  const abi::Member& member = core_->view().member(rank);
  return {member.node, member.local_rank, core_->node_of(rank)};
}
Status Group::status() const {
  return client::call(core_->home(), [&] { return core_->status(); });
}
Status Group::reject_launch(const Status& why) {
  return client::call(core_->home(), [&] { return core_->reject_launch(why); });
}
Status Group::leave() {
  return client::call(core_->home(), [&] { return core_->leave(); });
}
Status Group::fail(const Status& why) {
  return client::call(core_->home(), [&] { return core_->fail(why); });
}
Status Group::barrier() {
  return client::call(core_->home(), [&] { return core_->vote(client::barrier_ballot()).status(); });
}

Result<std::vector<std::vector<std::byte>>> Group::exchange(std::span<const std::byte> mine) {
  return client::call(core_->home(), [&]() -> Result<std::vector<std::vector<std::byte>>> {
    if (mine.size() > kMaxExchangeBytes) {
      return Status(StatusCode::kInvalidArgument, "exchange of " + std::to_string(mine.size()) +
                                                      " bytes, the limit is " +
                                                      std::to_string(kMaxExchangeBytes));
    }
    const auto ballots = core_->vote(client::exchange_ballot(mine));
    if (!ballots.ok()) return ballots.status();
    std::vector<std::vector<std::byte>> all;
    for (const client::Ballot& ballot : ballots.value()) {
      const auto bytes =
          std::as_bytes(std::span(ballot.data)).first(std::min<std::size_t>(ballot.bytes, kMaxExchangeBytes));
      all.emplace_back(bytes.begin(), bytes.end());
    }
    return all;
  });
}

Result<SymmetricBuffer> Group::symmetric(std::uint64_t bytes) {
  return client::call(core_->home(), [&]() -> Result<SymmetricBuffer> {
    const Status mine =
        bytes > 0 ? Status() : Status(StatusCode::kInvalidArgument, "symmetric buffer of 0 bytes");
    MK_RETURN_IF_ERROR(core_->agree("symmetric buffer of " + std::to_string(bytes) + " bytes", mine));
    auto state = client::open_symmetric(core_, client::host_memory(), bytes,
                                        [](const auto&) { return std::string("symmetric buffer"); });
    if (!state.ok()) return state.status();
    return SymmetricBuffer(std::move(*state));
  });
}

Result<SymmetricBuffer> Group::symmetric_gpu(std::uint64_t bytes) {
  return client::call(core_->home(), [&]() -> Result<SymmetricBuffer> {
    const std::string text = "symmetric buffer of " + std::to_string(bytes) + " bytes of GPU memory";
    Status mine;
    if (bytes == 0 || bytes > kMaxRegionBytes) {
      mine = {StatusCode::kInvalidArgument, text + ", allowed are 1 to " + std::to_string(kMaxRegionBytes)};
    }
    // Whose GPU cannot be had takes part too: every rank learns who and why.
    const auto gpu = mine.ok() ? core_->session().gpu_memory() : mine;
    MK_RETURN_IF_ERROR(core_->agree(text, gpu.status()));
    auto state = client::open_symmetric(core_, *gpu.value(), bytes, [&](const auto&) { return text; });
    if (!state.ok()) return state.status();
    return SymmetricBuffer(std::move(*state));
  });
}

Result<SymmetricBuffer> Group::register_gpu(void* data, std::uint64_t bytes) {
  return client::call(core_->home(), [&]() -> Result<SymmetricBuffer> {
    const std::string text = "registration of " + std::to_string(bytes) + " bytes of GPU memory";
    Status mine = core_->session().gpu().status();
    if (bytes == 0 || bytes > kMaxRegionBytes) {
      mine = {StatusCode::kInvalidArgument, text + ", allowed are 1 to " + std::to_string(kMaxRegionBytes)};
    }
    const auto memory = mine.ok() ? client::open_gpu_pointer(core_->session().gpu().value(), data) : mine;
    MK_RETURN_IF_ERROR(core_->agree(text, memory.status()));
    auto state = client::open_symmetric(core_, *memory.value(), bytes, [&](const auto&) { return text; });
    if (!state.ok()) return state.status();
    return SymmetricBuffer(std::move(*state));
  });
}

Result<HostBuffer> Group::allocate(std::uint64_t bytes) {
  return client::call(core_->home(), [&]() -> Result<HostBuffer> {
    const auto memory = ipc::create_shared_memory("mkernel:" + core_->name(), bytes);
    if (!memory.ok()) return memory.status();
    auto state = client::open_host(core_, client::Memfd::kOurs, memory.value().get(), 0, bytes);
    if (!state.ok()) return state.status();
    return HostBuffer(std::move(*state));
  });
}

Result<HostBuffer> Group::register_memory(int memfd, std::uint64_t offset, std::uint64_t bytes) {
  return client::call(core_->home(), [&]() -> Result<HostBuffer> {
    auto state = client::open_host(core_, client::Memfd::kUsers, memfd, offset, bytes);
    if (!state.ok()) return state.status();
    return HostBuffer(std::move(*state));
  });
}

Result<std::uint64_t> Group::put(std::uint32_t target, std::uint32_t lane, const SymmetricBuffer& source,
                                 std::uint64_t offset, std::uint32_t remote_region,
                                 std::uint64_t remote_offset, std::uint64_t bytes,
                                 std::chrono::milliseconds limit) {
  return client::call(core_->home(), [&] {
    return core_->put({target, remote_region, remote_offset}, lane, {source.region(), source.bytes()}, offset,
                      bytes, limit);
  });
}
Result<std::uint64_t> Group::put(std::uint32_t target, std::uint32_t lane, const HostBuffer& source,
                                 std::uint64_t offset, std::uint32_t remote_region,
                                 std::uint64_t remote_offset, std::uint64_t bytes,
                                 std::chrono::milliseconds limit) {
  return client::call(core_->home(), [&] {
    return core_->put({target, remote_region, remote_offset}, lane, {source.region(), source.bytes()}, offset,
                      bytes, limit);
  });
}
Result<std::uint64_t> Group::signal(std::uint32_t target, std::uint32_t lane,
                                    std::chrono::milliseconds limit) {
  return client::call(core_->home(), [&] { return core_->put({target, 0, 0}, lane, {}, 0, 0, limit); });
}
std::uint64_t Group::puts(std::uint32_t target, std::uint32_t lane) const {
  return core_->home().here() ? core_->puts(target, lane) : 0;
}
Status Group::wait_arrival(std::uint32_t source, std::uint32_t lane, std::uint64_t count,
                           std::chrono::milliseconds deadline) {
  return client::call(core_->home(), [&] { return core_->wait_arrival(source, lane, count, deadline); });
}
Status Group::wait_completed(std::uint32_t target, std::uint32_t lane, std::uint64_t count,
                             std::chrono::milliseconds deadline) {
  return client::call(core_->home(), [&] { return core_->wait_completed(target, lane, count, deadline); });
}
std::uint64_t Group::arrivals(std::uint32_t source, std::uint32_t lane) const {
  return core_->home().here() ? core_->arrivals(source, lane) : 0;
}
Result<std::uint32_t> Group::reserve_lanes(std::uint32_t count) {
  return client::call(core_->home(), [&] { return core_->reserve_lanes(count); });
}
Activity Group::keep_active() {
  return Activity(core_->shared_session());
}
Result<DeviceEndpoint> Group::device_endpoint(const DeviceEndpointOptions& options) {
  return client::call(core_->home(), [&]() -> Result<DeviceEndpoint> {
    auto state = client::DeviceEndpointState::create(core_, options);
    if (!state.ok()) return state.status();
    return DeviceEndpoint(std::move(*state));
  });
}

DeviceEndpoint::DeviceEndpoint(std::unique_ptr<client::DeviceEndpointState> state)
    : state_(std::move(state)) {}
DeviceEndpoint::DeviceEndpoint(DeviceEndpoint&&) noexcept = default;
DeviceEndpoint& DeviceEndpoint::operator=(DeviceEndpoint&& other) noexcept {
  client::end_at_home(state_);
  state_ = std::move(other.state_);
  return *this;
}
DeviceEndpoint::~DeviceEndpoint() {
  client::end_at_home(state_);
}
const device::Endpoint& DeviceEndpoint::view() const {
  return state_->endpoint();
}
Result<device::Peers> DeviceEndpoint::peers(const SymmetricBuffer& buffer) {
  return client::call(state_->home(), [&] { return state_->peers(buffer.state_->view); });
}
Status DeviceEndpoint::status() {
  return client::call(state_->home(), [&] { return state_->status(); });
}

SymmetricBuffer::SymmetricBuffer(std::unique_ptr<client::BufferState> state) : state_(std::move(state)) {}
SymmetricBuffer::SymmetricBuffer(SymmetricBuffer&&) noexcept = default;
SymmetricBuffer& SymmetricBuffer::operator=(SymmetricBuffer&& other) noexcept {
  client::end_at_home(state_);
  state_ = std::move(other.state_);
  return *this;
}
SymmetricBuffer::~SymmetricBuffer() {
  client::end_at_home(state_);
}
std::byte* SymmetricBuffer::data() const {
  return state_->mine.data;
}
std::uint64_t SymmetricBuffer::bytes() const {
  return state_->bytes;
}
std::uint32_t SymmetricBuffer::region() const {
  return state_->region;
}
std::byte* SymmetricBuffer::peer(std::uint32_t rank) const {
  const kernels::GroupView& group = state_->group->view();
  if (rank >= group.world_size()) return nullptr;
  const abi::Member& member = group.member(rank);
  return member.node == group.member(group.rank()).node ? state_->view.node[member.local_rank] : nullptr;
}

HostBuffer::HostBuffer(std::unique_ptr<client::BufferState> state) : state_(std::move(state)) {}
HostBuffer::HostBuffer(HostBuffer&&) noexcept = default;
HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  client::end_at_home(state_);
  state_ = std::move(other.state_);
  return *this;
}
HostBuffer::~HostBuffer() {
  client::end_at_home(state_);
}
std::byte* HostBuffer::data() const {
  return state_->mine.data;
}
std::uint64_t HostBuffer::bytes() const {
  return state_->bytes;
}
std::uint32_t HostBuffer::region() const {
  return state_->region;
}

Activity::Activity(std::shared_ptr<client::SessionCore> core) : core_(std::move(core)) {
  if (core_->home().here()) core_->begin_activity();
}
Activity::Activity(Activity&&) noexcept = default;
Activity& Activity::operator=(Activity&& other) noexcept {
  std::swap(core_, other.core_);
  return *this;
}
Activity::~Activity() {
  if (core_ != nullptr && core_->home().here()) core_->end_activity();
}

}  // namespace mkernel
