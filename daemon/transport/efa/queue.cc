#include "daemon/transport/efa/queue.h"

#include <endian.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "daemon/transport/rdma/wake.h"

namespace mkernel::transport::efa {

Result<std::unique_ptr<Queue>> Queue::make(Device& device, std::shared_ptr<ibv_pd> pd, const Shape& shape) {
  std::unique_ptr<Queue> made(new Queue(device, std::move(pd), shape));
  MK_RETURN_IF_ERROR(made->make_pair());
  MK_RETURN_IF_ERROR(made->ready());
  if (!device.abilities().unsolicited) MK_RETURN_IF_ERROR(made->post_receives(2 * shape.credit));
  return made;
}

/// The completion queue holds everything that can be there at a time: own requests, the peer's puts (its
/// credit, which it keeps also for channels that were closed meanwhile), and its acknowledgements, which are
/// never more than the puts that wait for one. Twice, for devices that count a completion until it is polled.
Status Queue::make_pair() {
  const Abilities& can = device_.abilities();
  const std::uint32_t entries = std::min(can.max_cqe, can.send_queue + 4 * shape_.credit);
  cq_ = rdma::own(device_.verbs().create_cq(device_.context(), static_cast<int>(entries),
                                            rdma::peer_context(shape_.peer), device_.completions(), 0),
                  device_.verbs().destroy_cq);
  if (cq_ == nullptr) return rdma::call_failed(device_.name(), "making a completion queue", errno);
  ibv_qp_init_attr_ex attributes{};
  attributes.send_cq = attributes.recv_cq = cq_.get();
  attributes.cap.max_send_wr = can.send_queue;
  attributes.cap.max_recv_wr = can.unsolicited ? 1 : 2 * shape_.credit;
  attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
  attributes.cap.max_inline_data = can.inline_bytes;
  attributes.qp_type = IBV_QPT_DRIVER;
  attributes.sq_sig_all = 1;
  attributes.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  attributes.pd = pd_.get();
  attributes.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
  rdma::EfaQpInit init;
  if (can.unsolicited) init.flags |= rdma::kEfaQpUnsolicitedWriteRecv;
  if (can.inline_bytes > 0) init.flags |= rdma::kEfaQpInlineWrite;
  init.service_level = shape_.service_level;
  qp_ = rdma::own(device_.efa().create_qp(device_.context(), &attributes, &init, sizeof(init)),
                  device_.verbs().destroy_qp);
  if (qp_ == nullptr) return rdma::call_failed(device_.name(), "creating an SRD queue pair", errno);
  requests_ = device_.verbs().qp_to_qp_ex(qp_.get());
  depth_ = std::min(can.send_queue, attributes.cap.max_send_wr);
  return {};
}

Status Queue::ready() {
  ibv_qp_attr values{};
  const auto change = [&](ibv_qp_state to, int mask) {
    values.qp_state = to;
    const int error = device_.verbs().modify_qp(qp_.get(), &values, IBV_QP_STATE | mask);
    return error == 0 ? Status() : rdma::call_failed(device_.name(), "preparing an SRD queue pair", error);
  };
  values.port_num = 1;
  values.qkey = shape_.qkey;
  values.rnr_retry = 7;  // for ever: the receiver polls, or the connection is given up
  MK_RETURN_IF_ERROR(change(IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
  MK_RETURN_IF_ERROR(change(IBV_QPS_RTR, 0));
  return change(IBV_QPS_RTS, IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY);
}

Hello Queue::hello(const Message& head, std::uint64_t from_boot_id, std::uint64_t to_boot_id,
                   std::uint32_t path) const {
  Hello message = device_.hello();
  message.head = head;
  message.from_boot_id = from_boot_id;
  message.to_boot_id = to_boot_id;
  message.qpn = qp_->qp_num;
  message.qkey = shape_.qkey;
  message.credit = shape_.credit;
  message.window = shape_.window;
  message.path = path;
  return message;
}

Status Queue::meet(const Hello& peer) {
  ibv_ah_attr attributes{};
  attributes.is_global = 1;
  attributes.port_num = 1;
  std::memcpy(attributes.grh.dgid.raw, peer.gid, sizeof(peer.gid));
  address_ = rdma::own(device_.verbs().create_ah(pd_.get(), &attributes), device_.verbs().destroy_ah);
  if (address_ == nullptr)
    return rdma::call_failed(device_.name(), "making the peer's address handle", errno);
  peer_qpn_ = peer.qpn;
  peer_qkey_ = peer.qkey;
  return {};
}

Result<std::size_t> Queue::post(std::span<const Request> requests) {
  const std::size_t count = std::min<std::size_t>(requests.size(), room());
  if (count == 0) return count;
  ibv_wr_start(requests_);
  for (const Request& request : requests.first(count)) {
    requests_->wr_id = request.id;
    requests_->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write_imm(requests_, request.rkey, request.target, htobe32(pack(request.immediate)));
    if (request.inlined != nullptr) {
      ibv_wr_set_inline_data(requests_, request.inlined, request.length);
    } else {
      ibv_wr_set_sge(requests_, request.lkey, request.source, request.length);
    }
    ibv_wr_set_ud_addr(requests_, address_.get(), peer_qpn_, peer_qkey_);
  }
  const int error = ibv_wr_complete(requests_);
  if (error == ENOMEM) return std::size_t{0};
  if (error != 0) return rdma::call_failed(device_.name(), "posting to an SRD queue pair", error);
  held_ += static_cast<std::uint32_t>(count);
  return count;
}

Result<std::size_t> Queue::poll(std::span<ibv_wc> out) {
  const int polled = ibv_poll_cq(cq_.get(), static_cast<int>(out.size()), out.data());
  if (polled < 0) return rdma::call_failed(device_.name(), "polling a completion queue", EIO);
  if (polled > 0) armed_ = false;
  std::uint32_t received = 0;
  for (int i = 0; i < polled; ++i) {
    const bool arrived = out[i].status == IBV_WC_SUCCESS && out[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM;
    if (arrived) {
      ++received;
    } else {
      --held_;
    }
  }
  if (!device_.abilities().unsolicited && received > 0) MK_RETURN_IF_ERROR(post_receives(received));
  return static_cast<std::size_t>(polled);
}

Status Queue::post_receives(std::uint32_t count) {
  ibv_recv_wr request{};
  ibv_recv_wr* bad = nullptr;
  for (std::uint32_t i = 0; i < count; ++i) {
    const int error = ibv_post_recv(qp_.get(), &request, &bad);
    if (error != 0) return rdma::call_failed(device_.name(), "posting a receive", error);
  }
  return {};
}

bool Queue::arm() {
  if (std::exchange(armed_, true)) return true;
  return ibv_req_notify_cq(cq_.get(), 0) != 0;  // else the device is lost, and says so by itself
}

}  // namespace mkernel::transport::efa
