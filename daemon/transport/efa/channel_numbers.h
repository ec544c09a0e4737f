// The numbers by which the immediate data of one connection names the channels whose puts arrive here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace mkernel::transport::efa {

struct Inbound;

/// Proxy thread. A number is given to another channel only when nothing that carries it can still be under
/// way: the peer has said that its puts are over (release()), and the acknowledgement that this end has sent
/// with it is over too. Otherwise what comes late would be taken for the other channel's.
class ChannelNumbers {
 public:
  /// A number for the channel. None: all are in use, or not released yet.
  std::optional<std::uint32_t> take(Inbound& channel);
  /// Whose number it is; null when its channel is closed, and for a number that nobody has.
  Inbound* at(std::uint32_t number) const {
    return number < numbers_.size() ? numbers_[number].channel : nullptr;
  }
  /// The channel does not use it any more.
  void close(std::uint32_t number);
  /// The peer has nothing under way that carries it. False, and nothing changed, for a number that is in use,
  /// free or released already.
  bool release(std::uint32_t number);
  /// An acknowledgement that carries it was posted, or is over.
  void set_acknowledging(std::uint32_t number, bool is);
  /// Numbers that were closed and are not free yet.
  std::size_t closing() const { return closing_; }
  /// take() would find one.
  bool any_free() const;
  /// A new connection begins.
  void clear();

 private:
  struct Number {
    Inbound* channel = nullptr;
    bool released = false;
    bool acknowledging = false;
  };
  void free_if_over(std::uint32_t number);

  std::vector<Number> numbers_;
  std::deque<std::uint32_t> free_;  ///< the one that has been free for longest is first
  std::size_t closing_ = 0;
};

}  // namespace mkernel::transport::efa
