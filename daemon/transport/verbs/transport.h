// The verbs transport: its ports, and what befalls them. The rest is in ../rdma/transport.h.
#pragma once

#include <memory>
#include <string>

#include "daemon/transport/rdma/transport.h"
#include "daemon/transport/verbs/peer.h"

namespace mkernel::transport::verbs {

struct Parts {
  using Context = verbs::Context;
  using Peer = verbs::Peer;
  using Outbound = verbs::Outbound;
  using Inbound = verbs::Inbound;
  static Status check(std::span<const std::byte> message) { return check_message(message); }
  /// A peer's queues complete only what was posted to them.
  static constexpr std::size_t kIdleVisits = 0;
};

class VerbsTransport final : public rdma::PeerTransport<Parts> {
 public:
  static Result<std::unique_ptr<VerbsTransport>> make(const VerbsOptions& options);
  ~VerbsTransport() override { close(); }

  void quiesce(ChannelId channel) override;
  bool quiet(ChannelId channel) const override;
  bool holds(const memory::Region& region) const override;
  void forget(const memory::Region& region) override;

 private:
  explicit VerbsTransport(const VerbsOptions& options);
  bool look_at_paths(Time now) override;
  std::size_t poll_more(Time now) override { return context_.arrivals.poll(*context_.sink, now); }
  Time due_more() const override { return context_.arrivals.due(); }
};

}  // namespace mkernel::transport::verbs
