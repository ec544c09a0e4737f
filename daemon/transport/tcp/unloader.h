// The receiving end of puts into GPU memory: payload is read from the socket into pinned memory, and copy
// engines take it from there piece by piece while more is read. A put has landed when the copy of its last
// piece and all before it are over; until then it was received, no more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "daemon/transport/tcp/channel.h"
#include "daemon/transport/tcp/staging_queue.h"

namespace mkernel::transport::tcp {

/// Hears what became of puts; called inside collect() and while a put is being read.
class LandingSink {
 public:
  virtual ~LandingSink() = default;
  /// All bytes of the put are in place.
  virtual void on_landed(Inbound& channel, std::uint64_t number) = 0;
  /// The engines could not, and nothing of the channel lands any more.
  virtual void on_landing_failed(Inbound& channel, const Status& why) = 0;
};

/// Of one connection. One thread.
class Unloader {
 public:
  Unloader(GpuAccess& gpu, LandingSink& sink) : gpu_(gpu), sink_(sink) {}
  ~Unloader();

  /// The frame of a put that is read from now on: its bytes go to [offset, ...) of the region, range checked.
  /// Errors: the region or the staging memory cannot be reached.
  Status begin(Inbound& channel, std::uint64_t number, const memory::Region& region, std::uint64_t offset);
  /// Where its next bytes are to be read to, `left` at most; nothing = wait for collect().
  std::span<std::byte> room(std::size_t left);
  /// So many have been read.
  void filled(std::size_t bytes);
  /// All of the frame has been read; `last`: with it the put is whole.
  void finish(bool last);
  /// The put is read no further; what was handed to an engine lands, and counts for nothing.
  void abandon();

  /// The connection is lost: puts that were received whole still land and count.
  void lost();
  /// Copies of a lost connection are under way. Until they are over the peer must not be told what is held:
  /// a copy from the old path could end after one from the new, over newer data.
  bool draining() const { return queue_.first() < drain_end_; }

  /// Takes note of what the engines are through with, after GpuAccess::poll(). Returns the number of pieces.
  std::size_t collect();
  bool busy() const { return !queue_.empty(); }

  /// The channel goes away: waits until no engine writes for it.
  void forget(const Inbound& channel);
  bool lands_in(const memory::Region& region) const;

 private:
  struct Piece {
    Inbound* channel = nullptr;  ///< null: gone
    std::uint64_t number = 0;    ///< of the put
    const memory::Region* region = nullptr;
    memory::CopyTicket ticket;
    std::size_t at = 0;
    std::size_t bytes = 0;
    bool last = false;  ///< of its put, which was received whole
  };

  void hand_over(bool last);
  void fail();

  GpuAccess& gpu_;
  LandingSink& sink_;
  StagingQueue<Piece> queue_;
  std::uint64_t drain_end_ = 0;

  // The frame at hand.
  Piece next_;  ///< its next piece, `bytes` of it read
  std::shared_ptr<memory::EngineMemory> target_;
  std::uint64_t offset_ = 0;  ///< where the next piece goes
};

}  // namespace mkernel::transport::tcp
