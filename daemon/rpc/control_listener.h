// The Unix socket that mkctl connects to.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "daemon/base/socket_file.h"
#include "proto/abi/status.h"
#include "proto/ipc/fd.h"

namespace mkernel::rpc {

/// Listens on a path of the file system, with a thread of its own that accepts: gRPC alone would take the
/// path for a part of a URI, and remove whatever lies there in the end. A mkctl gets in while the control
/// thread is stuck.
class ControlListener {
 public:
  /// Called on the listener's thread.
  using Accept = std::function<void(ipc::UniqueFd)>;

  /// A socket that is bound and listens. Only its owner and group may connect, from the first moment on. A
  /// file that nobody answers on is a leftover and is removed, nothing else is. Any thread. Errors:
  /// kAlreadyExists (somebody answers there, or the file is no socket), kInvalidArgument (the path is too
  /// long), kUnavailable.
  struct Bound {
    ipc::UniqueFd fd;
    base::SocketFile file;
  };
  static Result<Bound> bind(const std::string& path);

  /// Errors: kResourceExhausted when there is no fd or no thread for it.
  static Result<std::unique_ptr<ControlListener>> start(Bound bound, Accept accept);
  /// Accepts no more, waits for the thread, removes the file if it is still this one's.
  ~ControlListener();
  ControlListener(const ControlListener&) = delete;
  ControlListener& operator=(const ControlListener&) = delete;

  const base::SocketFile& file() const { return bound_.file; }

 private:
  ControlListener(Bound bound, Accept accept, ipc::UniqueFd stop);
  void run();

  const Bound bound_;
  const Accept accept_;
  const ipc::UniqueFd stop_;
  std::thread thread_;  ///< last: it uses everything above
};

}  // namespace mkernel::rpc
