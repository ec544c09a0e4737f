// One end of `mkbench fabric`: a transport, memory, and what the transport last said.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "tools/mkbench/fabric.h"
#include "tools/mkbench/fabric_pipe.h"

namespace mkernel::bench {

/// The memory of one end, the same at both: `slots` places of `slot` bytes, each for puts of `bytes`.
struct Layout {
  std::uint32_t bytes = 0;
  std::uint64_t slot = 0;
  std::uint64_t slots = 0;
};

/// Of puts of `bytes`: some megabytes in flight, at least two puts.
Layout layout_for(std::uint32_t bytes);

/// One thread. Channel 0 carries puts from the sender to the receiver, channel 1 the answers.
class End final : public transport::TransportSink {
 public:
  static constexpr transport::ChannelId kForth = 0, kBack = 1;

  /// `pipe` outlives the end and leads to the other one.
  static Result<std::unique_ptr<End>> make(const MakeTransport& make, Pipe& pipe, const Layout& layout,
                                           bool sends);
  std::string endpoint() const { return transport_->local_endpoint(); }
  std::string transport_name() const { return transport_->capabilities().name; }
  Status connect(const std::string& other_endpoint);

  /// Polls and listens; after a while without events waits for the next one, at most a millisecond. Returns a
  /// word that came in. Errors: what the transport or the pipe says.
  Result<std::optional<nlohmann::json>> turn();
  /// Polls until exactly `count` puts have arrived; false after `limit`.
  bool wait_arrived(std::uint64_t count, std::chrono::milliseconds limit);
  /// The next put of this end's outbound channel, if the transport takes it.
  bool submit_one();

  bool connected() const { return connected_; }
  std::uint64_t submitted() const { return submitted_; }
  std::uint64_t completed_count() const { return completed_; }
  std::uint64_t arrived_count() const { return arrived_; }

  /// Whether every put that arrives from now on is answered by one of the same size.
  void answer(bool on) { answered_ = on ? std::optional(arrived_) : std::nullopt; }
  void fill(std::uint64_t round);
  /// Whether every slot holds what the round carried.
  bool holds(std::uint64_t round) const;

  // TransportSink
  Status place(transport::ChannelId channel, std::uint16_t region, std::uint64_t offset, std::uint32_t length,
               transport::Target& target) override;
  void arrived(transport::ChannelId, std::uint64_t count) override { arrived_ = count; }
  void completed(transport::ChannelId, std::uint64_t count) override { completed_ = count; }
  void channel_failed(transport::ChannelId, const Status& why) override { failure_ = why; }
  void peer_connected(transport::PeerId) override { connected_ = true; }
  void peer_failed(transport::PeerId, const Status& why) override { failure_ = why; }
  Status arrival_word(transport::ChannelId channel, transport::ArrivalWord& place) override;
  void send_to_peer(transport::PeerId, std::span<const std::byte> message) override;

 private:
  End(Pipe& pipe, const Layout& layout, bool sends) : pipe_(pipe), layout_(layout), sends_(sends) {}

  Pipe& pipe_;
  const Layout layout_;
  const bool sends_;
  memory::Region region_;
  std::vector<std::uint64_t> words_ = std::vector<std::uint64_t>(2);  ///< arrival counts that a NIC writes
  std::unique_ptr<transport::Transport> transport_;                   ///< goes before the memory
  std::vector<std::string> early_;                                    ///< messages that came before connect()
  bool takes_messages_ = false;
  bool connected_ = false;
  Status failure_;
  std::uint64_t submitted_ = 0, completed_ = 0, arrived_ = 0;
  std::optional<std::uint64_t> answered_;
  std::chrono::steady_clock::time_point last_event_{};
};

}  // namespace mkernel::bench
