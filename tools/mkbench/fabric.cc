#include "tools/mkbench/fabric.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "proto/ipc/fd.h"
#include "tools/mkbench/random.h"
#include "tools/mkbench/report.h"

namespace mkernel::bench {
namespace {

using Clock = std::chrono::steady_clock;
using transport::ChannelId;
using transport::PeerId;

constexpr std::uint64_t kBytesInFlight = 16 << 20;
constexpr int kRounds = 3;
constexpr std::chrono::seconds kStandstill{30};
constexpr std::chrono::microseconds kSpin{50};  ///< as the daemon's proxies do before they sleep

Result<memory::Region> make_region(std::uint64_t bytes) {
  memory::Region region;
  region.kind = abi::RegionKind::kHostMemory;
  region.bytes = bytes;
  auto fd = ipc::create_shared_memory("mkbench", bytes);
  if (!fd.ok()) return fd.status();
  region.fd = std::move(*fd);
  auto mapping = ipc::Mapping::map(region.fd.get(), 0, bytes);
  if (!mapping.ok()) return mapping.status();
  region.mapping = std::move(*mapping);
  return region;
}

/// Word `index` of what a round carries.
std::uint64_t word(std::uint64_t round, std::uint64_t index) {
  return mix(round, index);
}

void fill(memory::Region& region, std::uint64_t round) {
  for (std::uint64_t i = 0; i < region.bytes / 8; ++i)
    *region.mapping.at<std::uint64_t>(i * 8) = word(round, i);
}

/// Whether the first `bytes` of every slot hold what the round carried.
bool holds(const memory::Region& region, std::uint64_t round, std::uint64_t slot, std::uint64_t bytes) {
  for (std::uint64_t begin = 0; begin + slot <= region.bytes; begin += slot) {
    for (std::uint64_t at = begin; at < begin + bytes; at += 8) {
      const std::uint64_t expected = word(round, at / 8);
      if (std::memcmp(region.host(at), &expected, std::min<std::uint64_t>(8, begin + bytes - at)) != 0)
        return false;
    }
  }
  return true;
}

/// One node: a transport, a region, and what the transport last said.
class End final : public transport::TransportSink {
 public:
  End(std::unique_ptr<transport::Transport> made, memory::Region memory)
      : transport_(std::move(made)), region_(std::move(memory)) {
    transport_->attach(*this);
  }

  transport::Transport& transport() { return *transport_; }
  memory::Region& region() { return region_; }
  bool connected() const { return connected_; }
  const Status& failure() const { return failure_; }
  std::uint64_t arrived_count() const { return arrived_; }
  std::uint64_t completed_count() const { return completed_; }

  /// Polls; after a while without events waits for the next one, at most a millisecond.
  void turn() {
    if (transport_->poll() > 0) {
      last_event_ = Clock::now();
    } else if (Clock::now() - last_event_ > kSpin) {
      pollfd wanted{transport_->event_fd(), POLLIN, 0};
      ::poll(&wanted, 1, 1);
    }
  }

  Status place(ChannelId, std::uint16_t, std::uint64_t offset, std::uint32_t length,
               transport::Target& target) override {
    if (!memory::in_bounds(offset, length, region_.bytes))
      return {StatusCode::kOutOfRange, "outside the region"};
    target = {&region_, offset};
    return {};
  }
  void arrived(ChannelId, std::uint64_t count) override { arrived_ = count; }
  void completed(ChannelId, std::uint64_t count) override { completed_ = count; }
  void channel_failed(ChannelId, const Status& why) override { failure_ = why; }
  void peer_connected(PeerId) override { connected_ = true; }
  void peer_failed(PeerId, const Status& why) override { failure_ = why; }

 private:
  std::unique_ptr<transport::Transport> transport_;
  memory::Region region_;
  bool connected_ = false;
  Status failure_;
  std::uint64_t arrived_ = 0;
  std::uint64_t completed_ = 0;
  Clock::time_point last_event_{};
};

/// A thread that polls the receiving end while traffic runs. The end is its own from construction to join.
class Receiver {
 public:
  explicit Receiver(End& end)
      : thread_([this, &end] {
          while (!stop_.load(std::memory_order_relaxed)) end.turn();
        }) {}
  ~Receiver() {
    stop_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// One channel from one end to another, for one size of put.
class Line {
 public:
  static Result<std::unique_ptr<Line>> make(const MakeTransport& make, std::uint32_t bytes) {
    const std::uint64_t slot = (std::uint64_t{std::max(bytes, 1U)} + 63) & ~std::uint64_t{63};
    const std::uint64_t slots = std::clamp<std::uint64_t>(kBytesInFlight / slot, 2, 512);
    std::unique_ptr<End> ends[2];
    for (std::uint64_t i = 0; i < 2; ++i) {
      transport::TransportOptions options;
      options.identity = {i == 0 ? "sender" : "receiver", 1 + i};
      auto made = make(options);
      if (!made.ok()) return made.status();
      auto region = make_region(slot * slots);
      if (!region.ok()) return region.status();
      ends[i] = std::make_unique<End>(std::move(*made), std::move(*region));
    }
    std::unique_ptr<Line> line(new Line(std::move(ends[0]), std::move(ends[1]), bytes, slot, slots));
    MK_RETURN_IF_ERROR(line->connect());
    return line;
  }

  Status latency(std::chrono::seconds limit, double& p50_us) {
    const Receiver receiver(*receiver_);
    std::vector<double> samples;
    const auto end = Clock::now() + limit;
    while (samples.size() < 10'000 && (samples.size() < 10 || Clock::now() < end)) {
      const auto begin = Clock::now();
      submit_one();
      MK_RETURN_IF_ERROR(wait_completed(submitted_));
      samples.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    }
    p50_us = median(std::move(samples));
    return {};
  }

  Status round(std::chrono::duration<double> length, double& seconds) {
    fill(sender_->region(), ++round_);
    const Receiver receiver(*receiver_);
    const auto begin = Clock::now();
    const std::uint64_t first = submitted_;
    // Every slot is sent at least once, so that verification covers the whole region.
    while (submitted_ < first + slots_ || Clock::now() - begin < length) {
      while (submitted_ - sender_->completed_count() < slots_ && submit_one()) continue;
      MK_RETURN_IF_ERROR(step());
    }
    MK_RETURN_IF_ERROR(wait_completed(submitted_));
    seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    return {};
  }

  /// After round(): the receiver is at rest.
  bool verify() const {
    return receiver_->arrived_count() == submitted_ && holds(receiver_->region(), round_, slot_, bytes_);
  }

  std::uint64_t submitted() const { return submitted_; }
  std::string transport_name() { return sender_->transport().capabilities().name; }

 private:
  Line(std::unique_ptr<End> sender, std::unique_ptr<End> receiver, std::uint32_t bytes, std::uint64_t slot,
       std::uint64_t slots)
      : sender_(std::move(sender)),
        receiver_(std::move(receiver)),
        bytes_(bytes),
        slot_(slot),
        slots_(slots) {}

  Status connect() {
    auto& a = sender_->transport();
    auto& b = receiver_->transport();
    MK_RETURN_IF_ERROR(a.connect(0, {{"receiver", 2}, b.local_endpoint()}));
    MK_RETURN_IF_ERROR(b.connect(0, {{"sender", 1}, a.local_endpoint()}));
    MK_RETURN_IF_ERROR(b.open_inbound(0, 0, 1));
    MK_RETURN_IF_ERROR(a.open_outbound(0, 0, 1));
    while (!sender_->connected() || !receiver_->connected()) {
      MK_RETURN_IF_ERROR(step());
      receiver_->turn();
      MK_RETURN_IF_ERROR(receiver_->failure());
    }
    return {};
  }

  bool submit_one() {
    const std::uint64_t offset = (submitted_ % slots_) * slot_;
    const transport::Put put{.channel = 0,
                             .sequence = submitted_ + 1,
                             .source = &sender_->region(),
                             .source_offset = offset,
                             .remote_offset = offset,
                             .length = bytes_,
                             .remote_region = 0};
    if (sender_->transport().submit({&put, 1}) == 0) return false;
    ++submitted_;
    return true;
  }

  Status step() {
    const std::uint64_t before = sender_->completed_count();
    sender_->turn();
    if (sender_->completed_count() > before || before == submitted_) last_progress_ = Clock::now();
    if (Clock::now() - last_progress_ > kStandstill)
      return {StatusCode::kDeadlineExceeded, "traffic stands still"};
    return sender_->failure();
  }

  Status wait_completed(std::uint64_t count) {
    while (sender_->completed_count() < count) MK_RETURN_IF_ERROR(step());
    return {};
  }

  std::unique_ptr<End> sender_;
  std::unique_ptr<End> receiver_;
  const std::uint32_t bytes_;
  const std::uint64_t slot_;   ///< bytes from one put's place to the next
  const std::uint64_t slots_;  ///< puts in flight
  std::uint64_t submitted_ = 0;
  std::uint64_t round_ = 0;
  Clock::time_point last_progress_ = Clock::now();
};

Result<FabricRow> measure_size(const MakeTransport& make, std::uint32_t bytes, std::chrono::seconds seconds) {
  auto made = Line::make(make, bytes);
  if (!made.ok()) return made.status();
  Line& line = **made;
  FabricRow row;
  row.transport = line.transport_name();
  row.bytes = bytes;
  MK_RETURN_IF_ERROR(line.latency(std::max(seconds / 4, std::chrono::seconds(1)), row.latency_p50_us));
  const std::uint64_t before = line.submitted();
  double spent = 0;
  row.verified = true;
  for (int i = 0; i < kRounds; ++i) {
    MK_RETURN_IF_ERROR(line.round(std::chrono::duration<double>(seconds) / kRounds, spent));
    row.verified = line.verify() && row.verified;
  }
  row.puts = line.submitted() - before;
  row.gbytes_per_second = static_cast<double>(row.puts) * bytes / spent / 1e9;
  return row;
}

}  // namespace

Result<std::vector<FabricRow>> measure_fabric(const MakeTransport& make,
                                              const std::vector<std::uint32_t>& sizes,
                                              std::chrono::seconds seconds) {
  std::vector<FabricRow> rows;
  for (const std::uint32_t bytes : sizes) {
    auto row = measure_size(make, bytes, seconds);
    if (!row.ok()) return row.status().with_context("puts of " + human_bytes(bytes));
    rows.push_back(std::move(*row));
  }
  return rows;
}

}  // namespace mkernel::bench
