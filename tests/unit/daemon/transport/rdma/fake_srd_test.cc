// The fake NIC's SRD: no order, address handles at both ends, every request signalled, errors that stay with
// their request.
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/support/fake_nic/fabric.h"

namespace mkernel::test::nic {
namespace {

using namespace std::chrono_literals;
using namespace transport::rdma;

constexpr std::uint32_t kQkey = 0x11111111;
constexpr std::uint64_t kOperations =
    IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;

struct SrdEnd {
  VerbsLibrary verbs;
  EfaLibrary efa;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_qp_ex* requests = nullptr;
  ibv_mr* mr = nullptr;
  ibv_ah* peer = nullptr;
  std::vector<std::uint64_t> memory = std::vector<std::uint64_t>(1024);
  std::uint64_t operations = kOperations;

  void open(Fabric& fabric, const char* host) {
    verbs = fabric.verbs(host);
    efa = fabric.efa();
    ibv_device** const devices = verbs.get_device_list(nullptr);
    context = verbs.open_device(devices[0]);
    verbs.free_device_list(devices);
    REQUIRE(context != nullptr);
    pd = verbs.alloc_pd(context);
    cq = verbs.create_cq(context, 256, nullptr, nullptr, 0);
    mr = verbs.reg_mr(pd, memory.data(), 8192, reinterpret_cast<std::uint64_t>(memory.data()),
                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    REQUIRE(mr != nullptr);
  }
  int create(std::uint16_t flags, std::uint32_t depth = 64, std::uint32_t inline_bytes = 0) {
    ibv_qp_init_attr_ex attributes{};
    attributes.send_cq = attributes.recv_cq = cq;
    attributes.cap = {.max_send_wr = depth,
                      .max_recv_wr = 4,
                      .max_send_sge = 1,
                      .max_recv_sge = 1,
                      .max_inline_data = inline_bytes};
    attributes.qp_type = IBV_QPT_DRIVER;
    attributes.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attributes.pd = pd;
    attributes.send_ops_flags = operations;
    EfaQpInit init;
    init.flags = flags;
    qp = efa.create_qp(context, &attributes, &init, sizeof(init));
    if (qp == nullptr) return errno;
    requests = verbs.qp_to_qp_ex(qp);
    REQUIRE(requests != nullptr);
    return 0;
  }
  int modify(const ibv_qp_attr& values, int mask) const {
    ibv_qp_attr copy = values;
    return verbs.modify_qp(qp, &copy, mask);
  }
  void ready(std::uint8_t rnr_retry = 7) const {
    ibv_qp_attr values{};
    values.qp_state = IBV_QPS_INIT;
    values.port_num = 1;
    values.qkey = kQkey;
    REQUIRE(modify(values, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
    values.qp_state = IBV_QPS_RTR;
    REQUIRE(modify(values, IBV_QP_STATE) == 0);
    values.qp_state = IBV_QPS_RTS;
    values.rnr_retry = rnr_retry;
    REQUIRE(modify(values, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY) == 0);
  }
  void meet(const SrdEnd& other) {
    ibv_ah_attr address{};
    address.is_global = 1;
    address.port_num = 1;
    REQUIRE(other.verbs.query_gid(other.context, 1, 0, &address.grh.dgid) == 0);
    peer = verbs.create_ah(pd, &address);
    REQUIRE(peer != nullptr);
  }
  void forget() {
    if (peer != nullptr) CHECK(verbs.destroy_ah(peer) == 0);
    peer = nullptr;
  }
  void close() {
    forget();
    if (qp != nullptr) CHECK(verbs.destroy_qp(qp) == 0);
    CHECK(verbs.dereg_mr(mr) == 0);
    CHECK(verbs.destroy_cq(cq) == 0);
    CHECK(verbs.dealloc_pd(pd) == 0);
    CHECK(verbs.close_device(context) == 0);
  }

  void begin(std::uint64_t wr_id, unsigned flags = IBV_SEND_SIGNALED) const {
    requests->wr_id = wr_id;
    requests->wr_flags = flags;
  }
  /// memory[at] to memory[at] there, with immediate data wr_id.
  int write(const SrdEnd& to, std::uint32_t wr_id, std::size_t at, std::uint32_t length,
            std::uint32_t more_key = 0) const {
    ibv_wr_start(requests);
    begin(wr_id);
    ibv_wr_rdma_write_imm(requests, to.mr->rkey + more_key, reinterpret_cast<std::uint64_t>(&to.memory[at]),
                          wr_id);
    ibv_wr_set_sge(requests, mr->lkey, reinterpret_cast<std::uint64_t>(&memory[at]), length);
    ibv_wr_set_ud_addr(requests, peer, to.qp->qp_num, kQkey);
    return ibv_wr_complete(requests);
  }
  std::vector<ibv_wc> poll(std::size_t count) const {
    std::vector<ibv_wc> all;
    const auto limit = std::chrono::steady_clock::now() + 10s;
    while (all.size() < count && std::chrono::steady_clock::now() < limit) {
      ibv_wc wc{};
      if (ibv_poll_cq(cq, 1, &wc) == 1) {
        all.push_back(wc);
      } else {
        std::this_thread::yield();
      }
    }
    return all;
  }
  /// The vendor status of the one request that was posted.
  std::uint32_t status() const {
    const auto done = poll(1);
    REQUIRE(done.size() == 1);
    CHECK((done[0].status == IBV_WC_SUCCESS) == (done[0].vendor_err == 0));
    return done[0].vendor_err;
  }
};

class SrdPair {
 public:
  explicit SrdPair(const EfaSettings& efa = {}) {
    fabric.add_device("one", {.name = "efa_a", .max_send_wr = 64, .efa = efa});
    fabric.add_device("two", {.name = "efa_b", .max_send_wr = 64, .efa = efa});
    a.open(fabric, "one");
    b.open(fabric, "two");
  }
  ~SrdPair() {
    a.close();
    b.close();
    CHECK(fabric.complaints().empty());
  }
  void connect(std::uint16_t flags = kEfaQpUnsolicitedWriteRecv) {
    REQUIRE(a.create(flags) == 0);
    REQUIRE(b.create(flags) == 0);
    a.ready();
    b.ready();
    a.meet(b);
    b.meet(a);
  }
  Fabric fabric{3};
  SrdEnd a, b;
};

TEST_CASE("SRD: a device says what it can, and refuses what it cannot by EOPNOTSUPP") {
  EfaSettings old;
  old.capabilities = kEfaRdmaRead;
  SrdPair pair(old);
  efadv_device_attr attributes{};
  REQUIRE(pair.a.efa.query_device(pair.a.context, &attributes, sizeof(attributes)) == 0);
  CHECK(attributes.device_caps == kEfaRdmaRead);
  CHECK(attributes.max_sq_wr == 64);
  CHECK(pair.a.create(0) == EOPNOTSUPP);  // kOperations has writes
}

TEST_CASE("SRD: a queue that writes inline is half as deep") {
  SrdPair pair;
  EfaSqDepth shape;
  shape.max_rdma_sge = 1;
  CHECK(pair.a.efa.max_sq_depth(pair.a.context, &shape, sizeof(shape)) == 64);
  shape.flags = kEfaSqDepthInlineWrite;
  CHECK(pair.a.efa.max_sq_depth(pair.a.context, &shape, sizeof(shape)) == 32);
  shape.max_inline_data = 33;
  CHECK(pair.a.efa.max_sq_depth(pair.a.context, &shape, sizeof(shape)) == -EINVAL);
  CHECK(pair.a.create(kEfaQpInlineWrite, 33, 8) == EINVAL);
  CHECK(pair.a.create(kEfaQpInlineWrite, 32, 8) == 0);
}

TEST_CASE("SRD: its own attribute masks") {
  SrdPair pair;
  REQUIRE(pair.a.create(0) == 0);
  ibv_qp_attr values{};
  values.qp_state = IBV_QPS_INIT;
  values.port_num = 1;
  CHECK(pair.a.modify(values, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT) == EINVAL);  // no qkey
  CHECK(pair.a.modify(values, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY |
                                  IBV_QP_ACCESS_FLAGS) == EINVAL);
  pair.a.ready();
}

TEST_CASE("SRD: writes overtake each other, each lands with its immediate data, all complete") {
  SrdPair pair;
  pair.connect();
  pair.fabric.every_path({.latency = 50us, .jitter = 400us});
  for (std::uint32_t i = 0; i < 32; ++i) {
    pair.a.memory[i] = 100 + i;
    REQUIRE(pair.a.write(pair.b, i, i, 8) == 0);
  }
  const auto arrived = pair.b.poll(32);
  REQUIRE(arrived.size() == 32);
  std::vector<std::uint32_t> order;
  for (const ibv_wc& wc : arrived) {
    CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
    CHECK(wc.qp_num == pair.b.qp->qp_num);
    CHECK(wc.byte_len == 8);
    CHECK(pair.b.memory[wc.imm_data] == 100 + wc.imm_data);
    order.push_back(wc.imm_data);
  }
  CHECK(!std::is_sorted(order.begin(), order.end()));
  const auto done = pair.a.poll(32);
  REQUIRE(done.size() == 32);
  CHECK(std::all_of(done.begin(), done.end(), [](const ibv_wc& wc) { return wc.status == IBV_WC_SUCCESS; }));
}

TEST_CASE("SRD: a full queue refuses a whole session; each polled completion frees one place") {
  SrdPair pair;
  pair.connect();
  for (std::uint32_t i = 0; i < 63; ++i) REQUIRE(pair.a.write(pair.b, i, 0, 8) == 0);
  ibv_wr_start(pair.a.requests);
  for (std::uint32_t i = 0; i < 2; ++i) {
    pair.a.begin(i);
    ibv_wr_rdma_write(pair.a.requests, 0, 0);
    ibv_wr_set_ud_addr(pair.a.requests, pair.a.peer, pair.b.qp->qp_num, kQkey);
  }
  CHECK(ibv_wr_complete(pair.a.requests) == ENOMEM);
  CHECK(pair.a.write(pair.b, 63, 0, 8) == 0);
  CHECK(pair.a.write(pair.b, 64, 0, 8) == ENOMEM);
  CHECK(pair.a.poll(1).size() == 1);
  CHECK(pair.a.write(pair.b, 64, 0, 8) == 0);
  CHECK(pair.a.write(pair.b, 65, 0, 8) == ENOMEM);
  CHECK(pair.fabric.received("efa_b") == 65);
}

TEST_CASE("SRD: what the device does not know is refused by the session") {
  SrdPair pair;
  pair.connect();
  ibv_wr_start(pair.a.requests);
  pair.a.begin(1, 0);
  ibv_wr_rdma_write(pair.a.requests, 0, 0);
  CHECK(ibv_wr_complete(pair.a.requests) == EINVAL);  // not signalled
  std::uint64_t word = 1;
  ibv_wr_start(pair.a.requests);
  pair.a.begin(1);
  ibv_wr_rdma_write(pair.a.requests, 0, 0);
  ibv_wr_set_inline_data(pair.a.requests, &word, sizeof(word));
  CHECK(ibv_wr_complete(pair.a.requests) == EINVAL);  // inline writes were not asked for
}

TEST_CASE("SRD: errors carry the device's status, and the queue pair goes on") {
  SrdPair pair;
  pair.connect();
  SUBCASE("a key that does not exist") {
    CHECK(pair.a.write(pair.b, 1, 0, 8, 1) == 0);
    CHECK(pair.a.status() == 7);
  }
  SUBCASE("the other end has no address handle") {
    pair.b.forget();
    CHECK(pair.a.write(pair.b, 1, 0, 8) == 0);
    CHECK(pair.a.status() == 14);
    pair.b.meet(pair.a);
  }
  SUBCASE("a queue pair that is gone") {
    REQUIRE(pair.b.verbs.destroy_qp(pair.b.qp) == 0);
    ibv_qp gone{};
    gone.qp_num = 9999;
    pair.b.qp = &gone;
    CHECK(pair.a.write(pair.b, 1, 0, 8) == 0);
    CHECK(pair.a.status() == 9);
    pair.b.qp = nullptr;
    REQUIRE(pair.b.create(kEfaQpUnsolicitedWriteRecv) == 0);
    pair.b.ready();
  }
  SUBCASE("never answered") {
    pair.fabric.every_path({.down = true});
    CHECK(pair.a.write(pair.b, 1, 0, 8) == 0);
    CHECK(pair.a.status() == 15);
    CHECK(pair.b.memory[0] == 0);
    pair.fabric.every_path({});
  }
  SUBCASE("answered before, and no more: the write may have landed") {
    CHECK(pair.a.write(pair.b, 1, 1, 8) == 0);
    CHECK(pair.a.status() == 0);
    CHECK(pair.b.poll(1).size() == 1);
    pair.a.memory[0] = 3;
    pair.fabric.set_path("efa_b", "efa_a", {.down = true});
    CHECK(pair.a.write(pair.b, 1, 0, 8) == 0);
    CHECK(pair.a.status() == 13);
    CHECK(pair.b.memory[0] == 3);
    CHECK(pair.b.poll(1).size() == 1);
    pair.fabric.every_path({});
  }
  pair.a.memory[5] = 8;
  CHECK(pair.a.write(pair.b, 2, 5, 8) == 0);
  CHECK(pair.a.status() == 0);
  CHECK(pair.b.memory[5] == 8);
}

// A cut once tore writes that had landed and were only missing their acknowledgement: they changed memory
// after they had been reported.
TEST_CASE("SRD: a write that was carried out never lands again, whatever becomes of its acknowledgement") {
  SrdPair pair;
  pair.connect();
  pair.a.memory[0] = 3;
  pair.fabric.set_path("efa_b", "efa_a", {.down = true});
  CHECK(pair.a.write(pair.b, 1, 0, 4096) == 0);
  REQUIRE(pair.b.poll(1).size() == 1);
  pair.b.memory[0] = 4;
  pair.fabric.every_path({.down = true});
  CHECK(pair.a.status() == 15);
  CHECK(pair.b.memory[0] == 4);
  pair.fabric.every_path({});
}

TEST_CASE("SRD: without unsolicited receives a write with immediate data consumes one") {
  SrdPair pair;
  pair.connect(0);
  CHECK(pair.a.write(pair.b, 1, 0, 8) == 0);
  std::this_thread::sleep_for(2ms);
  ibv_wc wc{};
  CHECK(ibv_poll_cq(pair.a.cq, 1, &wc) == 0);  // waits: rnr_retry 7
  ibv_recv_wr receive{.wr_id = 77};
  ibv_recv_wr* bad = nullptr;
  REQUIRE(ibv_post_recv(pair.b.qp, &receive, &bad) == 0);
  CHECK(pair.a.status() == 0);
  const auto arrived = pair.b.poll(1);
  REQUIRE(arrived.size() == 1);
  CHECK(arrived[0].wr_id == 77);
}

TEST_CASE("SRD: a receiver that cannot take writes answers 18, one that is never ready 10") {
  EfaSettings old;
  bool writes = true;
  SUBCASE("no RDMA write") {
    old.capabilities = kEfaRdmaRead | kEfaRnrRetry;
    writes = false;
  }
  SUBCASE("no receive") {}
  Fabric fabric;
  fabric.add_device("one", {.name = "efa_a", .efa = EfaSettings{}});
  fabric.add_device("two", {.name = "efa_b", .efa = old});
  SrdEnd a, b;
  a.open(fabric, "one");
  b.open(fabric, "two");
  if (!writes) b.operations = IBV_QP_EX_WITH_SEND;
  REQUIRE(a.create(0) == 0);
  REQUIRE(b.create(0) == 0);
  a.ready(0);
  b.ready();
  a.meet(b);
  b.meet(a);
  CHECK(a.write(b, 1, 0, 8) == 0);
  CHECK(a.status() == (writes ? 10 : 18));
  a.close();
  b.close();
}

}  // namespace
}  // namespace mkernel::test::nic
