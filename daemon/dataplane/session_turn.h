// One session's turn: slots from its rings are checked and become puts, in batches; the transport takes them
// or not.
#pragma once

#include <cstdint>

#include "daemon/dataplane/local_delivery.h"
#include "daemon/dataplane/proxy.h"
#include "daemon/dataplane/session_table.h"
#include "daemon/dataplane/slot_check.h"

namespace mkernel::dataplane {

/// Proxy thread only. No allocation, no lock, no clock on the path of a good put.
class RingServer {
 public:
  RingServer(transport::Transport& transport, LocalDelivery& local, ControlSink& sink, std::uint32_t ring)
      : transport_(transport), local_(local), sink_(sink), ring_(ring) {}

  /// Sends while the session's allowance lasts; what the transport refuses stays with the session.
  Turn serve(Session& session);

  /// Updates the ring_depth counter; a dozen cache misses.
  static void look_at_depth(Session& session);

  /// Slots, puts and pieces moved since the last call.
  std::size_t take_progress() { return std::exchange(progress_, 0); }

 private:
  std::uint32_t take_batch(Session& session);
  std::uint32_t take_slots(Session& session, SessionRing& ring, std::uint32_t most);
  bool accept(Session& session, SessionRing& ring, const abi::WorkSlot& slot);
  void copy_locally(Session& session);
  bool flush(Session& session);
  void note_stall(Session& session);
  static void note_stall_end(Session& session);
  void refuse(Session& session, const SessionRing& ring, const abi::WorkSlot& slot,
              const abi::WorkRequest& request, SlotFault fault);

  transport::Transport& transport_;
  LocalDelivery& local_;
  ControlSink& sink_;
  const std::uint32_t ring_;
  std::size_t progress_ = 0;
  std::uint64_t batch_bytes_ = 0;
  std::uint32_t used_up_turns_ = 0;
};

}  // namespace mkernel::dataplane
