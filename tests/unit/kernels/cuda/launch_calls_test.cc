// What a launch of the GEMM operations asks of CUDA on the host. Every call through PyTorch pays for it, so
// what is not needed for each launch is done when the operation is made.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "kernels/base/lent_workspace.h"
#include "kernels/cuda/launch/gemm_operation.h"
#include "kernels/ops/ag_gemm/plan.h"
#include "kernels/ops/make.h"
#include "kernels/plan/tile_reduce_plan.h"
#include "tests/support/counted_cuda.h"
#include "tests/support/fake_fabric.h"

namespace mkernel::kernels {
namespace {

using test::CudaCalls;

Result<std::unique_ptr<CudaGemmOperation>> make(OpKind kind, const GemmShape& shape,
                                                const Topology& topology) {
  if (kind == OpKind::kGemmRs) return make_cuda_gemm_rs(shape, topology, 0, {});
  if (kind == OpKind::kGemmAr) return make_cuda_gemm_ar(shape, topology, 0, {});
  return make_cuda_ag_gemm(shape, topology, 0, {});
}

/// Rank 0 of `ranks` on one node, on device 0.
class Rank {
 public:
  Rank(OpKind kind, const GemmShape& shape, std::uint32_t ranks) : fabric_({.ranks_per_node = ranks}) {
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
    auto made = make(kind, shape, {1, ranks});
    REQUIRE_MESSAGE(made.ok(), made.status().to_string());
    operation_ = std::move(*made);
    const Requirements needs = operation_->requirements();
    const auto workspace = fabric_.symmetric(needs.workspace_bytes);
    const auto lent = fabric_.symmetric(lent_workspace_bytes(needs.lent_bytes));
    const Status bound = operation_->bind(fabric_.group(0), workspace[0], lent[0], 1);
    REQUIRE_MESSAGE(bound.ok(), bound.to_string());
  }

  /// Of the second launch.
  CudaCalls calls(bool gathered = false) {
    void* const any = memory_;
    GemmArguments arguments{any, any, any, gathered ? any : nullptr};
    for (int more = 0; more < kMostMoreB; ++more) arguments.more_b[more] = arguments.more_c[more] = any;
    for (int launch = 0; launch < 2; ++launch) {
      test::reset_cuda_calls();
      const Status queued = operation_->enqueue(arguments, {}, nullptr);
      REQUIRE_MESSAGE(queued.ok(), queued.to_string());
    }
    return test::cuda_calls();
  }

 private:
  test::FakeFabric fabric_;
  std::unique_ptr<CudaGemmOperation> operation_;
  alignas(16) std::byte memory_[16];
};

CudaCalls one_launch(int maps) {
  return {{"cuCtxGetCurrent", 1},
          {"cudaGetDevice", 1},
          {"cudaLaunchKernelExC", 1},
          {"cuTensorMapEncodeTiled", maps}};
}

TEST_CASE("a launch is one call of CUDA's, beside a map of each operand") {
  const GemmShape even{4096, 512, 256}, few{64, 512, 256}, uneven{4097, 512, 256};
  for (const std::uint32_t ranks : {1U, 2U, 4U}) {
    CAPTURE(ranks);
    for (const GemmShape& shape : {even, few})
      CHECK(Rank(OpKind::kAgGemm, shape, ranks).calls() == one_launch(3));
    // c has maps for owners of fewer rows and of more.
    CHECK(Rank(OpKind::kAgGemm, uneven, ranks).calls() == one_launch(ranks == 1 ? 3 : 4));
    for (const OpKind kind : {OpKind::kGemmRs, OpKind::kGemmAr}) {
      // Only a rank alone stores c through a map.
      for (const GemmShape& shape : {even, few, uneven})
        CHECK(Rank(kind, shape, ranks).calls() == one_launch(ranks == 1 ? 3 : 2));
    }
  }
}

TEST_CASE("ag_gemm of several b has two maps more for each of them") {
  GemmShape shape{4096, 512, 256};
  shape.more_n[0] = 256;
  shape.more_n[1] = 128;
  CHECK(Rank(OpKind::kAgGemm, shape, 4).calls() == one_launch(7));
}

TEST_CASE("the gathered rows are one launch more") {
  CudaCalls wanted = one_launch(3);
  wanted["<<<>>>"] = 1;
  CHECK(Rank(OpKind::kAgGemm, {4096, 512, 256}, 4).calls(true) == wanted);
}

/// Binds rank 0 of two on one node, whose workspaces lie on a GPU each.
template <class Op>
Status bind_over_link(Result<std::unique_ptr<Op>> made, bool native_atomics) {
  REQUIRE_MESSAGE(made.ok(), made.status().to_string());
  test::FakeFabric fabric({.ranks_per_node = 2});
  const Requirements needs = (*made)->requirements();
  const auto workspace = fabric.symmetric(needs.workspace_bytes);
  const auto lent = fabric.symmetric(lent_workspace_bytes(needs.lent_bytes));
  test::place_on_device(workspace[0].node[1], 1);
  test::set_native_atomics(native_atomics);
  const Status bound = (*made)->bind(fabric.group(0), workspace[0], lent[0], 1);
  test::place_on_device(workspace[0].node[1], 0);
  return bound;
}

TEST_CASE("a link without native atomics is refused where kernels add over it, and both GPUs are named") {
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  const Topology node(1, 2);
  const AttentionShape ring{.batch = 1, .sequence = 512, .heads = 2, .kv_heads = 1, .head_dim = 64};
  const MoeShape moe{.max_tokens = 64, .hidden = 64, .n = 64, .experts = 4, .topk = 2};
  const auto check = [&](const char* name, const auto& bind) {
    CAPTURE(name);
    const Status refused = bind(false);
    CHECK(refused.code() == StatusCode::kFailedPrecondition);
    CHECK_MESSAGE(refused.text().find(std::string(name) +
                                      ": kernels of GPU 0 (NVIDIA H200, 0000:3b:00.0) cannot add to memory "
                                      "of GPU 1 (NVIDIA H200, 0000:3c:00.0): the link between them has no "
                                      "native atomics") == 0,
                  refused.text());
    CHECK(bind(true).to_string() == Status().to_string());
  };
  check("ag_gemm", [&](bool atomics) {
    return bind_over_link(make(OpKind::kAgGemm, {4096, 512, 256}, node), atomics);
  });
  check("ring_attention",
        [&](bool atomics) { return bind_over_link(make_cuda_ring_attention(ring, node, 0, {}), atomics); });
  check("ring_attention_backward", [&](bool atomics) {
    return bind_over_link(make_cuda_ring_attention_backward(ring, node, 0, {}), atomics);
  });
  check("moe", [&](bool atomics) { return bind_over_link(make_cuda_moe(moe, node, 0), atomics); });
  // These only store over it.
  for (const OpKind kind : {OpKind::kGemmRs, OpKind::kGemmAr})
    CHECK(bind_over_link(make(kind, {4096, 512, 256}, node), false).ok());
}

TEST_CASE("where another device is current, it is so again after a launch") {
  Rank rank(OpKind::kGemmRs, {4096, 512, 256}, 4);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  CudaCalls wanted = one_launch(2);
  wanted["cudaSetDevice"] = wanted["cuCtxSetCurrent"] = 1;
  CHECK(rank.calls() == wanted);
  CHECK(test::current_cuda_device() == 1);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
}

TEST_CASE("a thread that has not used CUDA launches, and has no context on a GPU afterwards, as before") {
  Rank rank(OpKind::kGemmRs, {4096, 512, 256}, 4);
  CudaCalls wanted = one_launch(2);
  wanted["cudaSetDevice"] = wanted["cuCtxSetCurrent"] = 1;
  wanted.erase("cudaGetDevice");
  std::thread([&] {
    CHECK(rank.calls() == wanted);
    CHECK(test::current_cuda_device() == test::kNoCudaDevice);
  }).join();
}

}  // namespace
}  // namespace mkernel::kernels
