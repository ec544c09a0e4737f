// The fake NIC's reliable connections, as tests of the transports rely on them.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <numeric>

#include "tests/unit/daemon/transport/rdma/rc_pair.h"

namespace mkernel::test::nic {
namespace {

TEST_CASE("a change of state with an attribute missing, or one too many, is refused") {
  RcPair pair;
  const auto each_is_needed = [&](const Attributes& good) {
    for (int bit = 1; bit <= good.mask; bit <<= 1) {
      if ((good.mask & bit) == 0 || bit == IBV_QP_STATE) continue;
      CHECK(modify(pair.a, {good.values, good.mask & ~bit}) == EINVAL);
    }
    CHECK(modify(pair.a, {good.values, good.mask | IBV_QP_QKEY}) == EINVAL);
    CHECK(modify(pair.a, good) == 0);
  };
  CHECK(modify(pair.a, to_rtr(pair.b, 2)) == EINVAL);  // not from reset
  each_is_needed(to_init());
  each_is_needed(to_rtr(pair.b, 2));
  each_is_needed(to_rts());
  CHECK(pair.a.state() == IBV_QPS_RTS);
  CHECK(modify(pair.a, to_rtr(pair.b, 2)) == EINVAL);
}

TEST_CASE("values that the port cannot honour are refused") {
  RcPair pair;
  auto init = to_init();
  init.values.port_num = 2;
  CHECK(modify(pair.a, init) == EINVAL);
  REQUIRE(modify(pair.a, to_init()) == 0);
  auto rtr = to_rtr(pair.b, 2);
  rtr.values.ah_attr.is_global = 0;  // RoCE always needs a GRH
  CHECK(modify(pair.a, rtr) == EINVAL);
  rtr = to_rtr(pair.b, 2);
  rtr.values.path_mtu = static_cast<ibv_mtu>(IBV_MTU_4096 + 1);
  CHECK(modify(pair.a, rtr) == EINVAL);
  CHECK(modify(pair.a, to_rtr(pair.b, 9)) == ETIMEDOUT);  // an address that nobody has
}

TEST_CASE("a write lands, completes, and the bytes are those of the sender") {
  RcPair pair;
  pair.connect();
  std::iota(pair.a.memory.begin(), pair.a.memory.end(), 77);
  CHECK(pair.a.write(pair.b, 5, 0, 64, IBV_SEND_SIGNALED) == 0);
  CHECK(pair.a.write(pair.b, 6, 100, 9000, IBV_SEND_SIGNALED) == 0);  // 9 packets: the PSN wraps
  const auto done = pair.a.poll(2);
  REQUIRE(done.size() == 2);
  CHECK(done[0].status == IBV_WC_SUCCESS);
  CHECK(done[0].wr_id == 5);
  CHECK(done[0].opcode == IBV_WC_RDMA_WRITE);
  CHECK(done[0].qp_num == pair.a.qp->qp_num);
  CHECK(done[1].wr_id == 6);
  CHECK(std::memcmp(pair.b.memory.data(), pair.a.memory.data(), 64) == 0);
  CHECK(std::memcmp(&pair.b.memory[100], &pair.a.memory[100], 9000) == 0);
  CHECK(pair.b.memory[8] == 0);
  CHECK(pair.b.nothing());
  CHECK(pair.fabric.received("nic_b") == 2);
  ibv_qp_attr attributes{};
  ibv_qp_init_attr init{};
  CHECK(pair.b.verbs.query_qp(pair.b.qp, &attributes, IBV_QP_RQ_PSN, &init) == 0);
  CHECK(attributes.rq_psn == ((0xfffffe + 10) & 0xffffff));
}

TEST_CASE("inline data may be overwritten at once, other data is read when it goes") {
  RcPair pair;
  pair.connect();
  CHECK(pair.a.cap.max_inline_data == 16);  // more than was asked for: read back
  pair.fabric.every_path({.latency = kLongWay});
  pair.a.memory[0] = pair.a.memory[10] = 1;
  CHECK(pair.a.write(pair.b, 1, 0, 8, IBV_SEND_INLINE) == 0);
  CHECK(pair.a.write(pair.b, 2, 10, 8, IBV_SEND_SIGNALED) == 0);
  pair.a.memory[0] = pair.a.memory[10] = 2;
  REQUIRE(pair.a.poll(1).size() == 1);
  CHECK(pair.b.memory[0] == 1);
  CHECK(pair.b.memory[10] == 2);
  CHECK(pair.a.write(pair.b, 3, 0, 17, IBV_SEND_INLINE) == EINVAL);
}

TEST_CASE("unsignalled requests hold their places until a later signalled one is polled") {
  RcPair pair;
  pair.connect();
  for (int i = 0; i < 15; ++i) REQUIRE(pair.a.write(pair.b, 1, 0, 8, 0) == 0);
  REQUIRE(pair.a.write(pair.b, 2, 0, 8, IBV_SEND_SIGNALED) == 0);
  CHECK(pair.a.write(pair.b, 3, 0, 8, IBV_SEND_SIGNALED) == ENOMEM);
  CHECK(pair.fabric.received("nic_b") == 16);  // all carried out, and still held
  REQUIRE(pair.a.poll(1).size() == 1);
  CHECK(pair.a.write(pair.b, 3, 0, 8, 0) == 0);
}

TEST_CASE("of a batch that does not fit, what was taken goes and the first refused is named") {
  RcPair pair;
  pair.connect();
  std::vector<ibv_send_wr> batch(20);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    batch[i].next = i + 1 < batch.size() ? &batch[i + 1] : nullptr;
    batch[i].opcode = IBV_WR_RDMA_WRITE;
  }
  ibv_send_wr* bad = nullptr;
  CHECK(ibv_post_send(pair.a.qp, batch.data(), &bad) == ENOMEM);
  CHECK(bad == &batch[16]);
  CHECK(pair.fabric.received("nic_b") == 16);
}

void check_remote_error(RcPair& pair, const Remote& target) {
  REQUIRE(pair.a.write(pair.b, 1, 0, 8, 0) == 0);
  REQUIRE(pair.a.write(target, 2, 0, 8, 0) == 0);
  REQUIRE(pair.a.write(pair.b, 3, 16, 8, 0) == 0);
  const auto done = pair.a.poll(2);  // the first is fine and says nothing
  REQUIRE(done.size() == 2);
  CHECK(done[0].wr_id == 2);
  CHECK(done[0].status == IBV_WC_REM_ACCESS_ERR);
  CHECK(done[1].wr_id == 3);
  CHECK(done[1].status == IBV_WC_WR_FLUSH_ERR);
  CHECK(pair.a.state() == IBV_QPS_ERR);
  CHECK(pair.b.state() == IBV_QPS_ERR);
  CHECK(pair.b.memory[16] == 0);
  ibv_async_event event{};
  REQUIRE(pair.b.verbs.get_async_event(pair.b.context, &event) == 0);
  CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR);
  CHECK(event.element.qp == pair.b.qp);
  pair.b.verbs.ack_async_event(&event);
  CHECK(pair.a.write(pair.b, 4, 0, 8, 0) == 0);  // taken, and flushed
  const auto flushed = pair.a.poll(1);
  REQUIRE(flushed.size() == 1);
  CHECK(flushed[0].status == IBV_WC_WR_FLUSH_ERR);
}

TEST_CASE("a write that the other end did not allow breaks both queue pairs") {
  RcPair pair;
  pair.connect();
  pair.a.memory[0] = pair.a.memory[16] = 1;
  pair.fabric.every_path({.latency = std::chrono::microseconds(300)});
  Remote target = pair.b.remote();
  SUBCASE("a key that does not exist") {
    target.rkey += 1;
  }
  SUBCASE("the end of the region") {
    target.address += pair.b.bytes() - 7;
  }
  SUBCASE("the byte before it") {
    target.address -= 1;
  }
  check_remote_error(pair, target);
}

TEST_CASE("a region without the right, or of another protection domain, cannot be written") {
  RcPair pair;
  pair.connect();
  pair.fabric.every_path({.latency = std::chrono::microseconds(300)});
  pair.a.memory[16] = 1;
  ibv_pd* pd = pair.b.pd;
  unsigned access = IBV_ACCESS_LOCAL_WRITE;
  SUBCASE("no remote write") {}
  SUBCASE("another domain") {
    pd = pair.b.verbs.alloc_pd(pair.b.context);
    access |= IBV_ACCESS_REMOTE_WRITE;
  }
  ibv_mr* const other = pair.b.verbs.reg_mr(pd, pair.b.memory.data(), 64, pair.b.address(), access);
  REQUIRE(other != nullptr);
  check_remote_error(pair, {pair.b.address(), other->rkey});
  CHECK(pair.b.verbs.dereg_mr(other) == 0);
  if (pd != pair.b.pd) CHECK(pair.b.verbs.dealloc_pd(pd) == 0);
}

TEST_CASE("memory that the sender did not register fails at the sender") {
  RcPair pair;
  pair.connect();
  const std::uint32_t right = pair.a.mr->lkey;
  pair.a.mr->lkey = right + 1;
  REQUIRE(pair.a.write(pair.b, 1, 0, 8, 0) == 0);
  pair.a.mr->lkey = right;
  const auto done = pair.a.poll(1);
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_LOC_PROT_ERR);
  CHECK(pair.a.state() == IBV_QPS_ERR);
  CHECK(pair.b.state() == IBV_QPS_RTS);
}

TEST_CASE("a write with immediate data consumes a receive, after its data is in place") {
  RcPair pair;
  pair.connect();
  pair.a.memory[3] = 42;
  REQUIRE(pair.b.receive(9, 100, 8) == 0);
  REQUIRE(pair.a.write(pair.b, 1, 3, 8, IBV_SEND_SIGNALED, IBV_WR_RDMA_WRITE_WITH_IMM, 0x12345678) == 0);
  const auto arrived = pair.b.poll(1);
  REQUIRE(arrived.size() == 1);
  CHECK(arrived[0].wr_id == 9);
  CHECK(arrived[0].opcode == IBV_WC_RECV_RDMA_WITH_IMM);
  CHECK(arrived[0].wc_flags == IBV_WC_WITH_IMM);
  CHECK(arrived[0].imm_data == 0x12345678);
  CHECK(arrived[0].byte_len == 8);
  CHECK(pair.b.memory[3] == 42);
  CHECK(pair.b.memory[100] == 0);
}

TEST_CASE("a send lands in the receive that was posted first; one too small breaks both ends") {
  RcPair pair;
  pair.connect();
  pair.a.memory[0] = 7;
  REQUIRE(pair.b.receive(1, 200, 16) == 0);
  REQUIRE(pair.b.receive(2, 300, 8) == 0);
  REQUIRE(pair.a.write(pair.b, 1, 0, 16, IBV_SEND_SIGNALED, IBV_WR_SEND) == 0);
  const auto arrived = pair.b.poll(1);
  REQUIRE(arrived.size() == 1);
  CHECK(arrived[0].opcode == IBV_WC_RECV);
  CHECK(arrived[0].byte_len == 16);
  CHECK(pair.b.memory[200] == 7);
  REQUIRE(pair.a.poll(1).size() == 1);
  REQUIRE(pair.a.write(pair.b, 2, 0, 16, IBV_SEND_SIGNALED, IBV_WR_SEND) == 0);
  const auto small = pair.b.poll(1);
  REQUIRE(small.size() == 1);
  CHECK(small[0].status == IBV_WC_LOC_LEN_ERR);
  const auto refused = pair.a.poll(1);
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].status == IBV_WC_REM_INV_REQ_ERR);
  CHECK(pair.b.state() == IBV_QPS_ERR);
}

TEST_CASE("without a receive the sender waits, and gives up after its retries") {
  RcPair pair;
  SUBCASE("one comes in time") {
    auto patient = to_rts();
    patient.values.rnr_retry = 7;  // for ever
    pair.connect(patient);
    REQUIRE(pair.a.write(pair.b, 1, 0, 0, IBV_SEND_SIGNALED, IBV_WR_RDMA_WRITE_WITH_IMM) == 0);
    CHECK(pair.a.nothing());
    REQUIRE(pair.b.receive(1, 0, 8) == 0);
    const auto done = pair.a.poll(1);
    REQUIRE(done.size() == 1);
    CHECK(done[0].status == IBV_WC_SUCCESS);
  }
  SUBCASE("none comes") {
    pair.connect();
    REQUIRE(pair.a.write(pair.b, 1, 0, 0, IBV_SEND_SIGNALED, IBV_WR_RDMA_WRITE_WITH_IMM) == 0);
    const auto done = pair.a.poll(1);
    REQUIRE(done.size() == 1);
    CHECK(done[0].status == IBV_WC_RNR_RETRY_EXC_ERR);
  }
}

TEST_CASE("both PSNs must agree, and both ends must mean each other") {
  RcPair pair;
  REQUIRE(modify(pair.a, to_init()) == 0);
  REQUIRE(modify(pair.a, to_rtr(pair.b, 2)) == 0);
  REQUIRE(modify(pair.a, to_rts()) == 0);
  REQUIRE(modify(pair.b, to_init()) == 0);
  auto rtr = to_rtr(pair.a, 1);
  SUBCASE("another PSN") {
    rtr.values.rq_psn = 5;
  }
  SUBCASE("another queue pair") {
    rtr.values.dest_qp_num += 1;
  }
  REQUIRE(modify(pair.b, rtr) == 0);
  REQUIRE(pair.a.write(pair.b, 1, 0, 8, 0) == 0);
  const auto done = pair.a.poll(1);
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_RETRY_EXC_ERR);
  CHECK(pair.fabric.received("nic_b") == 0);
}

TEST_CASE("a completion wakes the channel once for every time it was asked to") {
  RcPair pair;
  pair.connect();
  CHECK(ibv_req_notify_cq(pair.a.cq, 0) == 0);
  REQUIRE(pair.a.write(pair.b, 1, 0, 8, IBV_SEND_SIGNALED) == 0);
  REQUIRE(pair.a.write(pair.b, 2, 0, 8, IBV_SEND_SIGNALED) == 0);
  ibv_cq* cq = nullptr;
  void* user = nullptr;
  REQUIRE(pair.a.verbs.get_cq_event(pair.a.channel, &cq, &user) == 0);
  CHECK(cq == pair.a.cq);
  CHECK(user == &pair.a);
  pair.a.verbs.ack_cq_events(cq, 1);
  CHECK(pair.a.poll(2).size() == 2);
  CHECK(ibv_req_notify_cq(pair.a.cq, 0) == 0);
  REQUIRE(pair.a.write(pair.b, 3, 0, 8, IBV_SEND_SIGNALED) == 0);
  REQUIRE(pair.a.verbs.get_cq_event(pair.a.channel, &cq, &user) == 0);
  pair.a.verbs.ack_cq_events(cq, 1);
}

TEST_CASE("dma-buf memory: registered at an offset that is not page aligned, written through") {
  RcPair pair;
  pair.connect();
  const int fd = ::memfd_create("gpu", MFD_CLOEXEC);
  REQUIRE(::ftruncate(fd, 1 << 16) == 0);
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  CHECK(pair.b.verbs.reg_dmabuf_mr(pair.b.pd, 0, 8, 0, -1, access) == nullptr);
  CHECK(errno == EBADF);
  CHECK(pair.b.verbs.reg_dmabuf_mr(pair.b.pd, 4096 + 64, 128, 0, fd, access) == nullptr);
  CHECK(errno == EINVAL);  // an iova that lies elsewhere in its page
  CHECK(pair.b.verbs.reg_dmabuf_mr(pair.b.pd, 1 << 16, 1, 0, fd, access) == nullptr);
  ibv_mr* const mr = pair.b.verbs.reg_dmabuf_mr(pair.b.pd, 4096 + 64, 128, 64, fd, access);
  REQUIRE(mr != nullptr);
  pair.a.memory[0] = 0xabcdef;
  ibv_sge part{pair.a.address(), 8, pair.a.mr->lkey};
  ibv_send_wr request{};
  request.sg_list = &part;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = 64 + 8;
  request.wr.rdma.rkey = mr->rkey;
  ibv_send_wr* bad = nullptr;
  REQUIRE(ibv_post_send(pair.a.qp, &request, &bad) == 0);
  REQUIRE(pair.a.poll(1).size() == 1);
  std::uint64_t seen = 0;
  CHECK(::pread(fd, &seen, sizeof(seen), 4096 + 64 + 8) == sizeof(seen));
  CHECK(seen == 0xabcdef);
  CHECK(pair.b.verbs.dereg_mr(mr) == 0);
  ::close(fd);
}

}  // namespace
}  // namespace mkernel::test::nic
