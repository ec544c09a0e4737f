// The sending half of one connection: turns what its channels want to say into frames, straight from region
// memory.
//
// Frames are gathered into a batch and leave in few, large sendmsg calls. Control frames (Open, Held,
// Refused) wait for no data but the rest of the batch under way: they go first into the next. Channels take
// turns in the batch, with one frame of a large put each. Payload from GPU memory comes through the Loader.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "daemon/transport/tcp/channel.h"
#include "daemon/transport/tcp/context.h"
#include "daemon/transport/tcp/loader.h"
#include "daemon/transport/tcp/message.h"
#include "daemon/transport/tcp/tcp.h"
#include "proto/abi/status.h"

namespace mkernel::transport::tcp {

struct WriteProgress {
  std::size_t work = 0;  ///< bytes written, and kSendWork for each call of the kernel
  bool blocked = false;  ///< the socket takes no more for now
};

class StreamWriter {
 public:
  explicit StreamWriter(Context& context);

  /// A connection has been established. `zero_copy`: its socket can.
  void start(bool zero_copy);
  /// The connection is gone: forgets the batch and every queue.
  void reset();

  void ask(Outbound& channel) { asking_.push(channel); }
  void answer(Inbound& channel) { answering_.push(channel); }
  /// The channel has puts to send and may.
  void offer(Outbound& channel) { round_.push(channel); }
  /// The channel has failed: no further put of it is begun. Its memory stays.
  void withdraw(Outbound& channel) {
    round_.remove(channel);
    loader_.withdraw(channel);
  }

  /// The channel and its memory go away. The rest of a frame half sent is copied (kMaxFrameBytes at most),
  /// and the peer told that no more comes. False when the kernel still reads that memory for a zero-copy
  /// send: then the connection has to be cut.
  bool forget(Outbound& channel);
  void forget(Inbound& channel) { answering_.remove(channel); }

  bool idle() const {
    return next_ == count_ && asking_.empty() && answering_.empty() && closed_.empty() && round_.empty() &&
           loader_.idle();
  }
  /// True while an engine copies from the region.
  bool reads(const memory::Region& region) const { return loader_.reads(region); }

  /// Writes until nothing is left, the socket is full, or about `budget` of work was done. An error: the
  /// connection is gone.
  Status flush(int socket, std::size_t budget, WriteProgress& progress);

  /// Takes the kernel's reports about zero-copy sends from the socket's error queue.
  void reap_zero_copy(int socket);
  bool zero_copy() const { return zero_copy_; }

 private:
  static constexpr std::size_t kBatchPuts = 64;               ///< frames of them
  static constexpr std::size_t kPieces = 1 + 2 * kBatchPuts;  ///< control; a header and a payload per frame

  ssize_t send_pieces(int socket, const msghdr& message, std::size_t end, int flags) const;

  /// What a piece of the batch is.
  struct Note {
    Outbound* owner = nullptr;  ///< null: control frames, or a frame whose channel is gone
    bool payload = false;       ///< of the frame whose header is the piece before
    bool zero_copy = false;
    std::uint64_t loaded = kNotLoaded;  ///< number of the Loader's piece
    std::uint64_t session = 0;          ///< whose memory it is; 0: none of a client
  };
  static constexpr std::uint64_t kNotLoaded = ~std::uint64_t{0};

  Status write_out(int socket, std::size_t budget, WriteProgress& progress);
  void fill();
  void add_control();
  template <typename Frame>
  void append_control(const Frame& frame);
  std::size_t add_turn(Outbound& channel, std::size_t room);
  std::size_t add_loaded(const Loader::Piece& piece);
  std::size_t add_frame(Outbound& channel, const Put& put);
  void add_piece(void* data, std::size_t bytes, const Note& note);
  std::size_t orphan_begun_frame();
  ssize_t send_run(int socket, std::size_t& asked);
  void advance(std::size_t bytes);

  const ZeroCopy mode_;
  const std::uint64_t zero_copy_bytes_;

  Fifo<Outbound, &Outbound::asking> asking_;
  Fifo<Inbound, &Inbound::answering> answering_;
  Fifo<Outbound, &Outbound::round> round_;
  std::vector<ChannelKey> closed_;  ///< Closed is to be sent
  Loader loader_;

  // The batch under way: pieces [next_, count_) are still to be written; the first may be begun.
  std::array<iovec, kPieces> piece_{};
  std::array<Note, kPieces> note_{};
  std::size_t next_ = 0;
  std::size_t count_ = 0;
  bool begun_ = false;  ///< part of piece next_ has been written
  std::size_t puts_ = 0;
  std::array<PutFrame, kBatchPuts> header_{};
  std::array<std::byte, 4096> control_{};
  std::size_t control_bytes_ = 0;
  std::vector<std::byte> orphan_;  ///< rest of a frame whose channel was closed while it was being sent

  bool zero_copy_ = false;
  std::uint64_t zero_copy_sent_ = 0;  ///< sends that the kernel numbers 0, 1, 2, ...
  std::uint64_t zero_copy_done_ = 0;  ///< of which it reads the memory no more
};

}  // namespace mkernel::transport::tcp
