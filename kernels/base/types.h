// What the operations are about: data types, layouts and shapes. Device code includes it, so it stands on
// nothing that only hosts have. Installed with mkernel/ops.h, which includes it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mkernel {

enum class DataType : std::uint32_t { kBf16 = 1, kF16 = 2 };
/// How the second operand of a product lies in memory: kRowMajor [k, n], kColumnMajor [n, k].
enum class Layout : std::uint32_t { kRowMajor = 0, kColumnMajor = 1 };
/// What computes: threads on host memory, or one persistent kernel on memory of the session's GPU.
enum class Executor : std::uint32_t { kCpu = 0, kCuda = 1 };
enum class OpKind : std::uint32_t {
  kAgGemm = 1,
  kGemmRs = 2,
  kGemmAr = 3,
  kMoeDispatchGemm = 4,
  kRingAttention = 5,
  kGroupedGemm = 6,
  kAttention = 7,
  kAttentionBackward = 8,
  kRingAttentionBackward = 9
};

/// Whether launches of the operation wait for other ranks. Of the others each rank makes as many as it likes.
constexpr bool concerns_others(OpKind kind) {
  return kind != OpKind::kGroupedGemm && kind != OpKind::kAttention && kind != OpKind::kAttentionBackward;
}

/// Half-open range of part `index` when `total` items are split into `parts`: [total * index / parts, ...).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
};
constexpr Range block_range(std::int64_t total, std::int64_t parts, std::int64_t index) {
  return {total * index / parts, total * (index + 1) / parts};
}

/// Rows of an operand, tokens of a rank and positions of a sequence, at most. The row of this number is one
/// that no operand has: kernels load from it where there is nothing to load.
inline constexpr std::int64_t kMostRows = std::int64_t{1} << 30;

/// Second operands that AG+GEMM takes beside b.
inline constexpr int kMostMoreB = 3;

/// Shape of AG+GEMM, GEMM+RS and GEMM+AR. The local product is always [m, k] x [k, n].
///   AG+GEMM  c[m, n] = allgather(a[m_rank, k]) x b[k, n]; m_rank = block_range(m, world, rank).size()
///   GEMM+RS  c[m_rank, n] = rows of sum over ranks of a[m, k] x b[k, n]
///   GEMM+AR  c[m, n] = sum over ranks of a[m, k] x b[k, n]
/// m is at most kMostRows.
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
  DataType dtype = DataType::kBf16;
  Layout b_layout = Layout::kRowMajor;
  /// AG+GEMM multiplies the gathered rows with further b too, of the same k, type and layout, each into a c
  /// of its own (queries, keys and values of the same rows): the columns of more_b[0], more_b[1], ... of
  /// GemmArguments. The first 0 ends them.
  std::int64_t more_n[kMostMoreB] = {};
};

/// Mixture of experts layer: y[t] = sum_j weight[t, j] * expert[topk[t, j]](x[t]) + shared(x[t]).
/// intermediate == 0: expert(x) = x w1, w1 [experts_rank, hidden, n].
/// intermediate  > 0: expert(x) = (silu(g) * u) w2 with [g | u] = x w1, w1 [experts_rank, hidden, 2 *
/// intermediate], w2 [experts_rank, intermediate, n].
/// The two halves of w1 may be two operands, see MoeArguments. w_layout is that of every expert's matrices:
/// kColumnMajor has each of them transposed, as PyTorch keeps weights: w1 [experts_rank, 2 * intermediate,
/// hidden], w2 [experts_rank, n, intermediate].
/// Experts are split by block_range(experts, world, rank). `tokens` is this rank's number; it may differ
/// between ranks and launches up to max_tokens, which is at most kMostRows.
///
/// shared_intermediate > 0: there is a shared expert, through which every token goes. Every rank has all of
/// its weights and computes it for its own tokens: as an expert with two products, with matrices of this
/// size.
///
/// Every rank refuses a launch with the same error, before a row is sent, when on any rank topk has an entry
/// outside 0 .. experts - 1 or one twice in a token, or a weight is not a number (kInvalidArgument names the
/// rank and the entry); and when an owner of experts has more rows than `capacity` (kResourceExhausted names
/// the expert). Outputs stay as they were, and the next launch may come.
struct MoeShape {
  std::int64_t max_tokens = 0, hidden = 0, n = 0, intermediate = 0, experts = 0, topk = 0;
  DataType dtype = DataType::kBf16;
  /// Rows that a rank takes in a launch for its experts, the rows of each counted as whole 64: what its
  /// memory holds. It is rounded up to whole 64. 0 = as many as all ranks together can send.
  std::int64_t capacity = 0;
  Layout w_layout = Layout::kRowMajor;
  /// A token's weight multiplies its row before the first product, rounded to the type of x, and not the
  /// finished row: expert(weight x) in place of weight expert(x).
  bool weights_on_input = false;
  /// Of the shared expert; 0 = there is none. Only with a second product, intermediate > 0.
  std::int64_t shared_intermediate = 0;
};

/// Ring attention over a sequence of `sequence` positions (all ranks together), [batch, positions_rank,
/// heads, dim]. causal: rank r holds parts r and 2 * world - 1 - r of block_range(sequence, 2 * world, .), in
/// that order (zigzag); full: part r of block_range(sequence, world, .). heads % kv_heads == 0. `sequence`
/// and `keys` are at most kMostRows.
///
/// Attention of each rank alone has the same shape: q is [batch, sequence, heads, head_dim], k and v are
/// [batch, keys, kv_heads, head_dim]. causal: the last query sees all keys, the one before it all but the
/// last, and so on. A query that sees no key gets zeros. On the cuda executor head_dim is 64 or 128.
///
/// max_sequences > 0: sequences of different lengths, packed one behind the other. batch is 1, q is
/// [sequence, heads, head_dim], k and v are [keys, kv_heads, head_dim], so `sequence` and `keys` are what all
/// sequences of a launch have together at most. Sequence s has rows cu_seqlens_q[s] .. cu_seqlens_q[s + 1] -
/// 1 of q and likewise of k and v (AttentionArguments); it may have none of either. Masks are aligned per
/// sequence. A launch with fewer sequences repeats the last entry. Rows behind the last sequence are neither
/// read nor written. The lengths are read while the launch runs: a CUDA graph replays with new ones. A launch
/// is refused when the first entry is not 0, or an entry is below the one before or beyond the rows
/// (kInvalidArgument names it): outputs stay as they were, and the next launch may come.
///
/// Ring attention has packed sequences, too: `sequence` counts the rows of all ranks, and is a multiple of
/// the world size. Each rank has q [sequence / world, heads, head_dim], and its rows of every sequence are
/// its parts of it as above, one sequence behind the other. cu_seqlens_q says where they begin and end, the
/// same on every rank; causal: with an even number of rows, for two parts of the same size, else the launch
/// is refused. A rank whose launch is refused passes on its keys and values, so the others go on. Ranks that
/// are given different lengths get different results, and no error.
///
/// Attention of a rank alone, and its backward pass, may also have a sliding window: the query that stands
/// where key p does sees keys p - window_left .. p + window_right.
struct AttentionShape {
  std::int64_t batch = 0, sequence = 0, heads = 0, kv_heads = 0, head_dim = 0;
  bool causal = false;
  double scale = 0;  ///< 0 = 1 / sqrt(head_dim)
  DataType dtype = DataType::kBf16;
  std::int64_t keys = 0;           ///< attention of a rank alone: positions of k and v; 0 = sequence
  std::int64_t max_sequences = 0;  ///< that are packed, at most 1,024; 0 = they are not packed
  /// Keys before and behind a query's own position; -1: all. causal: window_right is -1 or 0.
  std::int64_t window_left = -1, window_right = -1;
};

/// Of one rank alone: c[rows of group g] = a[rows of group g] x b[g], for the groups of rows that `ends` cuts
/// a[max_rows, k] into (GroupedGemmArguments). b[g] is [k, n], or [n, k] with kColumnMajor. At most 1,024
/// groups, and kMostRows rows.
///
/// `ends` is read while the launch runs: a CUDA graph replays with new ones. A launch is refused when a group
/// ends before it begins or beyond max_rows (kInvalidArgument names the group): c stays as it was, and the
/// next launch may come. Ranks of a group neither wait for each other nor need the same ends.
struct GroupedGemmShape {
  std::int64_t max_rows = 0, k = 0, n = 0, groups = 0;
  DataType dtype = DataType::kBf16;
  Layout b_layout = Layout::kRowMajor;
};

struct GemmArguments {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  void* gathered = nullptr;  ///< ag_gemm: [m, k], gets the rows of a of all ranks; null: nobody wants them
  const void* more_b[kMostMoreB] = {};  ///< as b and c, with as many columns as GemmShape::more_n says
  void* more_c[kMostMoreB] = {};
};
struct MoeArguments {
  std::int64_t tokens = 0;
  const void* x = nullptr;             ///< [tokens, hidden]
  const std::int32_t* topk = nullptr;  ///< [tokens, topk], expert numbers; distinct within a row
  const float* weights = nullptr;      ///< [tokens, topk]
  const void* w1 = nullptr;
  const void* w2 = nullptr;  ///< null when intermediate == 0
  void* y = nullptr;         ///< [tokens, n]
  /// null: w1 holds g and u. Else w1 holds g alone and w1_up u, each as a dense matrix with `intermediate`
  /// columns per expert, in the layout of the shape. Only with a second product.
  const void* w1_up = nullptr;
  /// Of the shared expert, in the layout of the shape and in the forms of w1, w1_up and w2; null when there
  /// is none.
  const void* shared_w1 = nullptr;
  const void* shared_w1_up = nullptr;
  const void* shared_w2 = nullptr;
  const float* shared_weights = nullptr;  ///< [tokens], factors of shared(x); null: all are 1
};
struct AttentionArguments {
  const void* q = nullptr;  ///< [batch, positions_rank, heads, head_dim]
  const void* k = nullptr;  ///< [batch, positions_rank, kv_heads, head_dim]
  const void* v = nullptr;
  void* out = nullptr;  ///< as q
  /// [batch, heads, positions_rank], so [heads, sequence] of packed sequences: the natural logarithm of the
  /// sum of a query's exponentials, minus infinity for one that sees no key; null: nobody wants it.
  float* lse = nullptr;
  /// With max_sequences: [max_sequences + 1] each, in memory of the executor. Else null. Ring attention reads
  /// cu_seqlens_q alone; cu_seqlens_k is null, or the same.
  const std::int32_t* cu_seqlens_q = nullptr;
  const std::int32_t* cu_seqlens_k = nullptr;
};
/// The backward pass of attention, of a rank alone or of ring attention: what attention was given and gave,
/// the gradient of what it gave, and the gradients of what it was given. They are sums in fp32, in an order
/// that the shape and the ranks fix, rounded once (what crosses between ranks may be rounded, too). Of ring
/// attention all operands are those of the rank's own positions, which AttentionShape names.
struct AttentionBackwardArguments {
  const void* q = nullptr;  ///< [batch, sequence or positions_rank, heads, head_dim]
  const void* k = nullptr;  ///< [batch, keys or positions_rank, kv_heads, head_dim]
  const void* v = nullptr;
  const void* out = nullptr;    ///< as q
  const void* d_out = nullptr;  ///< as q
  const float* lse = nullptr;   ///< [batch, heads, sequence or positions_rank], as attention gives it
  void* d_q = nullptr;          ///< as q
  void* d_k = nullptr;          ///< as k
  void* d_v = nullptr;          ///< as k
  /// As those of AttentionArguments. Keys that no query sees get zeros.
  const std::int32_t* cu_seqlens_q = nullptr;
  const std::int32_t* cu_seqlens_k = nullptr;
};

struct GroupedGemmArguments {
  const void* a = nullptr;             ///< [max_rows, k]
  const std::int32_t* ends = nullptr;  ///< [groups]: the row behind the last one of a group; a group begins
                                       ///< where the one before ends, the first one with row 0
  const void* b = nullptr;             ///< [groups], one dense matrix behind the other
  void* c = nullptr;                   ///< [max_rows, n]; rows behind the last group are not written
};

/// What a plan needs from its surroundings before it can run.
struct Requirements {
  std::uint64_t workspace_bytes =
      0;  ///< symmetric, the same on every rank, zeroed once before the first launch
  /// Of a half of the lent workspace (base/lent_workspace.h), which operations of a group take turns with.
  std::uint64_t lent_bytes = 0;
  std::uint32_t lanes = 0;   ///< lanes of the group's channels, used exclusively, consecutive from first_lane
  bool gpu = false;          ///< the workspace lies in memory of the GPU that the operation was made for
  bool remote_adds = false;  ///< its kernels add to words in the workspaces of other GPUs of the node
};

}  // namespace mkernel

namespace mkernel::kernels {

constexpr std::size_t element_bytes(DataType) {
  return 2;
}

}  // namespace mkernel::kernels
