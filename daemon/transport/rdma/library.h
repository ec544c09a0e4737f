// The calls of libibverbs that the RDMA transports make, as a table: filled from the library where it is
// installed, by a fake NIC in tests. The daemon links no libibverbs and starts on machines without it.
//
// The rest of the interface needs no table. Inline functions of verbs.h that do not call into the library
// (ibv_post_send, ibv_post_recv, ibv_poll_cq, ibv_req_notify_cq, ibv_wr_*) go through the function pointers
// of the context or the queue pair, whoever made those. Every other call must go through the table: also
// those that verbs.h hides behind a macro or an inline function of the same name (ibv_query_port, ibv_reg_mr,
// ibv_query_device_ex).
//
// Return values and errno are those of the manual page of ibv_<member>: null or -1 with errno, or the errno
// itself.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "proto/abi/status.h"

namespace mkernel::transport::rdma {

/// Immutable once filled; any thread, each call as its manual page says. No member is null.
struct VerbsLibrary {
  // Devices and what they say about themselves.
  decltype(&::ibv_get_device_list) get_device_list = nullptr;
  decltype(&::ibv_free_device_list) free_device_list = nullptr;
  decltype(&::ibv_get_device_name) get_device_name = nullptr;
  decltype(&::ibv_open_device) open_device = nullptr;
  decltype(&::ibv_close_device) close_device = nullptr;
  int (*query_device)(ibv_context* context, ibv_device_attr_ex* attributes) = nullptr;
  int (*query_port)(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes) = nullptr;
  decltype(&::ibv_query_gid) query_gid = nullptr;
  int (*query_gid_ex)(ibv_context* context, std::uint32_t port, std::uint32_t index,
                      ibv_gid_entry* entry) = nullptr;
  decltype(&::ibv_query_pkey) query_pkey = nullptr;
  decltype(&::ibv_get_async_event) get_async_event = nullptr;
  decltype(&::ibv_ack_async_event) ack_async_event = nullptr;

  // Memory. `access` may hold the optional flags (IBV_ACCESS_RELAXED_ORDERING): where the kernel or the
  // device does not know them they are left out in silence.
  decltype(&::ibv_alloc_pd) alloc_pd = nullptr;
  decltype(&::ibv_dealloc_pd) dealloc_pd = nullptr;
  decltype(&::ibv_reg_mr_iova2) reg_mr = nullptr;
  decltype(&::ibv_reg_dmabuf_mr) reg_dmabuf_mr = nullptr;
  decltype(&::ibv_dereg_mr) dereg_mr = nullptr;

  // Completions.
  decltype(&::ibv_create_comp_channel) create_comp_channel = nullptr;
  decltype(&::ibv_destroy_comp_channel) destroy_comp_channel = nullptr;
  decltype(&::ibv_create_cq) create_cq = nullptr;
  decltype(&::ibv_destroy_cq) destroy_cq = nullptr;
  decltype(&::ibv_get_cq_event) get_cq_event = nullptr;
  decltype(&::ibv_ack_cq_events) ack_cq_events = nullptr;

  // Queue pairs.
  decltype(&::ibv_create_qp) create_qp = nullptr;
  decltype(&::ibv_modify_qp) modify_qp = nullptr;
  decltype(&::ibv_query_qp) query_qp = nullptr;
  decltype(&::ibv_destroy_qp) destroy_qp = nullptr;
  decltype(&::ibv_qp_to_qp_ex) qp_to_qp_ex = nullptr;
  decltype(&::ibv_create_ah) create_ah = nullptr;
  decltype(&::ibv_destroy_ah) destroy_ah = nullptr;

  // Names for people.
  decltype(&::ibv_wc_status_str) wc_status_str = nullptr;
  decltype(&::ibv_event_type_str) event_type_str = nullptr;
  decltype(&::ibv_port_state_str) port_state_str = nullptr;
};

/// Opens libibverbs, which stays loaded from then on (its providers keep state), and fills the table. One
/// thread at a time. Errors, all kFailedPrecondition: not installed (which package to install), or too old
/// (what it lacks).
Result<VerbsLibrary> open_verbs_library(const std::string& name = "libibverbs.so.1");

}  // namespace mkernel::transport::rdma
