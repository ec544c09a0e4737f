// symmetric_gpu() without a GPU: what it says then, and its collective half over memory that plays a GPU's.
#include "client/src/gpu_memory.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "client/src/buffer.h"
#include "tests/unit/client/ranks.h"

namespace mkernel::test {
namespace {

constexpr std::uint64_t kUnit = 2 << 20;

/// Shared memory that behaves as a GPU's: whole units, another kind. Counts what is mapped; fails on demand.
class PlayedGpu final : public client::MemorySource {
 public:
  abi::RegionKind kind() const override { return abi::RegionKind::kVmm; }
  std::uint64_t whole(std::uint64_t bytes) const override { return (bytes + kUnit - 1) / kUnit * kUnit; }
  Result<client::NewMemory> make(const std::string& label, std::uint64_t bytes) override {
    if (bytes > 4 * kUnit) return Status(StatusCode::kResourceExhausted, "cuMemCreate: out of memory");
    return client::host_memory().make(label, whole(bytes));
  }
  Result<client::MappedMemory> map(const client::SharedMemory& theirs, std::uint64_t bytes) override {
    if (unreachable) return Status(StatusCode::kFailedPrecondition, "no peer access");
    auto mapped = client::host_memory().map(theirs, bytes);
    if (!mapped.ok()) return mapped;
    ++peers;
    const auto count = [this, hold = mapped->hold](const void*) { --peers; };
    return client::MappedMemory{mapped->data, std::shared_ptr<const void>(mapped->data, count)};
  }

  bool unreachable = false;
  std::atomic<int> peers = 0;
};

/// The caller's memory, named and not handed over: the name holds its address, which threads share.
class PlayedPlain final : public client::MemorySource {
 public:
  PlayedPlain(std::byte* data, std::uint64_t offset) : data_(data), offset_(offset) {}
  abi::RegionKind kind() const override { return abi::RegionKind::kIpc; }
  std::uint64_t whole(std::uint64_t bytes) const override { return bytes; }
  Result<client::NewMemory> make(const std::string&, std::uint64_t) override {
    client::NewMemory made;
    made.mapped.data = data_ + offset_;
    made.shared.offset = offset_;
    made.shared.no_dma_buf = "played";
    std::memcpy(made.shared.cuda_ipc.handle, &data_, sizeof(data_));
    return made;
  }
  Result<client::MappedMemory> map(const client::SharedMemory& theirs, std::uint64_t) override {
    std::byte* base = nullptr;
    std::memcpy(&base, theirs.cuda_ipc.handle, sizeof(base));
    CHECK_FALSE(theirs.fd.valid());
    return client::MappedMemory{base + theirs.offset, nullptr};
  }

 private:
  std::byte* const data_;
  const std::uint64_t offset_;
};

template <class Memory>
Result<std::unique_ptr<client::BufferState>> open(const std::shared_ptr<client::GroupCore>& group,
                                                  Memory& gpu, std::uint64_t bytes) {
  return client::open_symmetric(group, gpu, bytes, [](const auto&) { return std::string("done"); });
}

TEST_CASE("a rank whose session names no GPU is named to all, and the group goes on") {
  FakeDaemon daemon;
  with_groups(daemon, 2, [](Group& group) {
    check_status(group.symmetric_gpu(4096).status(), StatusCode::kFailedPrecondition,
                 "rank 0 on node node0: needs a GPU; the session has SessionOptions::device = -1");
    check_ok(group.barrier());
  });
  CHECK(daemon.look().regions == 0);
}

TEST_CASE("without a driver, or built without CUDA, the error says which") {
  const auto here = client::open_gpu_memory(0);
  if (here.ok()) {
    MESSAGE("skipped: this machine has a GPU");
    return;
  }
  FakeDaemon daemon;
  with_groups(daemon, 2,
              [&](Group& group) {
                const Status none = group.symmetric_gpu(4096).status();
                check_status(none, here.status().code(), here.status().text());
                const bool built = none.code() == StatusCode::kFailedPrecondition;
                CHECK((built || none.code() == StatusCode::kUnimplemented));
                check_status(none, none.code(),
                             built
                                 ? "memory of GPU 0: no CUDA driver on this machine (libcuda.so.1 not found)"
                                 : "memory of GPU 0: this libmkernel was built without CUDA");
                check_ok(group.barrier());
              },
              {0, 0});
}

TEST_CASE("the cuda executor needs a GPU, and says on every rank whose is missing; the group goes on") {
  FakeDaemon daemon;
  with_groups(daemon, 2, [](Group& group) {
    check_status(group.ag_gemm({64, 64, 64}, Executor::kCuda).status(), StatusCode::kFailedPrecondition,
                 "rank 0 on node node0: needs a GPU; the session has SessionOptions::device = -1");
    check_status(group.ag_gemm({64, 64, 64}, static_cast<Executor>(7)).status(), StatusCode::kInvalidArgument,
                 "executor = 7, must be cpu (0) or cuda (1)");
    check_ok(group.barrier());
  });
}

TEST_CASE("ranks that chose different executors are told so by name") {
  FakeDaemon daemon;
  with_groups(daemon, 2, [](Group& group) {
    const auto executor = group.rank() == 0 ? Executor::kCpu : Executor::kCuda;
    CHECK_FALSE(group.gemm_rs({64, 64, 64}, executor).ok());
    check_ok(group.barrier());
  });
}

TEST_CASE("a stream is for the cuda executor") {
  FakeDaemon daemon;
  with_groups(daemon, 1, [](Group& group) {
    auto op = group.ag_gemm({64, 64, 64});
    check_ok(op.status());
    check_ok(op->status());
    check_status(op->enqueue({}, nullptr), StatusCode::kUnimplemented,
                 "only the cuda executor queues launches");
  });
}

TEST_CASE("a GPU buffer of no size, or of more than a region holds, is refused with the limits") {
  FakeDaemon daemon;
  with_groups(daemon, 2, [](Group& group) {
    check_status(group.symmetric_gpu(0).status(), StatusCode::kInvalidArgument,
                 "rank 0 on node node0: symmetric buffer of 0 bytes of GPU memory, allowed are 1 to");
    check_status(group.symmetric_gpu(kMaxRegionBytes + 1).status(), StatusCode::kInvalidArgument,
                 "allowed are 1 to 281474976710656");
    check_ok(group.barrier());
  });
}

TEST_CASE("GPU buffers are registered in whole units, mapped inside a node, and let go of") {
  FakeDaemon daemon({.nodes = {"a", "a", "b"}});
  std::vector<PlayedGpu> gpus(3);
  with_cores(daemon, 3, [&](const std::shared_ptr<client::GroupCore>& group) {
    const std::uint32_t rank = group->view().rank();
    {
      auto buffer = open(group, gpus[rank], kUnit + 1);
      check_ok(buffer.status());
      if (!buffer.ok()) return;
      client::BufferState& state = **buffer;
      CHECK(state.bytes == kUnit + 1);
      CHECK(state.view.bytes == kUnit + 1);
      const auto* entries = group->view().at<abi::RegionEntry>(group->view().segment->regions_offset);
      for (std::uint32_t other = 0; other < 3; ++other) CHECK(entries[other * 8].bytes == 2 * kUnit);
      CHECK(state.view.node.size() == (rank < 2 ? 2 : 1));
      CHECK(gpus[rank].peers == (rank < 2 ? 1 : 0));
      check_ok(group->agree("zeroed", {}));
      if (rank < 2) state.view.node[1 - rank][kUnit] = static_cast<std::byte>(rank + 1);
      check_ok(group->agree("written", {}));
      if (rank < 2) CHECK(state.mine.data[kUnit] == static_cast<std::byte>(2 - rank));
    }
    CHECK(gpus[rank].peers == 0);
    check_ok(group->agree("all destroyed", {}));
  });
  CHECK(daemon.look().regions == 0);
}

TEST_CASE("the caller's GPU memory is registered where it lies, and named inside a node") {
  FakeDaemon daemon({.nodes = {"a", "a", "b"}});
  std::vector<std::vector<std::byte>> tensors(3, std::vector<std::byte>(5000));
  with_cores(daemon, 3, [&](const std::shared_ptr<client::GroupCore>& group) {
    const std::uint32_t rank = group->view().rank();
    PlayedPlain memory(tensors[rank].data(), 100 * rank + 1);
    auto buffer = open(group, memory, 3001);
    check_ok(buffer.status());
    if (!buffer.ok()) return;
    const kernels::SymmetricView& view = (*buffer)->view;
    CHECK(view.mine == tensors[rank].data() + 100 * rank + 1);
    CHECK(view.bytes == 3001);
    CHECK(view.node.size() == (rank < 2 ? 2 : 1));
    if (rank < 2) CHECK(view.node[1 - rank] == tensors[1 - rank].data() + 100 * (1 - rank) + 1);
    const auto* entries = group->view().at<abi::RegionEntry>(group->view().segment->regions_offset);
    for (std::uint32_t other = 0; other < 3; ++other) CHECK(entries[other * 8].bytes == 3001);
    check_ok(group->agree("seen", {}));
    buffer->reset();
    check_ok(group->agree("gone", {}));
  });
  CHECK(daemon.look().regions == 0);
}

TEST_CASE("registering memory of a GPU needs one, and as many bytes on every rank") {
  FakeDaemon daemon;
  with_groups(daemon, 2, [](Group& group) {
    int host = 0;
    check_status(group.register_gpu(&host, 4).status(), StatusCode::kFailedPrecondition,
                 "rank 0 on node node0: needs a GPU; the session has SessionOptions::device = -1");
    check_status(group.register_gpu(&host, 0).status(), StatusCode::kInvalidArgument,
                 "rank 0 on node node0: registration of 0 bytes of GPU memory, allowed are 1 to");
    check_status(group.register_gpu(&host, 4 + group.rank()).status(), StatusCode::kFailedPrecondition,
                 "rank 0 on node node0");
    check_ok(group.barrier());
  });
  if (client::open_gpu_memory(0).ok()) return;  // what a GPU says to host memory: tests/gpu
  with_groups(
      daemon, 2,
      [](Group& group) {
        int host = 0;
        CHECK(contains(group.register_gpu(&host, 4).status(), "rank 0 on node node0: memory of GPU 0: "));
      },
      {0, 0});
}

TEST_CASE("one rank without room, or without a way to its peer, fails the call on all ranks by name") {
  FakeDaemon daemon;
  std::vector<PlayedGpu> gpus(2);
  with_cores(daemon, 2, [&](const std::shared_ptr<client::GroupCore>& group) {
    const std::uint32_t rank = group->view().rank();
    check_status(open(group, gpus[rank], 5 * kUnit).status(), StatusCode::kResourceExhausted,
                 "rank 0 on node node0: cuMemCreate: out of memory");
    gpus[rank].unreachable = rank == 1;
    check_status(open(group, gpus[rank], kUnit).status(), StatusCode::kFailedPrecondition,
                 "rank 1 on node node0: mapping region 0 of rank 0: no peer access");
    CHECK(gpus[rank].peers == 0);
    gpus[rank].unreachable = false;
    check_ok(group->agree("forgotten", {}));
    const auto buffer = open(group, gpus[rank], kUnit);
    check_ok(buffer.status());
    check_ok(group->agree("made", {}));
  });
}

}  // namespace
}  // namespace mkernel::test
