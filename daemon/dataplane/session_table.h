// A session as one proxy sees it: its rings, its channels, what it has in hand but not yet handed on.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/dataplane/channel_table.h"
#include "daemon/dataplane/ring_reader.h"
#include "daemon/dataplane/scheduler.h"
#include "daemon/memory/touching.h"

namespace mkernel::dataplane {

/// Slots taken from a ring before they are handed to the transport together and their tail is published.
inline constexpr std::uint32_t kBatch = 32;

/// A put between two ranks of this node, copied piece by piece so that a huge one holds up nobody.
struct LocalCopy {
  Outbound* channel = nullptr;             ///< null: no copy is running
  const memory::Region* source = nullptr;  ///< both found with the first piece, and kept until the copy ends
  const memory::Region* target = nullptr;
  std::uint64_t source_offset = 0;
  std::uint64_t target_offset = 0;
  std::uint32_t length = 0;
  std::uint32_t copied = 0;
  std::uint16_t source_region = 0;
  std::uint16_t target_region = 0;

  bool running() const { return channel != nullptr; }
  bool uses(const memory::Region& region) const {
    return running() && (source == &region || target == &region);
  }
};

/// One of the rings of a session that a proxy drains: that of its threads or that of its GPU.
struct SessionRing {
  abi::RingWriter writer = abi::RingWriter::kThreads;
  RingReader reader;

  /// The slot at the ring's position looked bad once. What it names may come with a command that was posted
  /// before it was written and that the proxy has not run yet: it is refused when it still looks bad in the
  /// next round.
  bool in_doubt = false;
};

/// Proxy thread only.
struct Session {
  std::shared_ptr<SessionPort> port;
  Counters* counters = nullptr;  ///< this proxy's
  std::array<SessionRing, abi::kRingWriters> rings;
  std::uint32_t turns = 0;                 ///< batches taken: each begins with another ring
  base::GrowingArray<Outbound*> channels;  ///< by session-local number
  bool reading = true;                     ///< false: its rings are not looked at any more

  Allowance allowance;  ///< the scheduler's, with the next two
  bool in_turn = false;
  bool throttled = false;

  std::array<transport::Put, kBatch> puts{};  ///< [first, count): checked, not yet taken by the transport
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  LocalCopy copy;

  bool stalled = false;  ///< the transport refused the put at `first`
  base::TimePoint stalled_since{};
  bool wrote = false;  ///< slots came since the last look at the clock
  base::TimePoint last_write{};
  bool was_active = false;  ///< what its active word said at the last look

  std::uint32_t closing_groups = 0;  ///< taken out of the table, still to be closed

  bool has_pending() const { return first != count || copy.running(); }
  bool has_slots() const {
    const memory::Touching touching(port->id);
    return std::any_of(rings.begin(), rings.end(), [](const auto& ring) { return ring.reader.ready(); });
  }
  bool has_work() const { return (reading && has_slots()) || has_pending(); }
  /// About how many slots wait.
  std::uint64_t depth() const {
    std::uint64_t sum = 0;
    for (const SessionRing& ring : rings) sum += ring.reader.depth();
    return sum;
  }
};

}  // namespace mkernel::dataplane
