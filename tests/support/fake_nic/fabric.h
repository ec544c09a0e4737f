// RDMA devices without hardware: libibverbs as the RDMA transports call it (VerbsLibrary, EfaLibrary), played
// in this process. Several hosts with their devices hang on one fabric; each transport under test gets the
// table of its host. README.md says what is modelled and what is not.
//
// Thread rule: any thread, everything; the objects are protected by one lock of the fabric. What takes time
// on the wire is carried out by whichever thread posts or polls next, or else by a thread of the fabric.
#pragma once

#include <infiniband/verbs.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/transport/rdma/efa_library.h"
#include "daemon/transport/rdma/library.h"

namespace mkernel::test::nic {

struct GidSettings {
  ibv_gid gid{};
  std::uint32_t type = IBV_GID_TYPE_ROCE_V2;  ///< ibv_gid_type
};

/// ::ffff:a.b.c.d
ibv_gid ipv4_gid(std::uint8_t a, std::uint8_t b, std::uint8_t c, std::uint8_t d);

struct PortSettings {
  std::uint8_t link_layer = IBV_LINK_LAYER_ETHERNET;
  ibv_port_state state = IBV_PORT_ACTIVE;
  ibv_mtu mtu = IBV_MTU_4096;
  std::uint16_t lid = 0;          ///< InfiniBand; 0 = the fabric chooses
  std::vector<GidSettings> gids;  ///< empty = link-local and ::ffff:10.x.y.z, each as RoCE v1 and v2
};

/// What makes a device an EFA: its queue pairs are SRD.
struct EfaSettings {
  std::uint32_t capabilities = transport::rdma::kEfaRdmaRead | transport::rdma::kEfaRnrRetry |
                               transport::rdma::kEfaRdmaWrite | transport::rdma::kEfaUnsolicitedWriteRecv;
  std::uint32_t max_rdma_bytes = 1U << 30;
  std::uint32_t inline_bytes = 32;
  std::chrono::milliseconds patience{20};  ///< with a peer that does not answer
};

struct DeviceSettings {
  std::string name = "mlx5_0";
  std::vector<PortSettings> ports{1};
  std::uint32_t max_send_wr = 8192;  ///< per queue pair
  std::uint32_t max_recv_wr = 8192;
  std::uint32_t max_sge = 16;
  std::uint32_t max_cqe = 1U << 20;
  std::uint32_t max_inline = 220;
  std::uint64_t memlock_bytes = ~std::uint64_t{0};  ///< host memory that may be registered
  bool dma_buf = true;
  int open_error = 0;  ///< errno of open_device()
  /// Posts complete at once, nothing is checked or moved and no lock is taken: for timing a post path.
  bool null_queues = false;
  std::optional<EfaSettings> efa;
};

/// One direction between two devices.
struct Path {
  std::chrono::microseconds latency{0};
  std::chrono::microseconds jitter{0};  ///< 0 to this is added, at random
  bool down = false;                    ///< packets are lost; what was sent and has not arrived, too
};

class Fabric {
 public:
  explicit Fabric(std::uint64_t seed = 1);
  /// Every object that verbs made must be gone (complaints() says which are not).
  ~Fabric();

  /// At most 8 hosts live at a time, in all fabrics. Before any table of that host is used.
  void add_device(const std::string& host, const DeviceSettings& settings);
  /// The calls as a process on that host sees them.
  transport::rdma::VerbsLibrary verbs(const std::string& host);
  transport::rdma::EfaLibrary efa() const;

  // ---- faults, all while traffic flows; devices by name, which is unique on the fabric
  /// Of both directions, or of one. Overrides what every_path() said.
  void set_path(const std::string& from, const std::string& to, const Path& path);
  void set_paths(const std::string& one, const std::string& other, const Path& path);
  void every_path(const Path& path);
  /// Raises PORT_ERR or PORT_ACTIVE. A port that is not active carries nothing.
  void set_port(const std::string& device, std::uint8_t port, ibv_port_state state);
  /// Raises GID_CHANGE.
  void set_gids(const std::string& device, std::uint8_t port, std::vector<GidSettings> gids);
  /// Raises DEVICE_FATAL: nothing completes any more, every call but those that destroy fails with EIO.
  void fail_device(const std::string& device);
  /// The next `count` registrations fail with this errno.
  void fail_registrations(const std::string& device, int error, std::uint32_t count);

  /// Registrations of host memory of `bytes` or more do not return until this is called with 0; at the latest
  /// after ten seconds.
  void hold_registrations(const std::string& device, std::uint64_t bytes);
  /// Keys that were handed out so far lead nowhere any more. What was registered goes on to exist.
  void void_keys(const std::string& device);

  // ---- what a test asks afterwards
  /// What a kernel would not have put up with, or leaked: calls out of order, objects that live. Empty =
  /// clean.
  std::vector<std::string> complaints() const;
  /// Messages (writes, sends) that were carried out at this device; retransmissions do not count.
  std::uint64_t received(const std::string& device) const;
  /// Queue pairs that were made at this device so far.
  std::uint64_t queue_pairs(const std::string& device) const;
  /// Bytes of host memory registered at this device now.
  std::uint64_t registered(const std::string& device) const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace mkernel::test::nic
