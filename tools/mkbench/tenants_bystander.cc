#include "tools/mkbench/tenants_bystander.h"

#include <algorithm>
#include <future>
#include <optional>
#include <thread>
#include <utility>

namespace mkernel::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::seconds kSignalPatience{30};

/// `make(rank)` for both ranks at once, in the order of ranks; the first error.
template <typename Made, typename Make>
Result<std::vector<Made>> for_both(const Make& make) {
  auto other = std::async(std::launch::async, [&] { return make(1); });
  Result<Made> mine = make(0);
  Result<Made> theirs = other.get();
  if (!mine.ok()) return mine.status();
  if (!theirs.ok()) return theirs.status();
  std::vector<Made> both;
  both.push_back(std::move(mine).value());
  both.push_back(std::move(theirs).value());
  return both;
}

}  // namespace

Result<TenantPair> TenantPair::make(const PairOptions& o) {
  TenantPair pair;
  auto sessions = for_both<Session>([&](std::uint32_t rank) {
    return Session::connect({.socket = rank == 0 ? o.daemon : o.peer_daemon,
                             .name = o.name,
                             .weight = o.weight,
                             .timeout = o.timeout});
  });
  if (!sessions.ok()) return sessions.status();
  pair.sessions_ = std::move(sessions).value();
  auto groups = for_both<Group>([&](std::uint32_t rank) {
    return pair.sessions_[rank].join({.name = o.name,
                                      .world_size = 2,
                                      .rank = rank,
                                      .lanes = 4,
                                      .region_capacity = 4,
                                      .timeout = o.timeout});
  });
  if (!groups.ok()) return groups.status();
  pair.groups_ = std::move(groups).value();
  auto buffers = for_both<SymmetricBuffer>(
      [&](std::uint32_t rank) { return pair.groups_[rank].symmetric(o.buffer_bytes); });
  if (!buffers.ok()) return buffers.status();
  pair.buffers_ = std::move(buffers).value();
  auto lanes =
      for_both<std::uint32_t>([&](std::uint32_t rank) { return pair.groups_[rank].reserve_lanes(2); });
  if (!lanes.ok()) return lanes.status();
  pair.first_lane_ = lanes.value()[0];
  auto asking = RawSession::connect(o.daemon, o.name);
  if (!asking.ok()) return asking.status();
  auto asking_group = asking->join({.name = o.name + "-ask"});
  if (!asking_group.ok()) return asking_group.status();
  pair.asking_.emplace(std::move(asking).value());
  pair.asking_group_ = *asking_group;
  for (Group& group : pair.groups_) pair.active_.push_back(group.keep_active());
  return pair;
}

void add_with_missed(std::vector<double>& samples, double took, double interval) {
  for (double latency = took; latency > 0; latency -= interval) {
    samples.push_back(latency);
    if (latency <= interval) break;
  }
}

Result<double> TenantPair::signal_once() {
  const auto begin = SteadyClock::now();
  auto number = sender().signal(1, signal_lane());
  if (!number.ok()) return number.status();
  signals_ = *number;
  std::uint64_t seen = 0;
  while ((seen = receiver().arrivals(0, signal_lane())) < signals_) {
    if (SteadyClock::now() - begin > kSignalPatience)
      return Status(StatusCode::kDeadlineExceeded,
                    "signal " + std::to_string(signals_) + " has not arrived within 30 s");
    MK_RETURN_IF_ERROR(receiver().status());
    std::this_thread::yield();
  }
  if (seen > signals_)
    return Status(StatusCode::kDataLoss,
                  std::to_string(seen) + " signals arrived of " + std::to_string(signals_));
  return std::chrono::duration<double, std::micro>(SteadyClock::now() - begin).count();
}

Result<std::vector<double>> TenantPair::signal_latencies(double seconds, std::chrono::microseconds interval) {
  std::vector<double> samples;
  const auto end = SteadyClock::now() + std::chrono::duration<double>(seconds);
  while (SteadyClock::now() < end) {
    const auto next = SteadyClock::now() + interval;
    auto took = signal_once();
    if (!took.ok()) return took.status();
    add_with_missed(samples, *took, static_cast<double>(interval.count()));
    std::this_thread::sleep_until(next);
  }
  return samples;
}

Result<std::vector<double>> TenantPair::answer_latencies(double seconds, std::chrono::microseconds interval) {
  std::vector<double> samples;
  const auto end = SteadyClock::now() + std::chrono::duration<double>(seconds);
  while (SteadyClock::now() < end) {
    const auto begin = SteadyClock::now();
    MK_RETURN_IF_ERROR(asking_->ask(asking_group_));
    const double took = std::chrono::duration<double, std::micro>(SteadyClock::now() - begin).count();
    add_with_missed(samples, took, static_cast<double>(interval.count()));
    std::this_thread::sleep_until(begin + interval);
  }
  return samples;
}

Result<double> TenantPair::gbytes_per_second(std::uint32_t bytes, double seconds) {
  const std::uint64_t slots = std::max<std::uint64_t>(source().bytes() / bytes, 1);
  const PutRounds rounds{put_lane(), bytes, slots, slots, puts_};
  auto totals = for_both<PutTotals>(
      [&](std::uint32_t rank) { return run_put_rounds(groups_[rank], buffers_[rank], rounds, seconds); });
  if (!totals.ok()) return totals.status();
  const PutTotals& sent = totals.value()[0];
  puts_ += sent.puts;
  if (sent.wrong_rounds > 0) return Status(StatusCode::kDataLoss, "a payload arrived changed");
  return static_cast<double>(sent.puts) * bytes / sent.seconds / 1e9;
}

}  // namespace mkernel::bench
