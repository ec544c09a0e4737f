// Two hosts with a device each on a fake fabric, and a queue pair between them, as the tests of the fake use
// it: raw verbs.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/support/fake_nic/fabric.h"

namespace mkernel::test::nic {

/// The latency of a path on which what is posted is still under way when the test's next lines have run,
/// however busy the machine.
inline constexpr std::chrono::milliseconds kLongWay{250};

/// Memory that a write goes to.
struct Remote {
  std::uint64_t address;
  std::uint32_t rkey;
};

/// One end: everything down to a queue pair in the reset state.
struct End {
  transport::rdma::VerbsLibrary verbs;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_mr* mr = nullptr;
  std::vector<std::uint64_t> memory = std::vector<std::uint64_t>(8192);  ///< 64 KiB
  ibv_qp_cap cap{
      .max_send_wr = 16, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 8};

  void open(const transport::rdma::VerbsLibrary& library, int cq_entries = 64) {
    verbs = library;
    ibv_device** const devices = verbs.get_device_list(nullptr);
    REQUIRE(devices != nullptr);
    context = verbs.open_device(devices[0]);
    verbs.free_device_list(devices);
    REQUIRE(context != nullptr);
    pd = verbs.alloc_pd(context);
    channel = verbs.create_comp_channel(context);
    cq = verbs.create_cq(context, cq_entries, this, channel, 0);
    REQUIRE(cq != nullptr);
    mr = verbs.reg_mr(pd, memory.data(), bytes(), address(),
                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING);
    REQUIRE(mr != nullptr);
  }
  void create() {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.cap = cap;
    init.qp_type = IBV_QPT_RC;
    qp = verbs.create_qp(pd, &init);
    REQUIRE(qp != nullptr);
    cap = init.cap;
  }
  void destroy_qp() {
    if (qp != nullptr) CHECK(verbs.destroy_qp(qp) == 0);
    qp = nullptr;
  }
  void close() {
    destroy_qp();
    if (mr != nullptr) CHECK(verbs.dereg_mr(mr) == 0);
    CHECK(verbs.destroy_cq(cq) == 0);
    CHECK(verbs.destroy_comp_channel(channel) == 0);
    CHECK(verbs.dealloc_pd(pd) == 0);
    CHECK(verbs.close_device(context) == 0);
  }

  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(memory.data()); }
  std::size_t bytes() const { return memory.size() * sizeof(std::uint64_t); }
  ibv_qp_state state() const {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr init{};
    CHECK(verbs.query_qp(qp, &attributes, IBV_QP_STATE, &init) == 0);
    return attributes.qp_state;
  }
  /// Up to `count` completions that come within ten seconds.
  std::vector<ibv_wc> poll(std::size_t count) const {
    std::vector<ibv_wc> all;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
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
  bool nothing() const {
    ibv_wc wc{};
    return ibv_poll_cq(cq, 1, &wc) == 0;
  }

  Remote remote() const { return {address(), mr->rkey}; }
  int write(const End& to, std::uint64_t wr_id, std::size_t at, std::uint32_t length, unsigned flags,
            ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE, std::uint32_t immediate = 0) const {
    return write(to.remote(), wr_id, at, length, flags, opcode, immediate);
  }
  /// A write of memory[at] and what follows to the same place in the other memory.
  int write(const Remote& to, std::uint64_t wr_id, std::size_t at, std::uint32_t length, unsigned flags,
            ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE, std::uint32_t immediate = 0) const {
    ibv_sge part{address() + at * sizeof(std::uint64_t), length, mr->lkey};
    ibv_send_wr request{};
    request.wr_id = wr_id;
    request.sg_list = &part;
    request.num_sge = length > 0 ? 1 : 0;
    request.opcode = opcode;
    request.send_flags = flags;
    request.imm_data = immediate;
    request.wr.rdma.remote_addr = to.address + at * sizeof(std::uint64_t);
    request.wr.rdma.rkey = to.rkey;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &request, &bad);
  }
  int receive(std::uint64_t wr_id, std::size_t at, std::uint32_t length) const {
    ibv_sge part{address() + at * sizeof(std::uint64_t), length, mr->lkey};
    ibv_recv_wr request{wr_id, nullptr, &part, 1};
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp, &request, &bad);
  }
};

/// Attributes that work, to be spoilt by a test.
struct Attributes {
  ibv_qp_attr values{};
  int mask = 0;
};
/// Returns what ibv_modify_qp() does.
int modify(const End& end, Attributes attributes);
Attributes to_init();
/// Toward `peer`, whose device is the fabric's number `peer_number` (1 or 2).
Attributes to_rtr(const End& peer, std::uint8_t peer_number);
/// Gives up after 4 x 4.096 us x 2^timeout, or when the peer had no receive the third time.
Attributes to_rts(std::uint8_t timeout = 8);

class RcPair {
 public:
  explicit RcPair(std::uint64_t seed = 1, int cq_entries = 64);
  ~RcPair();
  void connect(const Attributes& rts = to_rts());
  /// Destroys both queue pairs and connects new ones.
  void reconnect();

  Fabric fabric;
  End a, b;

 protected:
  static void connect(End& own, const End& peer, std::uint8_t peer_number, const Attributes& rts);
};

}  // namespace mkernel::test::nic
