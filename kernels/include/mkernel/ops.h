// The fused operations and the grouped GEMM over plain structs: made once (kernels/ops/make.h), then
// launched. No daemon, no socket: the client library wraps these, tests call them directly.
//
// Rows of a matrix that is spread over ranks are split by block_range(); matrices are dense, row-major unless
// said otherwise. Thread rule: plans are immutable values; one launch at a time per Operation. Errors: a
// Status that names the field, the value and the limit (plan), or who waited for what (run).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/base/types.h"
#include "proto/abi/status.h"

struct CUstream_st;

namespace mkernel::kernels {
struct GroupView;
struct SymmetricView;
}  // namespace mkernel::kernels

namespace mkernel {
class Trace;

/// Overrides of what a plan chooses on the cuda executor; the same on every rank. Operations of a rank alone
/// take `sms` and `machine`, AG+GEMM all fields, GEMM+RS and GEMM+AR all but `nic_gbytes`, the others all but
/// `nic_gbytes` and `link_gbytes`.
struct GemmPlanOptions {
  /// CTAs that push rows or keys, sum partial tiles, or route tokens; 0 = by shape and topology. Even (of
  /// ring attention any), at most half of the multiprocessors; of a mixture of experts at least two less than
  /// these.
  std::int32_t comm_ctas = 0;
  /// Multiprocessors at most, so that other work has the rest; 0 = all of the GPU. A launch needs all that it
  /// uses at once and waits for other ranks: it is started when no other kernel holds one of them. A kernel
  /// of another stream that waits for its own peers (NCCL, another operation in another order) and holds some
  /// can therefore keep launches of different ranks waiting for each other until the deadline ends them.
  /// Queue what waits for other ranks in the same order on every rank, best on one stream per group, or leave
  /// it room here.
  std::int32_t sms = 0;
  /// 10^9 bytes a second that a rank can send to other nodes (ag_gemm); 0 = 50, a 400 Gb/s NIC per GPU.
  double nic_gbytes = 0;
  /// 10^9 bytes a second that a rank can send to others of its node; 0 = what its links carry. Kernels wait
  /// as long as such links would take, but for few rows of GEMM+RS and GEMM+AR, whose owners share tiles. For
  /// measurements of ranks that share a GPU, whose memory is faster than links.
  double link_gbytes = 0;
  /// The machine whose rates the plan assumes: "H200", "H100", "H20", "H800", "GH200", "H100 PCIe", "H100
  /// NVL" or "H200 NVL"; empty = by the name of the device.
  std::string machine = {};

  bool operator==(const GemmPlanOptions&) const = default;
};

/// How a launch runs. Plans choose well by themselves; every field may be overridden.
struct ExecutorOptions {
  std::chrono::milliseconds deadline{30000};  ///< the longest that a single wait takes; 1 ms to 30 minutes
  int compute_threads = 0;  ///< cpu executor: 0 = hardware threads / ranks on this node, at least 1
  /// Where the launch tells what its roles did when; outlives it. The cuda executor tells it in status(), of
  /// the last launch, which no graph may have captured.
  Trace* trace = nullptr;
};

/// One planned operation on one rank of one group: created collectively (same shape, same order on every
/// rank), launched any number of times. Holds its epoch; the group's view and the workspaces must outlive it.
/// Here is what does not depend on its operands.
class OperationBase {
 public:
  virtual ~OperationBase() = default;
  virtual OpKind kind() const = 0;
  virtual Executor executor() const = 0;
  /// "ag_gemm m=4096 n=1024 k=4096 bf16 row-major": compared between ranks before the first launch.
  virtual std::string signature() const = 0;
  virtual Requirements requirements() const = 0;
  /// Called once, after the workspaces exist on every rank: its own, and one that operations of the group
  /// take turns with.
  virtual Status bind(const kernels::GroupView& group, const kernels::SymmetricView& workspace,
                      const kernels::SymmetricView& lent, std::uint32_t first_lane) = 0;
  /// Whether the error of the last call says that every rank of the group refused a launch, all with this
  /// error (MoeShape), or this rank one that concerns no other (GroupedGemmShape, AttentionShape): the ranks
  /// still agree on what comes next, so the operation and its group go on.
  virtual bool refused() const { return false; }
  /// Bytes this rank sent to other nodes in the last launch. Of a mixture of experts on the cuda executor
  /// they follow from the routing, which the GPU reads: in the last launch whose end run() or status() has
  /// seen.
  virtual std::uint64_t wire_bytes() const = 0;
  /// What a launch is expected to take, all ranks on time and the GPU's multiprocessors free: from the rates
  /// of the machine that the plan assumes (GemmPlanOptions::machine), to compare and explain. 0: unknown, as
  /// on the cpu executor.
  virtual double expected_seconds() const { return 0; }
  /// Once the stream is done: OK when every launch so far ended well, else who waited for what in the first
  /// that did not, or why group or session failed; the operation cannot be launched any more then. Launches
  /// that were queued behind the failed one did nothing: they have sent nothing and left the outputs as they
  /// were. A launch that ran at the same time as another one of the operation, or of the group where they
  /// share a workspace, is such a failure: kFailedPrecondition. When launches were refused (refused()) since
  /// it was last asked, why the last of them was: once, and the others went on. On the cpu executor run() has
  /// said it all.
  virtual Status status() { return {}; }
};

/// An operation with operands of type `Arguments`: GemmArguments, MoeArguments, AttentionArguments,
/// AttentionBackwardArguments or GroupedGemmArguments.
template <class Arguments>
class Operation : public OperationBase {
 public:
  /// Blocks until this rank's part is done and its operands may be reused. Nothing on a stream is waited for:
  /// what writes the operands must be over (else enqueue()). On the cpu executor kFailedPrecondition, at once
  /// and without harm to it, while another launch of the operation or with its shared workspace runs.
  virtual Status run(const Arguments& arguments, const ExecutorOptions& options) = 0;

  /// cuda executor: queues one launch on `stream` (a cudaStream_t; null: the default stream) of the
  /// operation's device. No other host work belongs to it, so it may be captured in a graph and replayed with
  /// the same operands. Launches follow each other in stream order, those of all operations of a group, and
  /// every rank makes the same ones in the same order: they take turns with one workspace.
  /// Errors: a bad argument by name, before anything is queued; kUnimplemented on the cpu executor; the
  /// reason for which an earlier launch has failed, once the GPU has reported it. status() tells how this one
  /// ended.
  virtual Status enqueue(const Arguments&, const ExecutorOptions&, CUstream_st*) {
    return {StatusCode::kUnimplemented,
            this->signature() + ": only the cuda executor queues launches on a stream"};
  }
};
using GemmOperation = Operation<GemmArguments>;
using MoeOperation = Operation<MoeArguments>;
using AttentionOperation = Operation<AttentionArguments>;
using AttentionBackwardOperation = Operation<AttentionBackwardArguments>;
using GroupedGemmOperation = Operation<GroupedGemmArguments>;

}  // namespace mkernel
