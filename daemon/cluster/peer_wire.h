// Streams of PeerMessages between daemons as the control thread sees them. The gRPC behind it is in
// grpc_wire.cc alone; tests and fuzz targets bring a wire of their own.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mkernel/v1/peer.pb.h"
#include "proto/abi/status.h"

namespace mkernel::cluster {

/// Called on the control thread. After `closed` nothing more comes.
struct StreamHandler {
  std::function<void(v1::PeerMessage)> message;
  std::function<void(Status)> closed;
  /// full() was true and is not any more. May be empty.
  std::function<void()> drained = {};
};

/// Who is at the other end of a stream, as far as the connection itself shows it.
struct RemoteEnd {
  std::string host;                ///< "10.0.0.7" or "[fd00::7]"; empty when unknown
  bool certified = false;          ///< it showed a certificate of the authority
  std::vector<std::string> names;  ///< in its certificate: the common name, then the alternative names
  Status trust;                    ///< not OK: plain text, and another user of this host holds the other end
};

/// One stream, dialled or accepted. Control thread only. Destroying it closes it.
class PeerStream {
 public:
  virtual ~PeerStream() = default;
  /// Says where events go; before the first read().
  virtual void start(StreamHandler handler) = 0;
  /// Takes the message and returns at once; order is kept.
  virtual void send(v1::PeerMessage message) = 0;
  /// So many messages wait to be written that no more should be sent; StreamHandler::drained comes.
  virtual bool full() = 0;
  /// Asks for one message; up to `ahead` further ones may be taken off the wire meanwhile. Without it nothing
  /// comes, and the sender is held back before long.
  virtual void read(std::size_t ahead = 0) = 0;
  /// Ends it; no event comes any more. `why` reaches the other side of an accepted stream.
  virtual void close(const Status& why) = 0;
  /// The same, but what has been sent still goes out.
  virtual void finish(const Status& why) = 0;
  /// Of a stream that was dialled: known from the first message on.
  virtual RemoteEnd remote() const = 0;
};

class PeerWire {
 public:
  using Accept = std::function<void(std::shared_ptr<PeerStream>)>;

  virtual ~PeerWire() = default;
  /// Listens; returns "host:port" with the real port. kAlreadyExists names who holds the port.
  virtual Result<std::string> listen(const std::string& address, Accept accept) = 0;
  /// Closes the port; streams that came in stay. listen() may be called again, with the same `accept`.
  virtual void stop_listening() = 0;
  /// Starts to dial; a failure comes as `closed`.
  virtual std::shared_ptr<PeerStream> dial(const std::string& address) = 0;
};

}  // namespace mkernel::cluster
