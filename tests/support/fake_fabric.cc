#include "tests/support/fake_fabric.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>

#include "kernels/cpu/sync/wait.h"
#include "tests/support/timed_calls.h"

namespace mkernel::test {
namespace {

constexpr std::uint32_t kRegionCapacity = 16;

void add_release(const std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(word))
      .fetch_add(value, std::memory_order_release);
}

class HostMemory final : public FabricMemory {
 public:
  void* segment(std::uint64_t bytes) override { return allocate(bytes); }
  std::byte* buffer(std::uint32_t, std::uint64_t bytes, Contents) override { return allocate(bytes); }
  Status copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override {
    std::memcpy(to, from, bytes);
    return {};
  }

 private:
  /// 64 bytes more than asked for, to align the begin.
  std::byte* allocate(std::uint64_t bytes) {
    memory_.emplace_back(bytes + 64);
    const auto begin = reinterpret_cast<std::uintptr_t>(memory_.back().data());
    return reinterpret_cast<std::byte*>(abi::align64(begin));
  }

  std::deque<std::vector<std::byte>> memory_;
};

}  // namespace

/// One ordered stream of puts from `source` to `target`.
struct FakeFabric::Channel {
  using Clock = std::chrono::steady_clock;

  std::uint32_t source = 0, target = 0, lane = 0;
  std::deque<abi::WorkRequest> pending;
  std::uint64_t uncompleted = 0;  ///< delivered, completion not yet published
  std::atomic<std::uint64_t> read{0}, delivered{0};
  std::atomic<Clock::time_point> last_read{}, last_delivered{};

  std::string text(Clock::time_point now) const {
    const std::uint64_t puts = delivered.load();
    std::string line = std::to_string(source) + " to " + std::to_string(target) + " lane " +
                       std::to_string(lane) + ": " + std::to_string(read.load()) + " read, the last " +
                       seconds_text(last_read.load(), now) + " ago, " + std::to_string(puts) + " delivered";
    return puts == 0 ? line : line + ", the last " + seconds_text(last_delivered.load(), now) + " ago";
  }
};

FakeFabric::FakeFabric(const FabricOptions& options, std::unique_ptr<FabricMemory> memory)
    : options_(options),
      memory_(memory != nullptr ? std::move(memory) : std::make_unique<HostMemory>()),
      random_state_(options.seed * 0x9e3779b97f4a7c15ULL),
      wire_bytes_(world()) {
  for (std::uint32_t rank = 0; rank < world(); ++rank) make_rank(rank);
  for (std::uint32_t source = 0; source < world(); ++source) {
    for (std::uint32_t target = 0; target < world(); ++target) {
      for (std::uint32_t lane = 0; lane < options_.lanes; ++lane) {
        channels_.push_back(std::make_unique<Channel>());
        channels_.back()->source = source;
        channels_.back()->target = target;
        channels_.back()->lane = lane;
      }
    }
  }
  thread_ = std::thread([this] { serve(); });
}

FakeFabric::~FakeFabric() {
  stop_.store(true);
  thread_.join();
}

void FakeFabric::make_rank(std::uint32_t rank) {
  auto state = std::make_unique<Rank>();
  abi::SessionSegment session{};
  void* session_memory = memory_->segment(abi::layout_session(session, options_.rings, options_.log2_slots));
  abi::GroupSegment group{};
  void* group_memory =
      memory_->segment(abi::layout_group(group, world(), rank, options_.lanes, kRegionCapacity));
  group.node_count = options_.nodes;
  group.first_channel = 3;  // not 0: numbers within the session are not numbers within the group
  kernels::GroupView& view = state->view;
  view.session = new (session_memory) abi::SessionSegment(session);
  view.segment = new (group_memory) abi::GroupSegment(group);
  for (std::uint32_t peer = 0; peer < world(); ++peer) {
    abi::Member& member = view.at<abi::Member>(group.members_offset)[peer];
    member.node = options_.node_of(peer);
    member.local_rank = options_.local_of(peer);
    std::snprintf(member.node_name, sizeof member.node_name, "n%u", member.node);
  }
  state->heads = std::make_unique<std::atomic<std::uint64_t>[]>(options_.rings);
  for (const auto writer : {abi::RingWriter::kThreads, abi::RingWriter::kGpu}) {
    for (std::uint32_t ring = 0; ring < options_.rings; ++ring) {
      auto* slots = static_cast<std::byte*>(session_memory) +
                    abi::ring_offset(options_.rings, options_.log2_slots, writer, ring);
      state->drains.push_back(
          {reinterpret_cast<abi::WorkSlot*>(slots), &view.session->head(writer, ring).tail});
    }
  }
  for (std::uint32_t ring = 0; ring < options_.rings; ++ring) {
    state->heads[ring].store(0);
    view.rings.push_back(
        {state->drains[ring].slots, options_.log2_slots, state->drains[ring].tail, &state->heads[ring]});
  }
  ranks_.push_back(std::move(state));
}

std::vector<kernels::SymmetricView> FakeFabric::symmetric(std::uint64_t bytes, Contents contents) {
  const std::lock_guard lock(mutex_);
  const auto region = static_cast<std::uint32_t>(regions_.size());
  auto& buffers = regions_.emplace_back();
  std::vector<std::byte*> base;
  for (std::uint32_t rank = 0; rank < world(); ++rank) {
    buffers.push_back({memory_->buffer(rank, bytes, contents), bytes});
    base.push_back(buffers.back().data);
  }
  std::vector<kernels::SymmetricView> views(world());
  for (std::uint32_t rank = 0; rank < world(); ++rank) {
    views[rank].region = region;
    views[rank].bytes = bytes;
    // In the order of local indices, which ranks of a node have in their own order.
    for (std::uint32_t other = 0; other < world(); ++other)
      if (options_.node_of(other) == options_.node_of(rank)) views[rank].node.push_back(base[other]);
    views[rank].mine = base[rank];
    for (std::uint32_t owner = 0; owner < world(); ++owner) {
      auto& group = *ranks_[rank]->view.segment;
      ranks_[rank]->view.at<abi::RegionEntry>(group.regions_offset)[owner * kRegionCapacity + region] = {
          bytes, static_cast<std::uint32_t>(abi::RegionKind::kHostMemory), 0};
    }
  }
  return views;
}

void FakeFabric::fail_group(StatusCode code, std::int32_t culprit, const std::string& node,
                            const std::string& text) {
  for (const auto& rank : ranks_) {
    abi::GroupSegment& segment = *rank->view.segment;
    segment.failure.code = static_cast<std::uint32_t>(code);
    segment.failure.culprit = culprit;
    std::snprintf(segment.failure.node, sizeof segment.failure.node, "%s", node.c_str());
    std::snprintf(segment.failure.text, sizeof segment.failure.text, "%s", text.c_str());
    std::atomic_ref<std::uint32_t>(segment.abort)
        .store(static_cast<std::uint32_t>(code), std::memory_order_release);
  }
}

std::string FakeFabric::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

std::uint64_t FakeFabric::wire_bytes(std::uint32_t source) const {
  return wire_bytes_[source].load();
}

std::uint64_t FakeFabric::delivered(std::uint32_t source, std::uint32_t target, std::uint32_t lane) const {
  return channels_[(source * world() + target) * options_.lanes + lane]->delivered.load();
}

std::string FakeFabric::traffic() const {
  std::string all;
  for (const auto& channel : channels_)
    if (channel->read.load() > 0) all += "; " + channel->text(Channel::Clock::now());
  return all.empty() ? "no puts" : all.substr(2);
}

std::uint64_t FakeFabric::random() {
  random_state_ ^= random_state_ << 13;
  random_state_ ^= random_state_ >> 7;
  random_state_ ^= random_state_ << 17;
  return random_state_;
}

void FakeFabric::serve() {
  std::uint32_t idle = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    const bool drained = drain_rings();
    const bool moved = deliver_turn();
    idle = drained || moved ? 0 : idle + 1;
    if (idle > 16) std::this_thread::sleep_for(std::chrono::microseconds(std::min(idle, 100U)));
  }
}

bool FakeFabric::drain_rings() {
  bool any = false;
  for (std::uint32_t rank = 0; rank < world(); ++rank) {
    for (Rank::Drain& ring : ranks_[rank]->drains) {
      abi::WorkSlot snapshot;
      const std::uint32_t log2_slots = options_.log2_slots;
      const std::uint64_t mask = (std::uint64_t{1} << log2_slots) - 1;
      while (abi::load_slot(ring.slots[ring.consumed & mask], abi::lap_bit(ring.consumed, log2_slots),
                            snapshot)) {
        any = true;
        std::atomic_ref<std::uint64_t>(*ring.tail).store(++ring.consumed, std::memory_order_release);
        if (!accept(rank, abi::decode(snapshot))) return any;
      }
    }
  }
  return any;
}

std::string FakeFabric::problem(std::uint32_t rank, const abi::WorkRequest& request) const {
  const abi::GroupSegment& group = *ranks_[rank]->view.segment;
  if (request.opcode != static_cast<std::uint8_t>(abi::Opcode::kPut)) return "opcode";
  if (request.channel < group.first_channel) return "channel";
  const std::uint32_t channel = request.channel - group.first_channel;
  if (channel / options_.lanes != request.peer || request.peer >= world()) return "peer or channel";
  if (options_.node_of(request.peer) == options_.node_of(rank)) return "put inside a node";
  if (request.length == 0) return "";
  if (request.local_region >= regions_.size() || request.remote_region >= regions_.size()) return "region";
  const auto fits = [&](std::uint32_t region, std::uint32_t owner, std::uint64_t offset) {
    const std::uint64_t bytes = regions_[region][owner].bytes;
    return offset <= bytes && request.length <= bytes - offset;
  };
  if (!fits(request.local_region, rank, request.local_offset)) return "local offset or length";
  if (!fits(request.remote_region, request.peer, request.remote_offset)) return "remote offset or length";
  return "";
}

void FakeFabric::fail(std::uint32_t rank, StatusCode code, const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    if (error_.empty()) error_ = "rank " + std::to_string(rank) + ": " + text;
  }
  fail_group(code, static_cast<std::int32_t>(rank), "fake", text);
}

bool FakeFabric::accept(std::uint32_t rank, const abi::WorkRequest& request) {
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    text = problem(rank, request);
  }
  if (!text.empty()) {
    fail(rank, StatusCode::kInvalidArgument, "bad slot: " + text);
    return false;
  }
  const std::uint32_t channel = request.channel - ranks_[rank]->view.segment->first_channel;
  Channel& to = *channels_[rank * world() * options_.lanes + channel];
  to.pending.push_back(request);
  to.last_read.store(Channel::Clock::now());
  to.read.fetch_add(1);
  return true;
}

bool FakeFabric::deliver_turn() {
  bool any = false;
  const std::size_t begin = options_.seed == 0 ? 0 : random() % channels_.size();
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    Channel& channel = *channels_[(begin + i) % channels_.size()];
    any |= deliver(channel);
  }
  return any;
}

/// Delivers nothing, one or all pending puts of the channel, and perhaps completions that are due.
bool FakeFabric::deliver(Channel& channel) {
  if (channel.pending.empty() && channel.uncompleted == 0) return false;
  const kernels::GroupView& source = ranks_[channel.source]->view;
  const kernels::GroupView& target = ranks_[channel.target]->view;
  if (channel.uncompleted > 0 && (options_.seed == 0 || random() % 4 == 0)) {
    add_release(source.completed(channel.target, channel.lane), channel.uncompleted);
    channel.uncompleted = 0;
  }
  std::size_t budget = options_.seed == 0 ? channel.pending.size() : random() % 3;
  for (; budget > 0 && !channel.pending.empty(); --budget) {
    const abi::WorkRequest request = channel.pending.front();
    channel.pending.pop_front();
    if (request.length > 0) {
      Buffer to, from;
      {
        const std::lock_guard lock(mutex_);
        to = regions_[request.remote_region][channel.target];
        from = regions_[request.local_region][channel.source];
      }
      const Status copied =
          memory_->copy(to.data + request.remote_offset, from.data + request.local_offset, request.length);
      if (!copied.ok()) fail(channel.source, copied.code(), copied.text());
    }
    wire_bytes_[channel.source].fetch_add(request.length);
    channel.last_delivered.store(Channel::Clock::now());
    channel.delivered.fetch_add(1);
    ++channel.uncompleted;
    add_release(target.arrivals(channel.source, channel.lane), 1);
  }
  return true;
}

std::vector<Status> run_ranks(std::uint32_t world, const std::function<Status(std::uint32_t)>& body) {
  std::vector<Status> statuses(world);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = body(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

}  // namespace mkernel::test
