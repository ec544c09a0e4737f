// Puts between ranks of one node: the proxy of the lane copies and publishes both counts. Same contract as a
// transport's: payload first, then the arrival count (release), then the completed count.
#pragma once

#include <cstdint>

#include "daemon/dataplane/groups.h"
#include "daemon/dataplane/session_table.h"

namespace mkernel::dataplane {

/// Proxy thread only.
class LocalDelivery {
 public:
  LocalDelivery(GroupTable& groups, FailureLog& failures) : groups_(groups), failures_(failures) {}

  /// Copies up to one piece and, with the last one, publishes. Returns the bytes copied. The regions are
  /// looked up with the first piece and stay until the copy ends (who unregisters them waits); when one of
  /// them is gone by then, the sender's group fails and the copy ends. What goes to a rank that has left is
  /// dropped and counts as completed: nobody reads it any more, and its sender goes on.
  std::uint64_t advance(LocalCopy& copy);

  /// Ends a copy that is running, as completed.
  static void target_left(LocalCopy& copy);
  /// Ends a copy that is running, and with it the sender's group.
  void target_unregistered(LocalCopy& copy);

 private:
  bool begin(LocalCopy& copy, const Group& neighbour);
  void fail(LocalCopy& copy, std::uint32_t culprit, Status why);
  void publish(Outbound& channel, Group& neighbour, std::uint32_t length);

  GroupTable& groups_;
  FailureLog& failures_;
};

}  // namespace mkernel::dataplane
