// One tenant with a rank on each of two nodes, both in this process: what `mkbench tenants` measures, and
// what several of its attackers are.
#pragma once

#include <mkernel/client.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/mkbench/put_round.h"
#include "tools/mkbench/tenants_session.h"

namespace mkernel::bench {

struct PairOptions {
  std::string daemon, peer_daemon;  ///< session sockets of the two nodes
  std::string name;                 ///< of sessions and group
  std::uint32_t weight = 1;
  std::uint64_t buffer_bytes = 1 << 20;
  std::chrono::milliseconds timeout{20000};
};

/// Rank 0 on `daemon`, rank 1 on `peer_daemon`. One thread; what is collective is done by two, within the
/// call.
class TenantPair {
 public:
  static Result<TenantPair> make(const PairOptions& options);

  Group& sender() { return groups_[0]; }
  Group& receiver() { return groups_[1]; }
  const SymmetricBuffer& source() const { return buffers_[0]; }
  std::uint32_t signal_lane() const { return first_lane_; }
  std::uint32_t put_lane() const { return first_lane_ + 1; }

  /// Signals from rank 0 to rank 1 for `seconds`, one at a time and one every `interval`: microseconds until
  /// the count is seen at rank 1, with those of signals that were due while one was under way
  /// (add_with_missed()). Errors: kDeadlineExceeded after 30 s without one, kDataLoss for a count beyond
  /// what was sent, what the groups say.
  Result<std::vector<double>> signal_latencies(double seconds, std::chrono::microseconds interval);

  /// Requests to the control thread of rank 0's daemon for `seconds`, one every `interval`: microseconds
  /// until the answer, as signal_latencies(). Errors: as RawSession's.
  Result<std::vector<double>> answer_latencies(double seconds, std::chrono::microseconds interval);

  /// Puts of `bytes` through the whole buffer for `seconds`, every payload compared. kDataLoss: one arrived
  /// changed.
  Result<double> gbytes_per_second(std::uint32_t bytes, double seconds);

 private:
  TenantPair() = default;
  Result<double> signal_once();

  std::vector<Session> sessions_;
  std::vector<Group> groups_;
  std::vector<SymmetricBuffer> buffers_;
  std::vector<Activity> active_;
  std::optional<RawSession> asking_;
  std::uint32_t asking_group_ = 0;
  std::uint32_t first_lane_ = 0;
  std::uint64_t signals_ = 0, puts_ = 0;  ///< so far
};

/// Adds the latency of a signal, and of those that were due every `interval` while it was under way and would
/// have waited for the rest of it: without them a stop of seconds would be one sample among thousands.
void add_with_missed(std::vector<double>& samples, double took, double interval);

}  // namespace mkernel::bench
