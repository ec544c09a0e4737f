// The receiving half of one connection: finds frames in the byte stream and lets payload land where it
// belongs.
//
// A large payload is read straight into its region, together with a little of what follows (the next frame)
// in the same call. Small puts come many to a call through a staging buffer. What goes to GPU memory is read
// into the Unloader's, and reading pauses while that is full.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "daemon/memory/region.h"
#include "daemon/transport/tcp/channel.h"
#include "daemon/transport/tcp/message.h"
#include "daemon/transport/tcp/unloader.h"
#include "proto/abi/status.h"

namespace mkernel::transport::tcp {

/// Where the payload of the frame at hand goes.
struct Landing {
  Inbound* channel = nullptr;  ///< null: the payload is discarded
  std::uint64_t number = 0;
  const memory::Region* region = nullptr;
  std::byte* at = nullptr;  ///< in the memory of `region`
  bool last = true;         ///< with it the put is whole
  bool unload = false;      ///< the Unloader has begun with it and says when it has landed
};

/// Decides about frames. A status that is not OK ends the connection.
class FrameHandler {
 public:
  virtual ~FrameHandler() = default;
  virtual Status on_put(const PutFrame& frame, Landing& landing) = 0;
  /// All bytes of the put are in place.
  virtual void on_received(const Landing& landing) = 0;
  virtual Status on_open(const OpenFrame& frame) = 0;
  virtual Status on_closed(const ClosedFrame& frame) = 0;
  virtual Status on_held(const HeldFrame& frame) = 0;
  virtual Status on_refused(const RefusedFrame& frame) = 0;
};

struct ReadProgress {
  std::size_t bytes = 0;
  std::size_t work = 0;  ///< bytes, and kFrameWork for each frame
  bool drained = false;  ///< the socket has no more for now
};

class StreamReader {
 public:
  StreamReader(FrameHandler& handler, Unloader& unloader);

  /// Forgets everything, a put half read included: the connection is gone.
  void reset();

  /// Reads until the socket is drained or about `budget` of work was done. With `to_the_end` a short read
  /// does not count as drained: the peer has closed, and what is left ends with kUnavailable.
  Status read(int socket, std::size_t budget, bool to_the_end, ReadProgress& progress);

  /// The same with bytes that came some other way, or were made up: as much of them as there is room for in
  /// the Unloader. Returns how many that was in `progress`.
  Status take(std::span<const std::byte> bytes, ReadProgress& progress);

  /// Bytes that were read wait for room in the Unloader; the socket may not say so again.
  bool waiting() const { return left_ > 0 && staged() > 0; }

  /// The rest of a frame of this channel that is being read is discarded.
  void forget(const Inbound& channel);
  bool lands_in(const memory::Region& region) const { return landing_.region == &region; }

 private:
  std::size_t staged() const { return end_ - begin_; }
  std::size_t prepare(iovec (&parts)[2], int& count);
  ssize_t read_parts(int socket, const iovec* parts, int count) const;
  Status consume(std::size_t bytes);
  Status parse();
  Status parse_frame(FrameType type);
  bool take_staged_payload();
  std::size_t copy_out(std::size_t bytes);
  void finish_frame();

  FrameHandler& handler_;
  Unloader& unloader_;
  std::vector<std::byte> staging_;
  /// Staged bytes not yet parsed: [begin_, end_); while a payload is being read none but waiting().
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  Landing landing_;
  std::size_t last_length_ = 0;  ///< of the frame at hand, or of the last one
  std::size_t left_ = 0;         ///< payload bytes of the frame at hand still to come
  std::size_t frames_ = 0;       ///< parsed since read() looked last
};

}  // namespace mkernel::transport::tcp
