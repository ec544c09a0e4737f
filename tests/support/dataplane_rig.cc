#include "tests/support/dataplane_rig.h"

#include <unistd.h>

#include <future>
#include <stdexcept>

namespace mkernel::test {
namespace {

template <typename T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().to_string());
  return std::move(result).value();
}

ipc::Mapping map_new(const std::string& label, std::uint64_t bytes) {
  const ipc::UniqueFd fd = must(ipc::create_shared_memory(label, bytes));
  return must(ipc::Mapping::map(fd.get(), 0, bytes));
}

/// Runs `call(done)` and waits until `done` was called; false after a minute.
template <typename Call>
bool wait_done(Call&& call) {
  auto finished = std::make_shared<std::promise<void>>();
  auto future = finished->get_future();
  call([finished] { finished->set_value(); });
  return future.wait_for(std::chrono::minutes(1)) == std::future_status::ready;
}

/// Runs `call(done)` and returns what `done` was called with; kDeadlineExceeded after a minute.
template <typename Call>
Status wait_status(const std::string& what, Call&& call) {
  auto answer = std::make_shared<std::promise<Status>>();
  auto future = answer->get_future();
  call([answer](Status status) { answer->set_value(std::move(status)); });
  if (future.wait_for(std::chrono::minutes(1)) == std::future_status::ready) return future.get();
  return {StatusCode::kInternal, what + " never answered"};
}

}  // namespace

std::shared_ptr<dataplane::SessionPort> make_session(dataplane::SessionId id, std::uint32_t log2_slots,
                                                     std::uint32_t weight, std::uint32_t rings) {
  abi::SessionSegment layout{};
  const std::uint64_t bytes = abi::layout_session(layout, rings, log2_slots);
  auto port = std::make_shared<dataplane::SessionPort>();
  port->id = id;
  port->name = "client-" + std::to_string(id);
  port->weight = weight;
  port->segment = map_new("test-session", bytes);
  *port->header() = layout;
  for (std::uint32_t r = 0; r < rings; ++r) port->doorbell.push_back(must(ipc::create_event()));
  port->counters = std::vector<dataplane::Counters>(rings);
  return port;
}

std::shared_ptr<dataplane::GroupPort> make_group(dataplane::SessionId session, const GroupShape& shape) {
  const auto world_size = static_cast<std::uint32_t>(shape.ranks.size());
  abi::GroupSegment layout{};
  const std::uint64_t bytes =
      abi::layout_group(layout, world_size, shape.rank, shape.lanes, shape.region_capacity);
  auto port = std::make_shared<dataplane::GroupPort>();
  port->key = {session, shape.handle};
  port->name = "group-" + std::to_string(shape.handle);
  port->instance = shape.instance;
  port->rank = shape.rank;
  port->world_size = world_size;
  port->lanes = shape.lanes;
  port->region_capacity = shape.region_capacity;
  port->first_channel = shape.first_channel;
  for (const RankPlace& place : shape.ranks) {
    port->ranks.push_back({place.session != 0,
                           place.peer,
                           {place.session, shape.handle},
                           place.local_rank,
                           place.local_ranks,
                           place.rails});
  }
  port->segment = map_new("test-group", bytes);
  *port->header() = layout;
  port->channels.grow(std::size_t{world_size} * shape.lanes);
  return port;
}

std::shared_ptr<const memory::Region> make_region(std::uint64_t bytes) {
  static std::atomic<std::uint64_t> next_id{1};
  auto region = std::make_shared<memory::Region>();
  region->id = next_id.fetch_add(1);
  region->kind = abi::RegionKind::kHostMemory;
  region->fd = must(ipc::create_shared_memory("test-region", bytes));
  region->bytes = bytes;
  region->mapping = must(ipc::Mapping::map(region->fd.get(), 0, bytes));
  return region;
}

std::uint64_t arrivals(const dataplane::GroupPort& group, std::uint32_t source, std::uint32_t lane) {
  const auto* header = group.header();
  auto& word = group.segment.at<std::uint64_t>(header->arrivals_offset)[source * group.lanes + lane];
  return std::atomic_ref<std::uint64_t>(word).load(std::memory_order_acquire);
}

std::uint64_t completed(const dataplane::GroupPort& group, std::uint32_t target, std::uint32_t lane) {
  const auto* header = group.header();
  auto& word = group.segment.at<std::uint64_t>(header->completed_offset)[target * group.lanes + lane];
  return std::atomic_ref<std::uint64_t>(word).load(std::memory_order_acquire);
}

abi::WorkRequest put_request(std::uint32_t channel, std::uint32_t peer, std::uint32_t length,
                             std::uint64_t local_offset, std::uint64_t remote_offset,
                             std::uint16_t local_region, std::uint16_t remote_region) {
  return {static_cast<std::uint8_t>(abi::Opcode::kPut),
          channel,
          peer,
          length,
          local_region,
          remote_region,
          local_offset,
          remote_offset};
}

RingWriter::RingWriter(std::shared_ptr<dataplane::SessionPort> session, std::uint32_t ring,
                       abi::RingWriter writer)
    : session_(std::move(session)), ring_(ring), log2_slots_(session_->header()->log2_slots) {
  auto* header = session_->header();
  slots_ = session_->segment.at<abi::WorkSlot>(
      abi::ring_offset(header->ring_count, header->log2_slots, writer, ring));
  tail_ = &header->head(writer, ring).tail;
}

std::uint64_t RingWriter::tail() const {
  return std::atomic_ref<std::uint64_t>(*tail_).load(std::memory_order_acquire);
}

std::uint64_t RingWriter::claim() {
  const std::uint64_t position = head_.fetch_add(1, std::memory_order_relaxed);
  while (position >= tail() + slots()) sched_yield();
  return position;
}

void RingWriter::write(const abi::WorkRequest& request) {
  write_raw(abi::encode(request, 0));
}

void RingWriter::write_together(const std::vector<abi::WorkRequest>& requests) {
  std::vector<std::uint64_t> positions;
  for (std::size_t i = 0; i < requests.size(); ++i) positions.push_back(claim());
  for (std::size_t i = requests.size(); i-- > 0;) store(positions[i], abi::encode(requests[i], 0));
}

void RingWriter::write_raw(const abi::WorkSlot& slot) {
  store(claim(), slot);
}

void RingWriter::store(std::uint64_t position, const abi::WorkSlot& slot) {
  const std::uint64_t lap = abi::lap_bit(position, log2_slots_);
  abi::WorkSlot marked = slot;
  marked.word[0] = (slot.word[0] & ~abi::kLapBit) | lap;
  marked.word[3] = (slot.word[3] & ~abi::kLapBit) | lap;
  abi::store_slot(slots_[position & (slots() - 1)], marked);
}

void RingWriter::scribble(std::uint64_t position, const abi::WorkSlot& slot) {
  abi::store_slot(slots_[position & (slots() - 1)], slot);
}

void RingWriter::set_active(std::uint32_t active) {
  std::atomic_ref<std::uint32_t>(session_->header()->active).store(active, std::memory_order_release);
}

void RingWriter::ring_doorbell() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(session_->doorbell[ring_].get(), &one, sizeof(one));
}

void RecordingSink::session_failed(dataplane::SessionId session, const Status& why) {
  const std::lock_guard lock(mutex_);
  sessions_.emplace_back(session, why);
}

void RecordingSink::group_failed(const dataplane::GroupKey& group, std::int32_t culprit, const Status& why) {
  const std::lock_guard lock(mutex_);
  groups_.push_back({group, culprit, why});
}

void RecordingSink::peer_connected(std::uint32_t, transport::PeerId peer) {
  const std::lock_guard lock(mutex_);
  peers_.emplace_back(peer, Status{});
}

void RecordingSink::peer_failed(transport::PeerId peer, const Status& why) {
  const std::lock_guard lock(mutex_);
  peers_.emplace_back(peer, why);
}

void RecordingSink::path_changed(std::uint32_t rail, transport::PeerId peer, const std::string& path,
                                 const Status& lost) {
  const std::lock_guard lock(mutex_);
  paths_.push_back("rail " + std::to_string(rail) + " to peer " + std::to_string(peer) + ": " + path +
                   (lost.ok() ? "" : " lost: " + lost.text()));
}

void RecordingSink::message_to_peer(std::uint32_t rail, transport::PeerId peer,
                                    std::vector<std::byte> message) {
  const std::lock_guard lock(mutex_);
  messages_.push_back("rail " + std::to_string(rail) + " to peer " + std::to_string(peer) + ": " +
                      std::string(reinterpret_cast<const char*>(message.data()), message.size()));
}

std::vector<std::string> RecordingSink::messages() const {
  const std::lock_guard lock(mutex_);
  return messages_;
}

std::vector<std::string> RecordingSink::paths() const {
  const std::lock_guard lock(mutex_);
  return paths_;
}

std::vector<std::pair<dataplane::SessionId, Status>> RecordingSink::sessions() const {
  const std::lock_guard lock(mutex_);
  return sessions_;
}

std::vector<RecordingSink::GroupEnd> RecordingSink::groups() const {
  const std::lock_guard lock(mutex_);
  return groups_;
}

std::vector<std::pair<transport::PeerId, Status>> RecordingSink::peers() const {
  const std::lock_guard lock(mutex_);
  return peers_;
}

Status open_group(dataplane::Proxy& proxy, std::shared_ptr<dataplane::GroupPort> group) {
  return wait_status("open_group", [&](auto done) { proxy.open_group(std::move(group), std::move(done)); });
}

void set_region(dataplane::Proxy& proxy, const dataplane::GroupKey& group, std::uint32_t index,
                std::shared_ptr<const memory::Region> region) {
  if (!wait_done([&](auto done) { proxy.set_region(group, index, std::move(region), done); })) {
    throw std::runtime_error("set_region never answered");
  }
}

Status clear_region(dataplane::Proxy& proxy, const dataplane::GroupKey& group, std::uint32_t index,
                    std::chrono::milliseconds limit) {
  return wait_status("clear_region",
                     [&](auto done) { proxy.clear_region(group, index, limit, std::move(done)); });
}

bool close_group(dataplane::Proxy& proxy, const dataplane::GroupKey& group, std::chrono::milliseconds limit) {
  return wait_done([&](auto done) { proxy.close_group(group, limit, done); });
}

bool detach_session(dataplane::Proxy& proxy, dataplane::SessionId session, std::chrono::milliseconds limit) {
  return wait_done([&](auto done) {
    proxy.detach_session(
        session, limit, [] {}, done);
  });
}

}  // namespace mkernel::test
