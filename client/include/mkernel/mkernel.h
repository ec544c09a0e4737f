/* The C ABI of mkernel, for bindings: the functions of mkernel/client.h over opaque handles. Contracts (what
 * is collective, who owns what, which thread) are those of mkernel/client.h; only what differs is said here.
 *
 * Every function that can fail returns an mk_status (the codes of gRPC); mk_last_error() then holds the text
 * for the calling thread. Out parameters are written on MK_OK only. A NULL where a handle or an out parameter
 * is needed is MK_INVALID_ARGUMENT; a function that returns a value returns 0 or NULL then. Handles are
 * destroyed in any order; destroying NULL is nothing. No C++ exception leaves. In a child that was forked
 * from the process that made a handle every call on it is MK_FAILED_PRECONDITION, and destroying it is
 * nothing: the parent goes on with it. Times are in milliseconds. Every struct begins with its size, which
 * the caller sets (`.struct_size = sizeof(shape)`): so a program works with a library that knows more fields,
 * which are 0 for it, and with one that knows fewer, as long as it leaves those at 0. Device endpoints
 * (Group::device_endpoint) and what serves only them are not here: the kernels that they are for are C++. */
#pragma once

/* NOLINTBEGIN(modernize-deprecated-headers, modernize-use-using): this is C */
#include <stddef.h>
#include <stdint.h>

#include "mkernel/export.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* a cudaStream_t points to one */

typedef enum mk_status {
  MK_OK = 0,
  MK_CANCELLED = 1,
  MK_UNKNOWN = 2,
  MK_INVALID_ARGUMENT = 3,
  MK_DEADLINE_EXCEEDED = 4,
  MK_NOT_FOUND = 5,
  MK_ALREADY_EXISTS = 6,
  MK_PERMISSION_DENIED = 7,
  MK_RESOURCE_EXHAUSTED = 8,
  MK_FAILED_PRECONDITION = 9,
  MK_ABORTED = 10,
  MK_OUT_OF_RANGE = 11,
  MK_UNIMPLEMENTED = 12,
  MK_INTERNAL = 13,
  MK_UNAVAILABLE = 14,
  MK_DATA_LOSS = 15
} mk_status;

typedef struct mk_session mk_session;
typedef struct mk_group mk_group;
typedef struct mk_symmetric mk_symmetric;
typedef struct mk_host_buffer mk_host_buffer;
typedef struct mk_activity mk_activity;
typedef struct mk_operation mk_operation;
typedef struct mk_pending mk_pending;

/* Versions and errors. The texts stay valid until the thread's next call (mk_last_error) or for ever (the
 * others). */
MK_API const char* mk_version(void);       /* "0.1.0" */
MK_API uint32_t mk_protocol_version(void); /* of what client and daemon say to each other */
MK_API const char* mk_status_name(mk_status status);
MK_API const char* mk_last_error(void); /* "" after a call that succeeded */

/* A field that is 0 (or NULL) takes the default of mkernel/client.h, except rank. */
typedef struct mk_session_options {
  size_t struct_size;
  const char* socket;
  const char* name;
  int32_t device; /* GPU ordinal, -1 = host memory only; no default */
  uint32_t weight;
  uint32_t timeout_ms;
} mk_session_options;

typedef struct mk_group_options {
  size_t struct_size;
  const char* name;
  uint32_t world_size;
  uint32_t rank;
  uint32_t lanes;
  uint32_t region_capacity;
  uint32_t timeout_ms;
  const uint8_t* secret; /* 32 bytes that only the ranks of the job know, or NULL; see GroupOptions::secret */
} mk_group_options;

MK_API mk_status mk_connect(const mk_session_options* options, mk_session** session);
MK_API void mk_session_destroy(mk_session* session);
/* One call that a framework made in its own way, because mkernel has nothing for it; mkctl shows the sum. */
MK_API mk_status mk_session_count_fallback(mk_session* session);
MK_API mk_status mk_join(mk_session* session, const mk_group_options* options, mk_group** group);
MK_API void mk_group_destroy(mk_group* group);

MK_API uint32_t mk_group_rank(const mk_group* group);
MK_API uint32_t mk_group_world_size(const mk_group* group);
MK_API uint32_t mk_group_node_count(const mk_group* group);
/* `rank` below the world size, else MK_OUT_OF_RANGE. */
typedef struct mk_rank_info {
  size_t struct_size;
  uint32_t node;       /* dense index of its node */
  uint32_t local_rank; /* dense index among the ranks of that node */
  char node_name[64];  /* ends with a zero byte */
} mk_rank_info;
MK_API mk_status mk_group_rank_info(const mk_group* group, uint32_t rank, mk_rank_info* info);
MK_API mk_status mk_group_status(const mk_group* group);
MK_API mk_status mk_group_fail(mk_group* group, mk_status code, const char* text);
/* This rank does not make the launch that comes next in the group, for example because of an operand: a rank
 * that makes it gets this reason, and the group fails. Ranks that all reject it go on. */
MK_API mk_status mk_group_reject_launch(mk_group* group, mk_status code, const char* text);
/* Leaves the group now; the handle stays and is destroyed as ever. MK_FAILED_PRECONDITION: something may be
 * under way. */
MK_API mk_status mk_group_leave(mk_group* group);
MK_API mk_status mk_barrier(mk_group* group);
/* `mine`: `bytes` (the same on every rank, at most 448); `all`: world_size * bytes, by rank. */
MK_API mk_status mk_exchange(mk_group* group, const void* mine, size_t bytes, void* all);

/* Buffers */
MK_API mk_status mk_symmetric_create(mk_group* group, uint64_t bytes, mk_symmetric** buffer);
/* In the memory of the session's GPU; data and peer are device addresses. */
MK_API mk_status mk_symmetric_gpu_create(mk_group* group, uint64_t bytes, mk_symmetric** buffer);
/* Over memory that the caller has allocated on it (cudaMalloc, a PyTorch tensor); see Group::register_gpu for
 * who must outlive whom. */
MK_API mk_status mk_symmetric_gpu_register(mk_group* group, void* data, uint64_t bytes,
                                           mk_symmetric** buffer);
MK_API void* mk_symmetric_data(const mk_symmetric* buffer);
MK_API uint32_t mk_symmetric_region(const mk_symmetric* buffer);
MK_API void* mk_symmetric_peer(const mk_symmetric* buffer,
                               uint32_t rank); /* NULL: on another node, no such rank */
MK_API void mk_symmetric_destroy(mk_symmetric* buffer);
MK_API mk_status mk_host_buffer_create(mk_group* group, uint64_t bytes, mk_host_buffer** buffer);
MK_API mk_status mk_host_buffer_register(mk_group* group, int memfd, uint64_t offset, uint64_t bytes,
                                         mk_host_buffer** buffer);
MK_API void* mk_host_buffer_data(const mk_host_buffer* buffer);
MK_API uint32_t mk_host_buffer_region(const mk_host_buffer* buffer);
MK_API void mk_host_buffer_destroy(mk_host_buffer* buffer);

/* Puts. `timeout_ms`: of waiting for room in the work ring, 0 takes the group's; MK_DEADLINE_EXCEEDED means
 * that nothing was put, and the group goes on (unless mk_group_status() says that it failed with this code).
 * `number` (may be NULL) receives the number of the put on its channel. */
MK_API mk_status mk_reserve_lanes(mk_group* group, uint32_t count, uint32_t* first_lane);
MK_API mk_status mk_put(mk_group* group, uint32_t target, uint32_t lane, const mk_symmetric* source,
                        uint64_t offset, uint32_t remote_region, uint64_t remote_offset, uint64_t bytes,
                        uint32_t timeout_ms, uint64_t* number);
MK_API mk_status mk_put_host(mk_group* group, uint32_t target, uint32_t lane, const mk_host_buffer* source,
                             uint64_t offset, uint32_t remote_region, uint64_t remote_offset, uint64_t bytes,
                             uint32_t timeout_ms, uint64_t* number);
MK_API mk_status mk_signal(mk_group* group, uint32_t target, uint32_t lane, uint32_t timeout_ms,
                           uint64_t* number);
/* Puts of channel (this rank -> target, lane) that were made so far; never waits. */
MK_API mk_status mk_puts(const mk_group* group, uint32_t target, uint32_t lane, uint64_t* count);
MK_API mk_status mk_wait_arrival(mk_group* group, uint32_t source, uint32_t lane, uint64_t count,
                                 uint32_t deadline_ms);
MK_API mk_status mk_wait_completed(mk_group* group, uint32_t target, uint32_t lane, uint64_t count,
                                   uint32_t deadline_ms);
/* Puts of channel (source -> this rank, lane) that have arrived so far; never waits. */
MK_API mk_status mk_arrivals(const mk_group* group, uint32_t source, uint32_t lane, uint64_t* count);

/* While it lives the daemon's proxies poll this session's rings instead of sleeping; see Group::keep_active()
 * in mkernel/client.h for who needs one. */
MK_API mk_status mk_activity_create(mk_group* group, mk_activity** activity);
MK_API void mk_activity_destroy(mk_activity* activity);

/* Operations. Shapes and arguments are those of mkernel/ops.h. */
enum { MK_BF16 = 1, MK_F16 = 2 };
enum { MK_ROW_MAJOR = 0, MK_COLUMN_MAJOR = 1 };
enum { MK_CPU = 0, MK_CUDA = 1 }; /* executors: threads on host memory, a kernel on the session's GPU */

typedef struct mk_gemm_shape {
  size_t struct_size;
  int64_t m, n, k;
  uint32_t dtype;    /* MK_BF16, MK_F16 */
  uint32_t b_layout; /* MK_ROW_MAJOR, MK_COLUMN_MAJOR */
  int64_t more_n[3]; /* ag_gemm: columns of further b's, see GemmShape; the first 0 ends them */
} mk_gemm_shape;
/* These and the arguments below: in host memory for MK_CPU, addresses on the session's GPU for MK_CUDA. */
typedef struct mk_gemm_arguments {
  size_t struct_size;
  const void* a;
  const void* b;
  void* c;
  void* gathered;        /* ag_gemm: [m, k], gets the rows of a of all ranks; NULL: nobody wants them */
  const void* more_b[3]; /* as b and c, for the products that more_n asks for */
  void* more_c[3];
} mk_gemm_arguments;

/* What runs an operation, the same on every rank. NULL: MK_CPU. The fields after `executor` are for MK_CUDA,
 * see GemmPlanOptions of mkernel/ops.h; operations of a rank alone have `sms` and `machine` only. 0 or NULL
 * takes the plan's choice. */
typedef struct mk_operation_options {
  size_t struct_size;
  uint32_t executor;   /* MK_CPU, MK_CUDA */
  int32_t comm_ctas;   /* CTAs that push rows, keys or sum partial tiles, see mkernel/ops.h */
  int32_t sms;         /* multiprocessors at most; a launch needs all of its own at once, see mkernel/ops.h */
  double nic_gbytes;   /* 10^9 bytes a second that a rank can send to other nodes */
  const char* machine; /* whose rates the plan assumes: "H200", "H100", "H20", "H800", "GH200", "H100 PCIe",
                          "H100 NVL" or "H200 NVL" */
} mk_operation_options;

typedef struct mk_moe_shape {
  size_t struct_size;
  int64_t max_tokens, hidden, n, intermediate, experts, topk;
  uint32_t dtype;
  int64_t capacity;  /* rows that a rank takes for its experts, see MoeShape; 0: as many as can come */
  uint32_t w_layout; /* of all weights: MK_ROW_MAJOR, MK_COLUMN_MAJOR */
  uint32_t weights_on_input; /* 1: weights multiply rows before the first product, see MoeShape; else 0 */
  int64_t
      shared_intermediate; /* of an expert that every token goes through, see MoeShape; 0: there is none */
} mk_moe_shape;
typedef struct mk_moe_arguments {
  size_t struct_size;
  int64_t tokens;       /* of this rank in this launch, 0..max_tokens */
  const void* x;        /* [tokens, hidden] */
  const int32_t* topk;  /* [tokens, topk], expert numbers; distinct within a row */
  const float* weights; /* [tokens, topk] */
  const void* w1;       /* of this rank's experts, see MoeShape */
  const void* w2;       /* NULL when intermediate is 0 */
  void* y;              /* [tokens, n] */
  const void* w1_up;    /* the second half of w1; NULL: w1 holds both */
  /* of the shared expert, in the forms of w1, w1_up and w2; NULL: there is none */
  const void* shared_w1;
  const void* shared_w1_up;
  const void* shared_w2;
  const float* shared_weights; /* [tokens], factors of its results; NULL: all are 1 */
} mk_moe_arguments;

typedef struct mk_attention_shape {
  size_t struct_size;
  int64_t batch, sequence, heads, kv_heads, head_dim;
  double scale;    /* 0 = 1 / sqrt(head_dim) */
  uint32_t causal; /* 0 or 1 */
  uint32_t dtype;
  int64_t keys;          /* attention of a rank alone: positions of k and v; 0 = sequence */
  int64_t max_sequences; /* that are packed, see AttentionShape of mkernel/ops.h; 0 = they are not */
  uint32_t has_window;   /* 0 or 1; 0: the next two fields are not read; of a rank alone, backward too */
  int64_t window_left, window_right; /* keys before and behind a query's own position; -1 = all */
} mk_attention_shape;
typedef struct mk_attention_arguments {
  size_t struct_size;
  const void* q; /* [batch, positions, heads, head_dim], see AttentionShape for which positions a rank has */
  const void* k; /* [batch, positions, kv_heads, head_dim] */
  const void* v; /* as k */
  void* out;     /* as q */
  float* lse; /* [batch, heads, positions]: log-sum-exp of the scores; NULL: not wanted; packed sequences have
               * batch 1, so it is [heads, sequence] */
  const int32_t* cu_seqlens_q; /* [max_sequences + 1], where sequences begin and end; NULL without these */
  const int32_t* cu_seqlens_k; /* of ring attention NULL, or cu_seqlens_q */
} mk_attention_arguments;

/* With the shape of attention, of a rank alone or of ring attention; see AttentionBackwardArguments of
 * mkernel/ops.h. */
typedef struct mk_attention_backward_arguments {
  size_t struct_size;
  const void* q;
  const void* k;
  const void* v;
  const void* out;   /* what attention gave */
  const void* d_out; /* its gradient, as out */
  const float* lse;  /* as attention gave it */
  void* d_q;         /* as q, and so on */
  void* d_k;
  void* d_v;
  const int32_t* cu_seqlens_q; /* as those of mk_attention_arguments */
  const int32_t* cu_seqlens_k;
} mk_attention_backward_arguments;

/* Of one rank alone, see GroupedGemmShape of mkernel/ops.h. */
typedef struct mk_grouped_gemm_shape {
  size_t struct_size;
  int64_t max_rows, k, n, groups;
  uint32_t dtype;    /* MK_BF16, MK_F16 */
  uint32_t b_layout; /* of every group's b: MK_ROW_MAJOR, MK_COLUMN_MAJOR */
} mk_grouped_gemm_shape;
typedef struct mk_grouped_gemm_arguments {
  size_t struct_size;
  const void* a;       /* [max_rows, k], rows by group */
  const int32_t* ends; /* [groups]: the row behind the last one of a group */
  const void* b;
  void* c; /* [max_rows, n] */
} mk_grouped_gemm_arguments;

/* May be NULL: defaults. A field of 0 takes its default. */
typedef struct mk_launch_options {
  size_t struct_size;
  uint32_t deadline_ms;    /* of every single wait */
  int32_t compute_threads; /* of MK_CPU */
} mk_launch_options;

/* Collective. */
MK_API mk_status mk_ag_gemm_create(mk_group* group, const mk_gemm_shape* shape,
                                   const mk_operation_options* options, mk_operation** operation);
MK_API mk_status mk_gemm_rs_create(mk_group* group, const mk_gemm_shape* shape,
                                   const mk_operation_options* options, mk_operation** operation);
MK_API mk_status mk_gemm_ar_create(mk_group* group, const mk_gemm_shape* shape,
                                   const mk_operation_options* options, mk_operation** operation);
MK_API mk_status mk_moe_create(mk_group* group, const mk_moe_shape* shape,
                               const mk_operation_options* options, mk_operation** operation);
MK_API mk_status mk_ring_attention_create(mk_group* group, const mk_attention_shape* shape,
                                          const mk_operation_options* options, mk_operation** operation);
/* Of each rank alone: launched and queued by the functions of ring attention. */
MK_API mk_status mk_attention_create(mk_group* group, const mk_attention_shape* shape,
                                     const mk_operation_options* options, mk_operation** operation);
MK_API mk_status mk_attention_backward_create(mk_group* group, const mk_attention_shape* shape,
                                              const mk_operation_options* options, mk_operation** operation);
/* Of ring attention: launched and queued by the functions of attention's backward pass. */
MK_API mk_status mk_ring_attention_backward_create(mk_group* group, const mk_attention_shape* shape,
                                                   const mk_operation_options* options,
                                                   mk_operation** operation);
MK_API mk_status mk_grouped_gemm_create(mk_group* group, const mk_grouped_gemm_shape* shape,
                                        const mk_operation_options* options, mk_operation** operation);

/* One launch of an operation with operands of this kind; one of another kind is MK_INVALID_ARGUMENT. */
MK_API mk_status mk_gemm_launch(mk_operation* operation, const mk_gemm_arguments* arguments,
                                const mk_launch_options* options, mk_pending** pending);
MK_API mk_status mk_moe_launch(mk_operation* operation, const mk_moe_arguments* arguments,
                               const mk_launch_options* options, mk_pending** pending);
MK_API mk_status mk_ring_attention_launch(mk_operation* operation, const mk_attention_arguments* arguments,
                                          const mk_launch_options* options, mk_pending** pending);
MK_API mk_status mk_attention_backward_launch(mk_operation* operation,
                                              const mk_attention_backward_arguments* arguments,
                                              const mk_launch_options* options, mk_pending** pending);
MK_API mk_status mk_grouped_gemm_launch(mk_operation* operation, const mk_grouped_gemm_arguments* arguments,
                                        const mk_launch_options* options, mk_pending** pending);
/* MK_CUDA: queues one launch on `stream` (a cudaStream_t of the session's GPU, which stays the caller's;
 * NULL: its default stream) and may be captured in a CUDA graph. The operands must stay until the stream is
 * done; over several nodes so must an mk_activity. Not together with a launch as above. Errors: a NULL
 * `operation` or `arguments`, an operation of another kind; every other one fails the group, as that of a
 * launch does, also MK_UNIMPLEMENTED (an operation of MK_CPU). */
MK_API mk_status mk_gemm_enqueue(mk_operation* operation, const mk_gemm_arguments* arguments,
                                 struct CUstream_st* stream, const mk_launch_options* options);
MK_API mk_status mk_moe_enqueue(mk_operation* operation, const mk_moe_arguments* arguments,
                                struct CUstream_st* stream, const mk_launch_options* options);
MK_API mk_status mk_ring_attention_enqueue(mk_operation* operation, const mk_attention_arguments* arguments,
                                           struct CUstream_st* stream, const mk_launch_options* options);
MK_API mk_status mk_attention_backward_enqueue(mk_operation* operation,
                                               const mk_attention_backward_arguments* arguments,
                                               struct CUstream_st* stream, const mk_launch_options* options);
MK_API mk_status mk_grouped_gemm_enqueue(mk_operation* operation, const mk_grouped_gemm_arguments* arguments,
                                         struct CUstream_st* stream, const mk_launch_options* options);
/* Once the stream is done: MK_OK, or why a launch that was queued failed; the group is over for all ranks
 * then. */
MK_API mk_status mk_operation_status(mk_operation* operation);
/* What a launch of MK_CUDA is expected to take, in seconds, all ranks on time; 0: unknown. */
MK_API double mk_operation_expected_seconds(const mk_operation* operation);
MK_API void mk_operation_destroy(mk_operation* operation);

/* `timeout_ms` 0: until the launch is over (bounded by its own deadlines). Every error of a launch fails the
 * group but those of a launch that is refused: of MoE by every rank alike, for bad routing
 * (MK_INVALID_ARGUMENT) or for more rows than the capacity (MK_RESOURCE_EXHAUSTED), see MoeShape of
 * mkernel/ops.h; of a grouped GEMM for a bad end and of attention for a bad length (MK_INVALID_ARGUMENT). */
MK_API mk_status mk_pending_wait(const mk_pending* pending, uint32_t timeout_ms);
MK_API int mk_pending_done(const mk_pending* pending); /* 0 or 1 */
MK_API void mk_pending_destroy(mk_pending* pending);   /* does not stop the launch */

#ifdef __cplusplus
}
#endif
/* NOLINTEND(modernize-deprecated-headers, modernize-use-using) */
