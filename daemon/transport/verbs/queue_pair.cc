#include "daemon/transport/verbs/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace mkernel::transport::verbs {
namespace {

constexpr std::uint8_t kHopLimit = 64;
/// Nothing here ever meets a receiver that is not ready: plain writes take no receive request.
constexpr std::uint8_t kRnrRetry = 7;
constexpr std::uint8_t kMinRnrTimer = 12;
constexpr std::size_t kSubnetPrefixBytes = 8;

}  // namespace

Result<QueuePair> QueuePair::make(const VerbsOptions& options, Path& path, ibv_cq* send_cq,
                                  std::uint32_t psn) {
  QueuePair made;
  made.options_ = &options;
  made.path_ = &path;
  made.writes_ = send_cq != nullptr;
  made.psn_ = psn;
  ibv_qp_init_attr init{};
  init.qp_type = IBV_QPT_RC;
  init.send_cq = made.writes_ ? send_cq : path.quiet_cq();
  init.recv_cq = path.quiet_cq();
  init.cap.max_send_wr = made.writes_ ? options.send_queue : 1;
  init.cap.max_recv_wr = 1;
  init.cap.max_send_sge = 1;
  init.cap.max_recv_sge = 1;
  init.cap.max_inline_data = made.writes_ ? options.max_inline : 0;
  made.qp_ = rdma::own(options.verbs.create_qp(path.pd(), &init), options.verbs.destroy_qp);
  if (made.qp_ == nullptr) {
    return rdma::call_failed(path.text(),
                             "making a queue pair of " + std::to_string(init.cap.max_send_wr) +
                                 " requests, " + std::to_string(init.cap.max_inline_data) + " bytes inline",
                             errno);
  }
  made.inline_bytes_ = init.cap.max_inline_data;
  MK_RETURN_IF_ERROR(made.init());
  return made;
}

Status QueuePair::modify(ibv_qp_attr& attributes, int mask, const char* state) {
  const int error = options_->verbs.modify_qp(qp_.get(), &attributes, mask);
  if (error == 0) return {};
  return rdma::call_failed(path_->text(), "queue pair " + std::to_string(qpn()) + " to " + state, error);
}

Status QueuePair::init() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = 0;
  attributes.port_num = path_->port().number;
  attributes.qp_access_flags = writes_ ? 0 : IBV_ACCESS_REMOTE_WRITE;
  return modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT");
}

Status QueuePair::connect(const RemoteQueue& remote) {
  MK_RETURN_IF_ERROR(ready_to_receive(remote));
  return writes_ ? ready_to_send() : Status();
}

/// RoCE needs a GRH always, InfiniBand a LID, and a GRH only where another subnet is meant.
Status QueuePair::ready_to_receive(const RemoteQueue& remote) {
  const Port& local = path_->port();
  if (local.link_layer != remote.port.link_layer) {
    return {StatusCode::kFailedPrecondition,
            path_->text() + " and " + text_of(remote.port) + " are not of one kind: InfiniBand and Ethernet"};
  }
  const bool ethernet = local.link_layer == IBV_LINK_LAYER_ETHERNET;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(std::min(local.mtu, remote.port.mtu));
  attributes.dest_qp_num = remote.qpn;
  attributes.rq_psn = remote.psn;
  attributes.max_dest_rd_atomic = 1;
  attributes.min_rnr_timer = kMinRnrTimer;
  ibv_ah_attr& address = attributes.ah_attr;
  address.port_num = local.number;
  address.sl = options_->service_level;
  address.dlid = static_cast<std::uint16_t>(remote.port.lid);
  if (ethernet || std::memcmp(local.gid, remote.port.gid, kSubnetPrefixBytes) != 0) {
    address.is_global = 1;
    std::memcpy(address.grh.dgid.raw, remote.port.gid, sizeof(remote.port.gid));
    address.grh.sgid_index = path_->gid_index();
    address.grh.hop_limit = kHopLimit;
    address.grh.traffic_class = options_->traffic_class;
  }
  return modify(attributes,
                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                "RTR");
}

Status QueuePair::ready_to_send() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = options_->timeout;
  attributes.retry_cnt = options_->retry_count;
  attributes.rnr_retry = kRnrRetry;
  attributes.sq_psn = psn_;
  attributes.max_rd_atomic = 1;
  return modify(attributes,
                IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                    IBV_QP_MAX_QP_RD_ATOMIC,
                "RTS");
}

}  // namespace mkernel::transport::verbs
