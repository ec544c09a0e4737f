// Streams of PeerMessages between daemons as the control thread sees them. The gRPC behind it is in
// grpc_wire.cc alone.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "mkernel/v1/peer.pb.h"
#include "proto/abi/status.h"

namespace mkernel::rpc {

/// Called on the control thread. After `closed` nothing more comes.
struct StreamHandler {
  std::function<void(v1::PeerMessage)> message;
  std::function<void(Status)> closed;
};

/// One stream, dialled or accepted. Control thread only. Destroying it closes it.
class PeerStream {
 public:
  virtual ~PeerStream() = default;
  /// Says where events go; before the first read().
  virtual void start(StreamHandler handler) = 0;
  /// Takes the message and returns at once; order is kept.
  virtual void send(v1::PeerMessage message) = 0;
  /// Asks for one message. Without it nothing comes, and the sender is held back before long.
  virtual void read() = 0;
  /// Ends it; no event comes any more. `why` reaches the other side of an accepted stream.
  virtual void close(const Status& why) = 0;
  /// The same, but what has been sent still goes out.
  virtual void finish(const Status& why) = 0;
  /// Host of the other side, "10.0.0.7" or "[fd00::7]"; empty when unknown.
  virtual std::string remote_host() const = 0;
};

class PeerWire {
 public:
  using Accept = std::function<void(std::shared_ptr<PeerStream>)>;

  virtual ~PeerWire() = default;
  /// Listens; returns "host:port" with the real port. kAlreadyExists names who holds the port.
  virtual Result<std::string> listen(const std::string& address, Accept accept) = 0;
  /// Starts to dial; a failure comes as `closed`.
  virtual std::shared_ptr<PeerStream> dial(const std::string& address) = 0;
};

}  // namespace mkernel::rpc
