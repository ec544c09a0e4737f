// Which arrival counts have grown. The peer's device writes them, and nothing announces it: no completion, no
// interrupt. The rank sees its count at once all the same; here it is read for the counters of the data
// plane, which may be late. So a poll does not read every word there is: it reads those that have grown
// lately, and a few of the others in turn; all of them now and then, more rarely the longer none has grown.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "daemon/transport/rdma/routes.h"
#include "daemon/transport/transport.h"

namespace mkernel::transport::verbs {

/// The count that a peer's device has written last; what was put before it can be seen.
inline std::uint64_t arrival_count(std::uint64_t* word) {
  return std::atomic_ref<std::uint64_t>(*word).load(std::memory_order_acquire);
}

/// Proxy thread.
class Arrivals {
 public:
  using Time = rdma::Time;

  /// Of a poll: words that have not grown lately.
  static constexpr std::size_t kOthers = 16;
  /// Polls without growth after which a word is one of those.
  static constexpr std::uint64_t kLately = 1024;

  /// The word is read until remove(). A channel that is there already changes nothing.
  void add(ChannelId channel, std::uint64_t* word);
  void remove(ChannelId channel);

  /// Reports what has grown. Returns the number of channels.
  std::size_t poll(TransportSink& sink, Time now);
  /// When all of them are to be read. kNever: there are none.
  Time due() const { return watched_.empty() ? rdma::kNever : next_look_; }

 private:
  struct Watched {
    std::uint64_t* word = nullptr;
    std::uint64_t seen = 0;   ///< what was reported
    std::uint64_t grown = 0;  ///< in which poll
    ChannelId channel = 0;
  };
  static constexpr std::uint32_t kNowhere = ~std::uint32_t{0};

  std::size_t look_at_all(TransportSink& sink, Time now);
  std::size_t look_at_some(TransportSink& sink);
  bool report(std::size_t place, TransportSink& sink);
  void swap(std::size_t one, std::size_t other);

  std::vector<Watched> watched_;         ///< first those that have grown lately
  std::size_t lately_ = 0;               ///< so many
  std::vector<std::uint32_t> place_of_;  ///< in watched_, by channel id
  std::size_t turn_ = 0;                 ///< which of the others is next
  std::uint64_t polls_ = 0;
  Time next_look_{};  ///< at all of them
  std::chrono::milliseconds interval_{1};
};

}  // namespace mkernel::transport::verbs
