// The sending end of puts from GPU memory: copy engines bring payload into pinned memory, piece by piece and
// ahead of the socket, and the writer sends the pieces in order as they get ready.
//
// Puts of one channel stay in order: whatever it submits behind a put that is loaded here, also from host
// memory, goes through here too, without a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "daemon/transport/tcp/channel.h"
#include "daemon/transport/tcp/context.h"
#include "daemon/transport/tcp/message.h"
#include "daemon/transport/tcp/staging_queue.h"

namespace mkernel::transport::tcp {

/// Of one connection. One thread.
class Loader {
 public:
  /// One frame, as the writer sends it.
  struct Piece {
    Outbound* channel = nullptr;  ///< null: gone
    PutFrame header{};            ///< sent before the payload
    bool copied = false;          ///< lies in pinned memory; otherwise the payload is where the put has it
    bool dropped = false;
    bool sent = false;
    std::byte* data = nullptr;
    std::size_t length = 0;  ///< of the payload at `data`
    const memory::Region* source = nullptr;
    memory::CopyTicket ticket;
    std::size_t at = 0;
    std::size_t bytes = 0;  ///< of pinned memory
  };

  /// `plain` gets the channels that have come to puts which need no loading.
  Loader(Context& context, Fifo<Outbound, &Outbound::round>& plain) : context_(context), plain_(plain) {}
  ~Loader();

  /// Whether the channel's next put has to be given to this.
  static bool needed(const Outbound& channel, const Put& put) {
    return channel.loading > 0 || (put.length > 0 && put.source->on_gpu());
  }
  void offer(Outbound& channel) { round_.push(channel); }
  void withdraw(Outbound& channel) { round_.remove(channel); }

  /// Starts copies as long as there is room, channels in turn. A channel whose puts cannot be loaded fails
  /// and is reported.
  void load();

  /// The first piece that was not taken, once it is ready; null before. Valid until the next call of load().
  const Piece* ready();
  /// The writer has put ready() into its batch. Returns its number.
  std::uint64_t take();
  /// Piece `number` has been sent, or never will be: its bytes are free.
  void release(std::uint64_t number);
  bool idle() const { return queue_.empty() && round_.empty(); }

  /// The connection is gone: forgets every put. Copies under way end by themselves.
  void reset();
  /// The channel goes away: waits until no engine reads for it. What was taken stays until it is released.
  void forget(Outbound& channel);
  bool reads(const memory::Region& region) const;

 private:
  /// Nobody waits for it, be it that it ended or that the engines failed. Says nothing about its bytes.
  bool over(const Piece& piece) const {
    return context_.gpu.done(piece.ticket) || !context_.gpu.failure().ok();
  }
  bool load_next(Outbound& channel);
  Status load_piece(Outbound& channel, const Put& put, bool& room);
  void fail(Outbound& channel, const Status& why);
  void fail_all();
  void drop(Outbound& channel);
  void give_back();

  Context& context_;
  Fifo<Outbound, &Outbound::round>& plain_;
  Fifo<Outbound, &Outbound::load_round> round_;
  StagingQueue<Piece> queue_;
  std::uint64_t taken_ = 0;  ///< number of the first piece that was not taken
};

}  // namespace mkernel::transport::tcp
