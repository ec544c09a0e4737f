#include "daemon/transport/rdma/library.h"

#include <cerrno>

#include "daemon/transport/rdma/shared_object.h"

namespace mkernel::transport::rdma {
namespace {

// What verbs.h reaches through the context and only falls back to the library for drivers of before 2019.

int query_device(ibv_context* context, ibv_device_attr_ex* attributes) {
  verbs_context* const verbs = verbs_get_ctx_op(context, query_device_ex);
  if (verbs == nullptr) return EOPNOTSUPP;
  return verbs->query_device_ex(context, nullptr, attributes, sizeof(*attributes));
}

int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes) {
  verbs_context* const verbs = verbs_get_ctx_op(context, query_port);
  if (verbs == nullptr) return EOPNOTSUPP;
  return verbs->query_port(context, port, attributes, sizeof(*attributes));
}

// The library's function takes the size of the entry, as a version; the table's does not.
decltype(&::_ibv_query_gid_ex) library_query_gid_ex = nullptr;

int query_gid_ex(ibv_context* context, std::uint32_t port, std::uint32_t index, ibv_gid_entry* entry) {
  return library_query_gid_ex(context, port, index, entry, 0, sizeof(*entry));
}

void find_devices(SharedObject& object, VerbsLibrary& verbs) {
  object.find(verbs.get_device_list, "ibv_get_device_list", "IBVERBS_1.1");
  object.find(verbs.free_device_list, "ibv_free_device_list", "IBVERBS_1.1");
  object.find(verbs.get_device_name, "ibv_get_device_name", "IBVERBS_1.1");
  object.find(verbs.open_device, "ibv_open_device", "IBVERBS_1.1");
  object.find(verbs.close_device, "ibv_close_device", "IBVERBS_1.1");
  verbs.query_device = query_device;
  verbs.query_port = query_port;
  object.find(verbs.query_gid, "ibv_query_gid", "IBVERBS_1.1");
  object.find(library_query_gid_ex, "_ibv_query_gid_ex", "IBVERBS_1.11");
  verbs.query_gid_ex = query_gid_ex;
  object.find(verbs.query_pkey, "ibv_query_pkey", "IBVERBS_1.1");
  object.find(verbs.get_async_event, "ibv_get_async_event", "IBVERBS_1.1");
  object.find(verbs.ack_async_event, "ibv_ack_async_event", "IBVERBS_1.1");
}

void find_memory_and_completions(SharedObject& object, VerbsLibrary& verbs) {
  object.find(verbs.alloc_pd, "ibv_alloc_pd", "IBVERBS_1.1");
  object.find(verbs.dealloc_pd, "ibv_dealloc_pd", "IBVERBS_1.1");
  object.find(verbs.reg_mr, "ibv_reg_mr_iova2", "IBVERBS_1.8");
  object.find(verbs.reg_dmabuf_mr, "ibv_reg_dmabuf_mr", "IBVERBS_1.12");
  object.find(verbs.dereg_mr, "ibv_dereg_mr", "IBVERBS_1.1");
  object.find(verbs.create_comp_channel, "ibv_create_comp_channel", "IBVERBS_1.0");
  object.find(verbs.destroy_comp_channel, "ibv_destroy_comp_channel", "IBVERBS_1.0");
  object.find(verbs.create_cq, "ibv_create_cq", "IBVERBS_1.1");
  object.find(verbs.destroy_cq, "ibv_destroy_cq", "IBVERBS_1.1");
  object.find(verbs.get_cq_event, "ibv_get_cq_event", "IBVERBS_1.1");
  object.find(verbs.ack_cq_events, "ibv_ack_cq_events", "IBVERBS_1.1");
}

void find_queue_pairs(SharedObject& object, VerbsLibrary& verbs) {
  object.find(verbs.create_qp, "ibv_create_qp", "IBVERBS_1.1");
  object.find(verbs.modify_qp, "ibv_modify_qp", "IBVERBS_1.1");
  object.find(verbs.query_qp, "ibv_query_qp", "IBVERBS_1.1");
  object.find(verbs.destroy_qp, "ibv_destroy_qp", "IBVERBS_1.1");
  object.find(verbs.qp_to_qp_ex, "ibv_qp_to_qp_ex", "IBVERBS_1.6");
  object.find(verbs.create_ah, "ibv_create_ah", "IBVERBS_1.1");
  object.find(verbs.destroy_ah, "ibv_destroy_ah", "IBVERBS_1.1");
  object.find(verbs.wc_status_str, "ibv_wc_status_str", "IBVERBS_1.1");
  object.find(verbs.event_type_str, "ibv_event_type_str", "IBVERBS_1.1");
  object.find(verbs.port_state_str, "ibv_port_state_str", "IBVERBS_1.1");
}

}  // namespace

Result<VerbsLibrary> open_verbs_library(const std::string& name) {
  auto object =
      SharedObject::open(name, "libibverbs1 and ibverbs-providers (Debian, Ubuntu) or libibverbs (RHEL)");
  if (!object.ok()) return object.status();
  VerbsLibrary verbs;
  find_devices(*object, verbs);
  find_memory_and_completions(*object, verbs);
  find_queue_pairs(*object, verbs);
  MK_RETURN_IF_ERROR(object->complete("rdma-core 34"));
  return verbs;
}

}  // namespace mkernel::transport::rdma
