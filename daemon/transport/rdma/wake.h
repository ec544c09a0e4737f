// What wakes the owner of a transport that sleeps: completion channels, device events, one timer.
#pragma once

#include <string>
#include <vector>

#include "daemon/transport/rdma/library.h"
#include "daemon/transport/rdma/routes.h"
#include "daemon/transport/transport.h"
#include "proto/ipc/fd.h"

namespace mkernel::transport::rdma {

/// A set of file descriptors and a timer, seen as one file descriptor. One thread.
class Wake {
 public:
  /// `who`: for texts.
  Status make(const std::string& who);
  /// Wakes whenever the descriptor becomes readable: who take()s reads all there is.
  Status watch(int fd);
  /// Readable when a watched descriptor has become so or the timer has gone off, until take().
  int fd() const { return epoll_.get(); }
  /// True when something else than the timer has happened since the last call: it is to be looked for.
  bool take();
  /// Sets the timer; kNever: no timer.
  void at(Time due, Time now);

 private:
  std::string who_;
  ipc::UniqueFd epoll_;
  ipc::UniqueFd timer_;
  Time due_ = kNever;
};

/// For descriptors that are read until nothing is left.
Status make_non_blocking(int fd, const std::string& device);

/// Takes the notifications that wait on a completion channel, so that it is readable for new ones only. Adds
/// the peers whose queues they are of: the queues were made with peer_context().
void take_notifications(const VerbsLibrary& verbs, ibv_comp_channel* channel, std::vector<PeerId>& peers);
/// What a peer's completion queues are made with.
void* peer_context(PeerId peer);

}  // namespace mkernel::transport::rdma
