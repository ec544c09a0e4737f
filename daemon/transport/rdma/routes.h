// Which pairs of ports lead to a peer, by preference, and how they have fared.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace mkernel::transport::rdma {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
inline constexpr Time kNever = Time::max();

/// Ports or devices of one rail.
inline constexpr std::uint32_t kMaxPaths = 64;

/// How many of them a transport lists as its endpoint ("mlx5_0:1, mlx5_1:1"): 1 to kMaxPaths, whatever it
/// says.
std::uint32_t paths_in(const std::string& endpoint);

/// A path of this node and one of the peer: their positions among the ports that each prefers.
struct Route {
  std::uint32_t local = 0;
  std::uint32_t remote = 0;
  bool operator==(const Route&) const = default;
};

/// Proxy thread.
class Routes {
 public:
  struct Options {
    std::uint32_t local_paths = 1;            ///< at least one
    std::chrono::milliseconds first_wait{0};  ///< after a failure; doubles with each further one
    /// Something can go over this node's path now.
    std::function<bool(std::uint32_t local)> up;
    /// Every path of this node reaches every one of the peer. Otherwise those of equal position only.
    bool every_pair = false;
  };
  explicit Routes(Options options);

  /// The peer has so many paths: equal numbers belong together, what is left over on one side goes with those
  /// of the other in turn. Pairs of different numbers come last.
  void know_remote(std::uint32_t paths);

  /// The best whose port here is up and that is not waiting for its next chance. Where all are waiting, one
  /// that has waited for a quarter of a second. None when there is none now.
  std::optional<Route> pick(Time now) const;
  /// The best that is better than `than` and due for a try.
  std::optional<Route> better(Route than, Time now) const;
  /// When pick() may find one that it would not find at `now`.
  Time next(Time now) const;

  /// It waits longer each time, until it carries puts.
  void failed(Route route, Time now);
  /// It answers, but has carried no puts yet.
  void answers(Route route, Time now);
  void carries(Route route);
  /// Something changed at this node's port: its routes are tried at once.
  void look_again(std::uint32_t local);

 private:
  struct Entry {
    Route route;
    Time not_before{};
    Time last_resort{};  ///< when there is no other
    std::chrono::milliseconds wait{0};
  };
  Entry* find(Route route);
  bool up(const Entry& entry) const { return options_.up(entry.route.local); }

  const Options options_;
  std::vector<Entry> entries_;
};

}  // namespace mkernel::transport::rdma
