#include "tests/unit/daemon/transport/rdma/rc_pair.h"

namespace mkernel::test::nic {

int modify(const End& end, Attributes attributes) {
  return end.verbs.modify_qp(end.qp, &attributes.values, attributes.mask);
}

Attributes to_init() {
  Attributes to;
  to.values.qp_state = IBV_QPS_INIT;
  to.values.port_num = 1;
  to.values.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  to.mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  return to;
}

Attributes to_rtr(const End& peer, std::uint8_t peer_number) {
  Attributes to;
  to.values.qp_state = IBV_QPS_RTR;
  to.values.path_mtu = IBV_MTU_1024;
  to.values.dest_qp_num = peer.qp->qp_num;
  to.values.rq_psn = 0xfffffe;  // wraps soon
  to.values.max_dest_rd_atomic = 1;
  to.values.min_rnr_timer = 12;
  to.values.ah_attr.is_global = 1;
  to.values.ah_attr.port_num = 1;
  to.values.ah_attr.grh.dgid = ipv4_gid(10, 0, peer_number, 1);
  to.values.ah_attr.grh.sgid_index = 3;
  to.values.ah_attr.grh.hop_limit = 64;
  to.mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  return to;
}

Attributes to_rts(std::uint8_t timeout) {
  Attributes to;
  to.values.qp_state = IBV_QPS_RTS;
  to.values.sq_psn = 0xfffffe;
  to.values.timeout = timeout;
  to.values.retry_cnt = 3;
  to.values.rnr_retry = 2;
  to.values.max_rd_atomic = 1;
  to.mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
            IBV_QP_MAX_QP_RD_ATOMIC;
  return to;
}

RcPair::RcPair(std::uint64_t seed, int cq_entries) : fabric(seed) {
  fabric.add_device("one", {.name = "nic_a"});
  fabric.add_device("two", {.name = "nic_b"});
  a.open(fabric.verbs("one"), cq_entries);
  b.open(fabric.verbs("two"), cq_entries);
  a.create();
  b.create();
}

RcPair::~RcPair() {
  a.close();
  b.close();
  const auto complaints = fabric.complaints();
  for (const std::string& complaint : complaints) MESSAGE(complaint);
  CHECK(complaints.empty());
}

void RcPair::connect(End& own, const End& peer, std::uint8_t peer_number, const Attributes& rts) {
  REQUIRE(modify(own, to_init()) == 0);
  REQUIRE(modify(own, to_rtr(peer, peer_number)) == 0);
  REQUIRE(modify(own, rts) == 0);
}

void RcPair::connect(const Attributes& rts) {
  connect(a, b, 2, rts);
  connect(b, a, 1, rts);
}

void RcPair::reconnect() {
  a.destroy_qp();
  b.destroy_qp();
  a.create();
  b.create();
  connect();
}

}  // namespace mkernel::test::nic
