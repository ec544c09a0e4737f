// The EFA transport: its devices, and what befalls them. The rest is in ../rdma/transport.h.
#pragma once

#include <memory>
#include <string>

#include "daemon/transport/efa/peer.h"
#include "daemon/transport/rdma/transport.h"

namespace mkernel::transport::efa {

struct Parts {
  using Context = efa::Context;
  using Peer = efa::Peer;
  using Outbound = efa::Outbound;
  using Inbound = efa::Inbound;
  static Status check(std::span<const std::byte> message) { return check_message(message); }
  /// Puts arrive at any time, and a notification takes longer than a look.
  static constexpr std::size_t kIdleVisits = 1;
};

class EfaTransport final : public rdma::PeerTransport<Parts> {
 public:
  static Result<std::unique_ptr<EfaTransport>> make(const EfaOptions& options);
  ~EfaTransport() override { close(); }

  void forget(const memory::Region& region) override;

 private:
  explicit EfaTransport(const EfaOptions& options);
  Status open_device(const std::string& name);
  bool look_at_paths(Time now) override;
  void fail_without_devices();
};

}  // namespace mkernel::transport::efa
