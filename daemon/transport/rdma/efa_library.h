// The calls of libefa (the EFA part of rdma-core) as a table, like VerbsLibrary.
//
// The header that comes with the oldest rdma-core we build against (44) lacks most of what RDMA writes over
// SRD need. Its structures only grow into their reserved bytes and every call takes their size, so what is
// newer is spelled out here and handed over as the older type: one binary serves every libefa, and the
// library that is installed says what it can. The layouts are compared with the header at compile time,
// member by member as far as the header has them.
#pragma once

#include <infiniband/efadv.h>

#include <cstdint>
#include <string>

#include "proto/abi/status.h"

namespace mkernel::transport::rdma {

/// Bits of efadv_device_attr::device_caps.
enum EfaCapability : std::uint32_t {
  kEfaRdmaRead = 1U << 0,
  kEfaRnrRetry = 1U << 1,
  kEfaRdmaWrite = 1U << 3,
  kEfaUnsolicitedWriteRecv = 1U << 4,
};

/// Bits of EfaQpInit::flags.
enum EfaQpFlag : std::uint16_t {
  kEfaQpUnsolicitedWriteRecv = 1U << 0,
  kEfaQpInlineWrite = 1U << 1,
};

/// efadv_qp_init_attr as of rdma-core 55.
struct EfaQpInit {
  std::uint64_t comp_mask = 0;
  std::uint32_t driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD;
  std::uint16_t flags = 0;  ///< EfaQpFlag; rdma-core 44 calls this and what follows reserved
  std::uint8_t service_level = 0;
  std::uint8_t reserved = 0;
};

/// efadv_sq_depth_attr, of which rdma-core 44 knows nothing.
struct EfaSqDepth {
  std::uint64_t comp_mask = 0;
  std::uint32_t flags = 0;  ///< kEfaSqDepthInlineWrite
  std::uint32_t max_send_sge = 0;
  std::uint32_t max_rdma_sge = 0;
  std::uint32_t max_inline_data = 0;
};
inline constexpr std::uint32_t kEfaSqDepthInlineWrite = 1U << 0;

/// Immutable once filled; any thread, each call as its manual page says (efadv_<member>).
struct EfaLibrary {
  decltype(&::efadv_query_device) query_device = nullptr;
  ibv_qp* (*create_qp)(ibv_context* context, ibv_qp_init_attr_ex* attributes, EfaQpInit* init,
                       std::uint32_t init_bytes) = nullptr;
  /// Requests that fit a send queue of this shape, or -errno. Null before rdma-core 63: then the depth is
  /// what query_device() says.
  int (*max_sq_depth)(ibv_context* context, EfaSqDepth* shape, std::uint32_t shape_bytes) = nullptr;
};

/// Opens libefa, which stays loaded, and fills the table. Any thread. Errors, all kFailedPrecondition: not
/// installed (which package to install), or too old (what it lacks).
Result<EfaLibrary> open_efa_library(const std::string& name = "libefa.so.1");

}  // namespace mkernel::transport::rdma
