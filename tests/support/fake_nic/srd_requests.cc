// How requests are made on an EFA: efadv calls, and the functions behind ibv_wr_*. What a session of requests
// does wrong is said by wr_complete(), and then none of them goes.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/support/fake_nic/objects.h"

namespace mkernel::test::nic {
namespace {

using namespace transport::rdma;

// ---- requests; between wr_start and wr_complete the queue pair belongs to the calling thread

void begin(Qp& qp, ibv_wr_opcode opcode, std::uint32_t rkey, std::uint64_t remote, std::uint32_t immediate) {
  auto message = std::make_shared<Message>();
  message->wr_id = qp.wr_id;
  message->opcode = opcode;
  message->signalled = true;
  message->solicited = (qp.wr_flags & IBV_SEND_SOLICITED) != 0;
  message->rkey = rkey;
  message->remote = remote;
  message->immediate = immediate;
  qp.building.push_back(std::move(message));
  // The device knows no other requests than signalled ones.
  if (!qp.signal_all && (qp.wr_flags & IBV_SEND_SIGNALED) == 0) qp.building_error = EINVAL;
}

void wr_start(ibv_qp_ex* verbs) {
  of_request(verbs).building.clear();
  of_request(verbs).building_error = 0;
}

void wr_rdma_write(ibv_qp_ex* verbs, std::uint32_t rkey, std::uint64_t remote) {
  begin(of_request(verbs), IBV_WR_RDMA_WRITE, rkey, remote, 0);
}

void wr_rdma_write_imm(ibv_qp_ex* verbs, std::uint32_t rkey, std::uint64_t remote, __be32 immediate) {
  begin(of_request(verbs), IBV_WR_RDMA_WRITE_WITH_IMM, rkey, remote, immediate);
}

void wr_send(ibv_qp_ex* verbs) {
  begin(of_request(verbs), IBV_WR_SEND, 0, 0, 0);
}

void wr_send_imm(ibv_qp_ex* verbs, __be32 immediate) {
  begin(of_request(verbs), IBV_WR_SEND_WITH_IMM, 0, 0, immediate);
}

void wr_set_ud_addr(ibv_qp_ex* verbs, ibv_ah* ah, std::uint32_t target, std::uint32_t qkey) {
  Message& message = *of_request(verbs).building.back();
  message.address = of(ah)->attributes;
  message.target_qp = target;
  message.qkey = qkey;
}

void wr_set_sge_list(ibv_qp_ex* verbs, std::size_t count, const ibv_sge* parts) {
  Qp& qp = of_request(verbs);
  if (count > qp.cap.max_send_sge) qp.building_error = EINVAL;
  Message& message = *qp.building.back();
  message.parts.assign(parts, parts + count);
  for (const ibv_sge& part : message.parts) message.length += part.length;
}

void wr_set_sge(ibv_qp_ex* verbs, std::uint32_t lkey, std::uint64_t address, std::uint32_t length) {
  const ibv_sge part{address, length, lkey};
  wr_set_sge_list(verbs, 1, &part);
}

void wr_set_inline_data(ibv_qp_ex* verbs, void* data, std::size_t length) {
  Qp& qp = of_request(verbs);
  Message& message = *qp.building.back();
  const bool write_needs = writes(message) && (qp.efa_flags & kEfaQpInlineWrite) == 0;
  if (length > qp.cap.max_inline_data || write_needs) qp.building_error = EINVAL;
  const auto* const bytes = static_cast<const std::byte*>(data);
  message.inlined = true;
  message.inline_data.assign(bytes, bytes + length);
  message.length = length;
}

int wr_complete(ibv_qp_ex* verbs) {
  Qp& qp = of_request(verbs);
  const std::lock_guard held(qp.device->fabric->lock);
  qp.device->fabric->timeline.run();
  const auto requests = std::exchange(qp.building, {});
  if (qp.device->dead) return EIO;
  if (qp.building_error != 0) return qp.building_error;
  if (qp.attributes.qp_state != IBV_QPS_RTS) return EINVAL;
  if (qp.posted - qp.retired + requests.size() > qp.cap.max_send_wr) return ENOMEM;
  for (const auto& request : requests) {
    request->number = ++qp.posted;
    send_srd(qp, request);
  }
  return 0;
}

void wr_abort(ibv_qp_ex* verbs) {
  of_request(verbs).building.clear();
}

// ---- efadv

bool wide(std::uint32_t inline_bytes, bool inline_write) {
  return inline_write || inline_bytes > 32;
}

std::uint32_t depth(const Device& device, std::uint32_t inline_bytes, bool inline_write) {
  return device.settings.max_send_wr / (wide(inline_bytes, inline_write) ? 2 : 1);
}

int query_device(ibv_context* context, efadv_device_attr* out, std::uint32_t bytes) {
  Device& device = *of(context)->device;
  const std::lock_guard held(device.fabric->lock);
  if (!device.settings.efa) return EOPNOTSUPP;
  if (bytes < offsetof(efadv_device_attr, device_caps)) return EINVAL;
  efadv_device_attr attributes{};
  attributes.max_sq_wr = device.settings.max_send_wr;
  attributes.max_rq_wr = device.settings.max_recv_wr;
  attributes.max_sq_sge = attributes.max_rq_sge = static_cast<std::uint16_t>(device.settings.max_sge);
  attributes.inline_buf_size = static_cast<std::uint16_t>(device.settings.efa->inline_bytes);
  attributes.device_caps = device.settings.efa->capabilities;
  attributes.max_rdma_size = device.settings.efa->max_rdma_bytes;
  std::memcpy(out, &attributes, std::min<std::size_t>(bytes, sizeof(attributes)));
  return 0;
}

int max_sq_depth(ibv_context* context, EfaSqDepth* shape, std::uint32_t bytes) {
  Device& device = *of(context)->device;
  const std::lock_guard held(device.fabric->lock);
  if (!device.settings.efa) return -EOPNOTSUPP;
  if (bytes < sizeof(*shape) || shape->comp_mask != 0 || shape->max_rdma_sge > device.settings.max_sge ||
      shape->max_inline_data > device.settings.efa->inline_bytes) {
    return -EINVAL;
  }
  return static_cast<int>(
      depth(device, shape->max_inline_data, (shape->flags & kEfaSqDepthInlineWrite) != 0));
}

/// 0, or why there is no such queue pair.
int refused(const Device& device, const ibv_qp_init_attr_ex& attributes, const EfaQpInit& init) {
  if (attributes.qp_type != IBV_QPT_DRIVER || init.comp_mask != 0 || init.reserved != 0) return EINVAL;
  const std::uint32_t caps = device.settings.efa->capabilities;
  std::uint64_t operations = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
  std::uint32_t flags = 0;
  if ((caps & kEfaRdmaWrite) != 0) {
    operations |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    flags |= kEfaQpInlineWrite;
  }
  if ((caps & kEfaUnsolicitedWriteRecv) != 0) flags |= kEfaQpUnsolicitedWriteRecv;
  if (init.driver_qp_type != EFADV_QP_DRIVER_TYPE_SRD || (init.flags & ~flags) != 0) return EOPNOTSUPP;
  constexpr std::uint32_t kKnown = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  if ((attributes.comp_mask & ~kKnown) != 0) return EOPNOTSUPP;
  if ((attributes.comp_mask & IBV_QP_INIT_ATTR_PD) == 0) return EINVAL;
  if ((attributes.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0 &&
      (attributes.send_ops_flags & ~operations) != 0) {
    return EOPNOTSUPP;
  }
  const bool inline_write = (init.flags & kEfaQpInlineWrite) != 0;
  if (attributes.cap.max_send_wr > depth(device, attributes.cap.max_inline_data, inline_write)) return EINVAL;
  return 0;
}

ibv_qp* create_qp(ibv_context* context, ibv_qp_init_attr_ex* attributes, EfaQpInit* init,
                  std::uint32_t bytes) {
  Device& device = *of(context)->device;
  const std::lock_guard held(device.fabric->lock);
  if (!device.settings.efa) return fail(EOPNOTSUPP);
  if (bytes < sizeof(*init)) return fail(EINVAL);
  if (const int error = refused(device, *attributes, *init)) return fail(error);
  ibv_qp_init_attr plain{};
  plain.qp_context = attributes->qp_context;
  plain.send_cq = attributes->send_cq;
  plain.recv_cq = attributes->recv_cq;
  plain.srq = attributes->srq;
  plain.cap = attributes->cap;
  plain.qp_type = attributes->qp_type;
  plain.sq_sig_all = attributes->sq_sig_all;
  Qp* const qp = make_queue(attributes->pd, plain, true);
  if (qp == nullptr) return nullptr;
  qp->efa_flags = init->flags;
  attributes->cap = qp->cap;
  if ((attributes->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) == 0) return base_of(qp);
  const std::uint64_t operations = attributes->send_ops_flags;
  qp->wr_start = wr_start;
  qp->wr_complete = wr_complete;
  qp->wr_abort = wr_abort;
  qp->wr_set_ud_addr = wr_set_ud_addr;
  qp->wr_set_sge = wr_set_sge;
  qp->wr_set_sge_list = wr_set_sge_list;
  qp->wr_set_inline_data = wr_set_inline_data;
  if ((operations & IBV_QP_EX_WITH_SEND) != 0) qp->wr_send = wr_send;
  if ((operations & IBV_QP_EX_WITH_SEND_WITH_IMM) != 0) qp->wr_send_imm = wr_send_imm;
  if ((operations & IBV_QP_EX_WITH_RDMA_WRITE) != 0) qp->wr_rdma_write = wr_rdma_write;
  if ((operations & IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM) != 0) qp->wr_rdma_write_imm = wr_rdma_write_imm;
  if (device.settings.null_queues) fill_null_requests(*qp);
  return base_of(qp);
}

}  // namespace

void fill_efa_calls(EfaLibrary& efa) {
  efa.query_device = query_device;
  efa.create_qp = create_qp;
  efa.max_sq_depth = max_sq_depth;
}

}  // namespace mkernel::test::nic
