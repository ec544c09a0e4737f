/* A C program's view of libmkernel: every function returns "" or what went wrong. Compiled as C99. */
#include <mkernel/mkernel.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/client/c_abi_expect.h"

const char* mk_test_versions(void) {
  EXPECT(strcmp(mk_version(), "0.1.0") == 0);
  EXPECT(mk_protocol_version() >= 1);
  EXPECT(strcmp(mk_status_name(MK_UNAVAILABLE), "UNAVAILABLE") == 0);
  EXPECT(strcmp(mk_status_name(MK_OK), "OK") == 0);
  return "";
}

const char* mk_test_errors(const char* socket) {
  mk_session* session = NULL;
  mk_group* group = NULL;
  mk_operation* gemm = NULL;
  mk_symmetric* symmetric = NULL;
  mk_session_options nowhere = {SIZE(nowhere), "/nonexistent/socket", NULL, -1, 0, 0};
  mk_session_options here = {SIZE(here), socket, "c test", -1, 0, 30000};
  mk_group_options options = {SIZE(options), "c", 1, 1, 0, 0, 0};

  EXPECT(mk_connect(NULL, &session) == MK_INVALID_ARGUMENT);
  EXPECT(mk_connect(&nowhere, &session) == MK_UNAVAILABLE);
  EXPECT(strstr(mk_last_error(), "/nonexistent/socket") != NULL);
  EXPECT(session == NULL);

  EXPECT(mk_connect(&here, &session) == MK_OK);
  EXPECT(strcmp(mk_last_error(), "") == 0);
  EXPECT(mk_join(session, &options, &group) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "rank = 1") != NULL);
  EXPECT(group == NULL);
  EXPECT(mk_ag_gemm_create(NULL, NULL, NULL, &gemm) == MK_INVALID_ARGUMENT);

  options.rank = 0;
  EXPECT(mk_join(session, &options, &group) == MK_OK);
  EXPECT(mk_group_status(group) == MK_OK);
  EXPECT(mk_symmetric_gpu_register(group, &options, 16, &symmetric) == MK_FAILED_PRECONDITION);
  EXPECT(strstr(mk_last_error(), "SessionOptions::device = -1") != NULL && symmetric == NULL);
  EXPECT(mk_group_fail(group, MK_ABORTED, "the user gave up") == MK_OK);
  EXPECT(mk_group_status(group) == MK_ABORTED);
  EXPECT(strstr(mk_last_error(), "the user gave up") != NULL);
  EXPECT(mk_barrier(group) == MK_ABORTED);

  mk_session_destroy(session); /* in any order: the group keeps the session */
  mk_group_destroy(group);
  mk_group_destroy(NULL);
  return "";
}

const char* mk_test_rank(const char* socket, unsigned rank, unsigned world) {
  mk_session* session = NULL;
  mk_group* group = NULL;
  mk_symmetric* symmetric = NULL;
  mk_host_buffer* host = NULL;
  const mk_session_options here = {SIZE(here), socket, "c test", -1, 1, 30000};
  const uint8_t secret[32] = {1, 2, 3};
  mk_group_options options = {SIZE(options), "c", 0, 0, 4, 8, 30000, secret}, stranger;
  mk_group* none = NULL;
  mk_activity* activity = NULL;
  uint32_t lane = 99, said[2] = {0, 0}, mine;
  mk_rank_info info = {SIZE(info), 0, 0, {0}};
  uint64_t number = 0;
  const unsigned peer = (rank + 1) % world;
  options.world_size = world;
  options.rank = rank;

  EXPECT(mk_connect(&here, &session) == MK_OK);
  EXPECT(mk_session_count_fallback(session) == MK_OK);
  EXPECT(mk_join(session, &options, &group) == MK_OK);
  stranger = options;
  stranger.secret = NULL;
  EXPECT(mk_join(session, &stranger, &none) == MK_DEADLINE_EXCEEDED && none == NULL);
  EXPECT(mk_group_rank(group) == rank && mk_group_world_size(group) == world &&
         mk_group_node_count(group) == 1);
  EXPECT(mk_group_rank_info(group, peer, &info) == MK_OK);
  EXPECT(info.node == 0 && info.local_rank == peer && strcmp(info.node_name, "node0") == 0);
  EXPECT(mk_group_rank_info(group, world, &info) == MK_OUT_OF_RANGE);
  mine = rank + 41;
  EXPECT(mk_exchange(group, &mine, sizeof(mine), said) == MK_OK);
  EXPECT(said[0] == 41 && said[1] == 42);

  EXPECT(mk_symmetric_create(group, 4096, &symmetric) == MK_OK);
  EXPECT(mk_host_buffer_create(group, 4096, &host) == MK_OK);
  EXPECT(mk_reserve_lanes(group, 1, &lane) == MK_OK && lane == 3);
  memset(mk_host_buffer_data(host), (int)rank + 1, 4096);
  EXPECT(mk_put_host(group, peer, lane, host, 0, mk_symmetric_region(symmetric), 1024, 1024, 0, &number) ==
         MK_OK);
  EXPECT(number == 1);
  EXPECT(mk_signal(group, peer, lane, 30000, NULL) == MK_OK);
  EXPECT(mk_wait_arrival(group, peer, lane, 2, 30000) == MK_OK);
  EXPECT(mk_wait_completed(group, peer, lane, 2, 30000) == MK_OK);
  number = 0;
  EXPECT(mk_arrivals(group, peer, lane, &number) == MK_OK && number == 2);
  number = 0;
  EXPECT(mk_puts(group, peer, lane, &number) == MK_OK && number == 2);
  EXPECT(mk_puts(group, peer, lane, NULL) == MK_INVALID_ARGUMENT);
  EXPECT(((unsigned char*)mk_symmetric_data(symmetric))[2047] == peer + 1);
  EXPECT(((unsigned char*)mk_symmetric_data(symmetric))[2048] == 0);
  EXPECT(mk_symmetric_peer(symmetric, rank) == mk_symmetric_data(symmetric));
  EXPECT(mk_put(group, peer, lane, symmetric, 4096, 0, 0, 1, 1000, &number) == MK_OUT_OF_RANGE);
  EXPECT(mk_barrier(group) == MK_OK);
  EXPECT(mk_activity_create(group, &activity) == MK_OK && activity != NULL);
  mk_activity_destroy(activity);
  EXPECT(mk_activity_create(group, NULL) == MK_INVALID_ARGUMENT);

  mk_host_buffer_destroy(host);
  mk_symmetric_destroy(symmetric);
  mk_group_destroy(group);
  mk_session_destroy(session);
  return "";
}

#define REFUSED(call)                    \
  EXPECT((call) == MK_INVALID_ARGUMENT); \
  EXPECT(strstr(mk_last_error(), "is NULL") != NULL)
#define NOTHING(call)  \
  EXPECT((call) == 0); \
  EXPECT(strstr(mk_last_error(), "is NULL") != NULL)

/* Every function with NULL for every pointer that it needs. */
const char* mk_test_null(void) {
  const mk_session_options session_options = {SIZE(session_options), NULL, NULL, -1, 0, 0};
  REFUSED(mk_connect(NULL, NULL));
  REFUSED(mk_connect(&session_options, NULL));
  REFUSED(mk_session_count_fallback(NULL));
  REFUSED(mk_join(NULL, NULL, NULL));
  NOTHING(mk_group_rank(NULL));
  NOTHING(mk_group_world_size(NULL));
  NOTHING(mk_group_node_count(NULL));
  REFUSED(mk_group_rank_info(NULL, 0, NULL));
  REFUSED(mk_group_status(NULL));
  REFUSED(mk_group_fail(NULL, MK_ABORTED, "why"));
  REFUSED(mk_group_reject_launch(NULL, MK_ABORTED, "why"));
  REFUSED(mk_group_leave(NULL));
  REFUSED(mk_barrier(NULL));
  REFUSED(mk_exchange(NULL, NULL, 0, NULL));
  REFUSED(mk_symmetric_create(NULL, 1, NULL));
  REFUSED(mk_symmetric_gpu_create(NULL, 1, NULL));
  REFUSED(mk_symmetric_gpu_register(NULL, NULL, 1, NULL));
  NOTHING(mk_symmetric_data(NULL));
  NOTHING(mk_symmetric_region(NULL));
  NOTHING(mk_symmetric_peer(NULL, 0));
  REFUSED(mk_host_buffer_create(NULL, 1, NULL));
  REFUSED(mk_host_buffer_register(NULL, -1, 0, 1, NULL));
  NOTHING(mk_host_buffer_data(NULL));
  NOTHING(mk_host_buffer_region(NULL));
  REFUSED(mk_reserve_lanes(NULL, 1, NULL));
  REFUSED(mk_put(NULL, 0, 0, NULL, 0, 0, 0, 0, 0, NULL));
  REFUSED(mk_put_host(NULL, 0, 0, NULL, 0, 0, 0, 0, 0, NULL));
  REFUSED(mk_signal(NULL, 0, 0, 0, NULL));
  REFUSED(mk_puts(NULL, 0, 0, NULL));
  REFUSED(mk_wait_arrival(NULL, 0, 0, 1, 1));
  REFUSED(mk_wait_completed(NULL, 0, 0, 1, 1));
  REFUSED(mk_arrivals(NULL, 0, 0, NULL));
  REFUSED(mk_activity_create(NULL, NULL));
  REFUSED(mk_ag_gemm_create(NULL, NULL, NULL, NULL));
  REFUSED(mk_gemm_rs_create(NULL, NULL, NULL, NULL));
  REFUSED(mk_gemm_ar_create(NULL, NULL, NULL, NULL));
  REFUSED(mk_gemm_launch(NULL, NULL, NULL, NULL));
  REFUSED(mk_gemm_enqueue(NULL, NULL, NULL, NULL));
  REFUSED(mk_operation_status(NULL));
  NOTHING(mk_operation_expected_seconds(NULL));
  REFUSED(mk_moe_create(NULL, NULL, NULL, NULL));
  REFUSED(mk_moe_launch(NULL, NULL, NULL, NULL));
  REFUSED(mk_moe_enqueue(NULL, NULL, NULL, NULL));
  REFUSED(mk_ring_attention_enqueue(NULL, NULL, NULL, NULL));
  REFUSED(mk_ring_attention_create(NULL, NULL, NULL, NULL));
  REFUSED(mk_attention_create(NULL, NULL, NULL, NULL));
  REFUSED(mk_ring_attention_launch(NULL, NULL, NULL, NULL));
  REFUSED(mk_attention_backward_create(NULL, NULL, NULL, NULL));
  REFUSED(mk_ring_attention_backward_create(NULL, NULL, NULL, NULL));
  REFUSED(mk_attention_backward_launch(NULL, NULL, NULL, NULL));
  REFUSED(mk_attention_backward_enqueue(NULL, NULL, NULL, NULL));
  REFUSED(mk_grouped_gemm_create(NULL, NULL, NULL, NULL));
  REFUSED(mk_grouped_gemm_launch(NULL, NULL, NULL, NULL));
  REFUSED(mk_grouped_gemm_enqueue(NULL, NULL, NULL, NULL));
  REFUSED(mk_pending_wait(NULL, 0));
  NOTHING(mk_pending_done(NULL));
  mk_session_destroy(NULL);
  mk_group_destroy(NULL);
  mk_symmetric_destroy(NULL);
  mk_host_buffer_destroy(NULL);
  mk_activity_destroy(NULL);
  mk_operation_destroy(NULL);
  mk_pending_destroy(NULL);
  EXPECT(strcmp(mk_version(), "") != 0); /* and nothing fell over */
  return "";
}

/* One rank without a GPU. Every refusal but the last leaves the group alive. */
const char* mk_test_gemm(const char* socket) {
  mk_session* session = NULL;
  mk_group* group = NULL;
  mk_operation* gemm = NULL;
  mk_pending* pending = NULL;
  const mk_session_options here = {SIZE(here), socket, "c test", -1, 1, 30000};
  const mk_group_options options = {SIZE(options), "c", 1, 0, 0, 0, 30000};
  const mk_gemm_shape shape = {SIZE(shape), 2, 1, 2, MK_BF16, MK_ROW_MAJOR};
  const mk_operation_options gpu = {SIZE(gpu), MK_CUDA, 0, 0, 0, NULL};
  const mk_operation_options seventh = {SIZE(seventh), 7, 0, 0, 0, NULL};
  const mk_operation_options plan = {SIZE(plan), MK_CPU, 4, 0, 0, NULL};
  const uint16_t a[4] = {0x3f80, 0x4000, 0x4040, 0x4080}; /* 1 2, 3 4 */
  const uint16_t b[2] = {0x3f80, 0x4000};                 /* 1, 2 */
  uint16_t c[2] = {0xffff, 0xffff};
  const mk_gemm_arguments arguments = {SIZE(arguments), a, b, c, NULL};

  EXPECT(mk_connect(&here, &session) == MK_OK);
  EXPECT(mk_join(session, &options, &group) == MK_OK);

  EXPECT(mk_ag_gemm_create(group, &shape, &gpu, &gemm) == MK_FAILED_PRECONDITION);
  EXPECT(strstr(mk_last_error(), "SessionOptions::device = -1 (host memory only)") != NULL);
  EXPECT(mk_gemm_rs_create(group, &shape, &gpu, &gemm) == MK_FAILED_PRECONDITION);
  EXPECT(mk_gemm_ar_create(group, &shape, &gpu, &gemm) == MK_FAILED_PRECONDITION);
  EXPECT(mk_gemm_rs_create(group, &shape, &seventh, &gemm) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "executor = 7, must be cpu (0) or cuda (1)") != NULL);
  EXPECT(mk_ag_gemm_create(group, NULL, NULL, &gemm) == MK_INVALID_ARGUMENT);
  EXPECT(mk_ag_gemm_create(group, &shape, NULL, NULL) == MK_INVALID_ARGUMENT);
  EXPECT(mk_ag_gemm_create(group, &shape, &plan, &gemm) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "the cpu executor has no GemmPlanOptions to override") != NULL);
  EXPECT(gemm == NULL);
  EXPECT(mk_group_status(group) == MK_OK);

  EXPECT(mk_ag_gemm_create(group, &shape, NULL, &gemm) == MK_OK);
  EXPECT(mk_operation_status(gemm) == MK_OK);
  EXPECT(mk_operation_expected_seconds(gemm) == 0); /* of the cpu executor */
  EXPECT(mk_gemm_launch(gemm, &arguments, NULL, &pending) == MK_OK);
  EXPECT(mk_pending_wait(pending, 0) == MK_OK);
  EXPECT(c[0] == 0x40a0 && c[1] == 0x4130); /* 5, 11 */

  EXPECT(mk_operation_status(NULL) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "mk_operation_status: a required pointer is NULL") != NULL);
  EXPECT(mk_gemm_enqueue(NULL, &arguments, NULL, NULL) == MK_INVALID_ARGUMENT);
  EXPECT(mk_gemm_enqueue(gemm, NULL, NULL, NULL) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "mk_gemm_enqueue: a required pointer is NULL") != NULL);
  EXPECT(mk_group_status(group) == MK_OK);
  EXPECT(mk_gemm_enqueue(gemm, &arguments, NULL, NULL) == MK_UNIMPLEMENTED);
  EXPECT(strstr(mk_last_error(), "ag_gemm m=2 n=1 k=2") != NULL);
  EXPECT(strstr(mk_last_error(), "only the cuda executor queues launches on a stream") != NULL);
  EXPECT(mk_group_status(group) == MK_UNIMPLEMENTED); /* as after every launch that failed */

  mk_pending_destroy(pending);
  mk_operation_destroy(gemm);
  mk_group_destroy(group);
  mk_session_destroy(session);
  return "";
}

/* Programs that were compiled with an older or a newer header. */
const char* mk_test_struct_sizes(const char* socket) {
  struct {
    mk_session_options known;
    uint64_t later[2]; /* fields that this library does not have */
  } newer;
  mk_session* session = NULL;
  mk_session_options older = {0, socket, "c test", -1, 1, 30000};
  EXPECT(mk_connect(&older, &session) == MK_INVALID_ARGUMENT); /* nobody set the size */
  EXPECT(strstr(mk_last_error(), "mk_session_options.struct_size = 0, must be at least") != NULL);
  older.struct_size = (size_t)&older; /* what a program has there that was compiled without the field */
  EXPECT(mk_connect(&older, &session) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "must be at most 4096: it was not set") != NULL);
  older.struct_size = SIZE(older) - 1;
  EXPECT(mk_connect(&older, &session) == MK_INVALID_ARGUMENT && session == NULL);

  memset(&newer, 0, SIZE(newer));
  newer.known = older;
  newer.known.struct_size = SIZE(newer);
  newer.later[1] = 1;
  EXPECT(mk_connect(&newer.known, &session) == MK_UNIMPLEMENTED && session == NULL);
  EXPECT(strstr(mk_last_error(), "those beyond are not 0") != NULL);
  newer.later[1] = 0;
  EXPECT(mk_connect(&newer.known, &session) == MK_OK);
  mk_session_destroy(session);
  return "";
}

/* One handle for all operations: each function says when it is given another one. */
const char* mk_test_kinds(const char* socket) {
  mk_session* session = NULL;
  mk_group* group = NULL;
  mk_operation *gemm = NULL, *moe = NULL, *attention = NULL, *alone = NULL;
  mk_pending* pending = NULL;
  const mk_session_options here = {SIZE(here), socket, "c test", -1, 1, 30000};
  const mk_group_options options = {SIZE(options), "kinds", 1, 0, 8, 16, 30000};
  const mk_gemm_shape gemm_shape = {SIZE(gemm_shape), 2, 1, 2, MK_BF16, MK_ROW_MAJOR};
  const mk_moe_shape moe_shape = {SIZE(moe_shape), 1, 2, 1, 0, 1, 1, MK_BF16, 0, MK_ROW_MAJOR};
  const mk_moe_shape no_gate = {SIZE(no_gate), 1, 2, 1, 0, 1, 1, MK_BF16, 0, MK_ROW_MAJOR, 0, 8};
  const mk_moe_shape no_layout = {SIZE(no_layout), 1, 2, 1, 0, 1, 1, MK_BF16, 0, 2};
  const mk_moe_shape no_flag = {SIZE(no_flag), 1, 2, 1, 0, 1, 1, MK_BF16, 0, MK_ROW_MAJOR, 3};
  const mk_attention_shape attention_shape = {
      SIZE(attention_shape), 1, 1, 1, 1, 2, 0, 0, MK_BF16, 0, 0, 0, 0, 0};
  const mk_operation_options gpu = {SIZE(gpu), MK_CUDA, 0, 0, 0, NULL};
  const mk_operation_options plan = {SIZE(plan), MK_CPU, 4, 0, 0, NULL};
  const uint16_t x[2] = {0x3f80, 0x4000}, w1[2] = {0x4040, 0x4080}; /* 1 2; 3 4 */
  int32_t topk[1] = {0};
  const float weights[1] = {2};
  uint16_t y[1] = {0xffff}, out[2] = {0, 0};
  const mk_moe_arguments tokens = {SIZE(tokens), 1, x, topk, weights, w1, NULL, y, NULL};
  float lse[1] = {0};
  const mk_attention_arguments rows = {SIZE(rows), x, x, w1, out, lse, NULL, NULL};

  EXPECT(mk_connect(&here, &session) == MK_OK);
  EXPECT(mk_join(session, &options, &group) == MK_OK);
  EXPECT(mk_moe_create(group, &moe_shape, &plan, &moe) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "moe_dispatch_gemm: the cpu executor has no GemmPlanOptions") != NULL);
  EXPECT(mk_ring_attention_create(group, &attention_shape, &plan, &moe) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "ring_attention: the cpu executor has no GemmPlanOptions") != NULL);
  EXPECT(mk_moe_create(group, &no_gate, NULL, &moe) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "shared_intermediate = 8") != NULL);
  EXPECT(mk_moe_create(group, &no_layout, NULL, &moe) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "moe: w_layout = 2, but it must be row-major (0)") != NULL);
  EXPECT(mk_moe_create(group, &no_flag, NULL, &moe) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "mk_moe_shape: weights_on_input = 3, but it must be 0 or 1") != NULL);
  EXPECT(mk_moe_create(group, &moe_shape, &gpu, &moe) == MK_FAILED_PRECONDITION); /* there is no GPU */
  EXPECT(mk_ring_attention_create(group, &attention_shape, &gpu, &moe) == MK_FAILED_PRECONDITION);
  EXPECT(mk_ag_gemm_create(group, &gemm_shape, NULL, &gemm) == MK_OK);
  EXPECT(mk_moe_create(group, &moe_shape, NULL, &moe) == MK_OK);
  EXPECT(mk_ring_attention_create(group, &attention_shape, NULL, &attention) == MK_OK);

  EXPECT(mk_moe_launch(gemm, &tokens, NULL, &pending) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "mk_moe_launch: the operation is another one: ag_gemm m=2") != NULL);
  EXPECT(mk_ring_attention_enqueue(moe, &rows, NULL, NULL) == MK_INVALID_ARGUMENT);
  EXPECT(mk_group_status(group) == MK_OK && pending == NULL);

  EXPECT(mk_moe_launch(moe, &tokens, NULL, &pending) == MK_OK);
  EXPECT(mk_pending_wait(pending, 0) == MK_OK);
  EXPECT(y[0] == 0x41b0); /* 2 * (1 * 3 + 2 * 4) = 22 */
  mk_pending_destroy(pending);
  topk[0] = 1; /* every rank refuses it, and the group goes on */
  EXPECT(mk_moe_launch(moe, &tokens, NULL, &pending) == MK_OK);
  EXPECT(mk_pending_wait(pending, 0) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "moe: rank 0: topk[0, 0] = 1, but it must be 0..0") != NULL);
  EXPECT(mk_group_status(group) == MK_OK);
  mk_pending_destroy(pending);
  EXPECT(mk_ring_attention_launch(attention, &rows, NULL, &pending) == MK_OK);
  EXPECT(mk_pending_wait(pending, 0) == MK_OK);
  EXPECT(out[0] == w1[0] && out[1] == w1[1]); /* one position sees itself */
  mk_pending_destroy(pending);
  EXPECT(mk_attention_create(group, &attention_shape, &plan, &alone) == MK_INVALID_ARGUMENT);
  EXPECT(mk_attention_create(group, &attention_shape, NULL, &alone) == MK_OK);
  out[0] = out[1] = 0;
  EXPECT(mk_ring_attention_launch(alone, &rows, NULL, &pending) == MK_OK);
  EXPECT(mk_pending_wait(pending, 0) == MK_OK);
  EXPECT(out[0] == w1[0] && out[1] == w1[1]);
  EXPECT(lse[0] > 3.5355f && lse[0] < 3.5356f); /* (1 * 1 + 2 * 2) / sqrt(2) */
  mk_pending_destroy(pending);
  EXPECT(mk_operation_status(moe) == MK_OK && mk_operation_status(attention) == MK_OK);
  EXPECT(mk_moe_enqueue(moe, &tokens, NULL, NULL) == MK_UNIMPLEMENTED);
  EXPECT(strstr(mk_last_error(), "only the cuda executor queues launches on a stream") != NULL);

  mk_operation_destroy(alone);
  mk_operation_destroy(attention);
  mk_operation_destroy(moe);
  mk_operation_destroy(gemm);
  mk_group_destroy(group);
  mk_session_destroy(session);
  return "";
}
