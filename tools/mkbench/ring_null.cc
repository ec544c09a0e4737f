#include "tools/mkbench/ring_null.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/base/thread.h"
#include "daemon/dataplane/proxy.h"
#include "proto/abi/work_request.h"

namespace mkernel::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kLog2Slots = 12;
constexpr std::uint64_t kSlots = 1ULL << kLog2Slots;
constexpr std::uint32_t kMaxWriters = abi::kMaxLanes;
constexpr std::uint32_t kPutBytes = 256;
constexpr std::uint64_t kRegionBytes = 1ULL << 20;
constexpr std::uint64_t kPlaces = kRegionBytes / kPutBytes;

/// Where put number `sequence` of a channel reads and writes: what the writer says and the transport expects.
constexpr std::uint64_t source_offset(std::uint64_t sequence) {
  return sequence % kPlaces * kPutBytes;
}
constexpr std::uint64_t remote_offset(std::uint64_t sequence) {
  return (sequence * 7) % kPlaces * kPutBytes;
}

/// Takes every put, checks it, and completes it at the next poll. All members: proxy thread, results after it
/// ended.
class NullTransport final : public transport::Transport {
 public:
  explicit NullTransport(Status& verdict) : verdict_(verdict) {
    capabilities_.name = "null";
    capabilities_.max_put_bytes = abi::kMaxPutBytes;
  }

  const transport::Capabilities& capabilities() const override { return capabilities_; }
  std::string local_endpoint() const override { return "null"; }
  void attach(transport::TransportSink& sink) override { sink_ = &sink; }
  Status connect(transport::PeerId, const transport::PeerAddress&) override { return {}; }
  void disconnect(transport::PeerId) override {}
  Status open_outbound(transport::ChannelId channel, transport::PeerId, transport::ChannelKey) override {
    return track(channel);
  }
  Status open_inbound(transport::ChannelId channel, transport::PeerId, transport::ChannelKey) override {
    return track(channel);
  }
  void close_channel(transport::ChannelId) override {}

  std::size_t submit(std::span<const transport::Put> puts) override {
    for (const transport::Put& put : puts) {
      Channel& channel = channels_[put.channel];
      const std::uint64_t sequence = ++channel.taken;
      if (put.sequence != sequence || put.length != kPutBytes || put.source == nullptr ||
          put.source_offset != source_offset(sequence) || put.remote_offset != remote_offset(sequence)) {
        note(put, sequence);
      }
    }
    return puts.size();
  }

  std::size_t poll() override {
    std::size_t events = 0;
    for (std::size_t id = 0; id < channels_.size(); ++id) {
      Channel& channel = channels_[id];
      if (channel.completed == channel.taken) continue;
      channel.completed = channel.taken;
      sink_->completed(static_cast<transport::ChannelId>(id), channel.completed);
      ++events;
    }
    return events;
  }

  int event_fd() const override { return -1; }
  void close() override {}

 private:
  struct Channel {
    std::uint64_t taken = 0;
    std::uint64_t completed = 0;
  };

  Status track(transport::ChannelId channel) {
    if (channels_.size() <= channel) channels_.resize(channel + 1);
    return {};
  }
  void note(const transport::Put& put, std::uint64_t expected) {
    if (!verdict_.ok()) return;
    verdict_ = {StatusCode::kDataLoss, "channel " + std::to_string(put.channel) + ": put " +
                                           std::to_string(expected) + " came as number " +
                                           std::to_string(put.sequence) + " from offset " +
                                           std::to_string(put.source_offset) + ", expected " +
                                           std::to_string(source_offset(expected))};
  }

  transport::Capabilities capabilities_;
  transport::TransportSink* sink_ = nullptr;
  std::vector<Channel> channels_;
  Status& verdict_;
};

class NoControl final : public dataplane::ControlSink {
 public:
  explicit NoControl(std::atomic<bool>& failed) : failed_(failed) {}
  void session_failed(dataplane::SessionId, const Status& why) override { fail(why); }
  void group_failed(const dataplane::GroupKey&, std::int32_t, const Status& why) override { fail(why); }
  void peer_connected(std::uint32_t, transport::PeerId) override {}
  void peer_failed(transport::PeerId, const Status& why) override { fail(why); }
  void path_changed(std::uint32_t, transport::PeerId, const std::string&, const Status&) override {}
  void message_to_peer(std::uint32_t, transport::PeerId, std::vector<std::byte>) override {}
  const Status& why() const { return why_; }  ///< after the proxy stopped

 private:
  void fail(const Status& why) {
    why_ = why;
    failed_.store(true, std::memory_order_release);
  }
  std::atomic<bool>& failed_;
  Status why_;
};

Result<ipc::Mapping> new_segment(const std::string& label, std::uint64_t bytes) {
  auto fd = ipc::create_shared_memory(label, bytes);
  if (!fd.ok()) return fd.status();
  return ipc::Mapping::map(fd->get(), 0, bytes);
}

/// One session of one ring, one group of two ranks, the other on a peer; a lane per writer.
struct Setup {
  std::shared_ptr<dataplane::SessionPort> session = std::make_shared<dataplane::SessionPort>();
  std::shared_ptr<dataplane::GroupPort> group = std::make_shared<dataplane::GroupPort>();
  std::shared_ptr<memory::Region> region = std::make_shared<memory::Region>();
  abi::GroupSegment layout{};

  Status make(std::uint32_t lanes) {
    abi::SessionSegment session_layout{};
    auto segment = new_segment("mkbench-session", abi::layout_session(session_layout, 1, kLog2Slots));
    if (!segment.ok()) return segment.status();
    session->id = 1;
    session->name = "mkbench";
    session->segment = std::move(segment).value();
    *session->header() = session_layout;
    session->counters = std::vector<dataplane::Counters>(1);
    auto doorbell = ipc::create_event();
    if (!doorbell.ok()) return doorbell.status();
    session->doorbell.push_back(std::move(doorbell).value());

    segment = new_segment("mkbench-group", abi::layout_group(layout, 2, 0, lanes, 1));
    if (!segment.ok()) return segment.status();
    group->key = {1, 1};
    group->name = "mkbench";
    group->world_size = 2;
    group->lanes = lanes;
    group->region_capacity = 1;
    group->ranks = {{.local = true, .peer = 0, .local_key = {1, 1}},
                    {.local = false, .peer = 1, .local_key = {}}};
    group->segment = std::move(segment).value();
    group->channels.grow(2 * lanes);

    segment = new_segment("mkbench-region", kRegionBytes);
    if (!segment.ok()) return segment.status();
    region->kind = abi::RegionKind::kHostMemory;
    region->bytes = kRegionBytes;
    region->mapping = std::move(segment).value();
    return {};
  }

  std::uint64_t completed(std::uint32_t lane) const {
    auto& word = group->segment.at<std::uint64_t>(layout.completed_offset)[layout.lanes + lane];
    return std::atomic_ref<std::uint64_t>(word).load(std::memory_order_acquire);
  }
};

/// The writers' side of the ring.
class Writers {
 public:
  explicit Writers(const Setup& setup)
      : slots_(setup.session->segment.at<abi::WorkSlot>(setup.session->header()->slots_offset)),
        tail_(setup.session->header()->head(abi::RingWriter::kThreads, 0).tail),
        lanes_(setup.layout.lanes) {}

  /// Writes on lane `lane` until `stop`; returns how many puts.
  std::uint64_t run(std::uint32_t lane, const std::atomic<bool>& stop, const std::atomic<bool>& failed) {
    constexpr std::uint64_t kLookEvery = 64;
    constexpr std::uint64_t kYieldEvery = 256;
    std::uint64_t waited = 0;
    std::uint64_t known_tail = 0;
    std::uint64_t sequence = 0;
    while (sequence % kLookEvery != 0 || !stop.load(std::memory_order_relaxed)) {
      const std::uint64_t position = claim();
      while (position >= known_tail + kSlots) {
        known_tail = std::atomic_ref<std::uint64_t>(tail_).load(std::memory_order_acquire);
        if (failed.load(std::memory_order_acquire)) return sequence;
        if (++waited % kYieldEvery == 0) ::sched_yield();  // more writers than cores: let the proxy run
        base::cpu_relax();
      }
      ++sequence;
      const abi::WorkRequest request{static_cast<std::uint8_t>(abi::Opcode::kPut),
                                     lanes_ + lane,
                                     1,
                                     kPutBytes,
                                     0,
                                     0,
                                     source_offset(sequence),
                                     remote_offset(sequence)};
      abi::store_slot(slots_[position % kSlots], abi::encode(request, abi::lap_bit(position, kLog2Slots)));
    }
    return sequence;
  }

 private:
  /// One writer needs no atomic add.
  std::uint64_t claim() {
    if (lanes_ > 1) return head_.fetch_add(1, std::memory_order_relaxed);
    const std::uint64_t position = head_.load(std::memory_order_relaxed);
    head_.store(position + 1, std::memory_order_relaxed);
    return position;
  }

  abi::WorkSlot* slots_;
  std::uint64_t& tail_;
  const std::uint32_t lanes_;
  std::atomic<std::uint64_t> head_{0};
};

Status open(dataplane::Proxy& proxy, const Setup& setup) {
  std::promise<Status> opened;
  proxy.attach_session(setup.session);
  proxy.open_group(setup.group, [&opened](Status status) { opened.set_value(std::move(status)); });
  MK_RETURN_IF_ERROR(opened.get_future().get());
  std::promise<void> done;
  proxy.set_remote_region(setup.group->key, 1, 0, kRegionBytes);
  proxy.set_region(setup.group->key, 0, setup.region, [&done] { done.set_value(); });
  done.get_future().wait();
  return {};
}

Result<RingRate> write_for(std::chrono::seconds duration, const Setup& setup,
                           const std::atomic<bool>& failed) {
  const std::uint32_t lanes = setup.layout.lanes;
  std::atomic<bool> stop{false};
  Writers writers(setup);
  std::vector<std::uint64_t> wrote(lanes);
  std::vector<std::thread> threads;
  const auto begin = Clock::now();
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    threads.emplace_back([&, lane] { wrote[lane] = writers.run(lane, stop, failed); });
  }
  std::this_thread::sleep_for(duration);
  stop.store(true);
  for (std::thread& thread : threads) thread.join();

  RingRate rate;
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    while (setup.completed(lane) < wrote[lane]) {
      if (failed.load(std::memory_order_acquire) || Clock::now() > deadline) {
        return Status{StatusCode::kDataLoss, "lane " + std::to_string(lane) + ": " +
                                                 std::to_string(setup.completed(lane)) + " of " +
                                                 std::to_string(wrote[lane]) + " puts completed"};
      }
      ::sched_yield();
    }
    rate.requests += wrote[lane];
  }
  rate.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  rate.requests_per_second = static_cast<double>(rate.requests) / rate.seconds;
  return rate;
}

}  // namespace

Result<RingRate> measure_ring_null(std::chrono::seconds duration, int writer_threads) {
  if (writer_threads < 1 || writer_threads > static_cast<int>(kMaxWriters)) {
    return Status{StatusCode::kInvalidArgument, std::to_string(writer_threads) + " writer threads; 1 to " +
                                                    std::to_string(kMaxWriters) + " are possible"};
  }
  Setup setup;
  MK_RETURN_IF_ERROR(setup.make(static_cast<std::uint32_t>(writer_threads)));
  Status verdict;
  std::atomic<bool> failed{false};
  NoControl control(failed);
  dataplane::Proxy proxy({}, std::make_unique<NullTransport>(verdict), control);
  proxy.start();
  MK_RETURN_IF_ERROR(open(proxy, setup));
  std::atomic_ref<std::uint32_t>(setup.session->header()->active).store(1, std::memory_order_release);
  const std::uint64_t one = 1;
  Result<RingRate> rate = Status{StatusCode::kInternal, "the doorbell cannot be rung"};
  if (::write(setup.session->doorbell[0].get(), &one, sizeof(one)) == sizeof(one)) {
    rate = write_for(duration, setup, failed);
  }
  proxy.stop(std::chrono::milliseconds(1000));
  MK_RETURN_IF_ERROR(control.why());
  MK_RETURN_IF_ERROR(verdict);
  return rate;
}

}  // namespace mkernel::bench
