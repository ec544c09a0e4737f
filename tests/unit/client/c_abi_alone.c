/* The operations of a rank alone, and backward passes, as a C program sees them. Compiled as C99. */
#include <mkernel/mkernel.h>
#include <string.h>

#include "tests/unit/client/c_abi_expect.h"

/* Of one rank; ends that are bad are refused, and the group goes on. */
const char* mk_test_grouped_gemm(const char* socket) {
  mk_session* session = NULL;
  mk_group* group = NULL;
  mk_operation *gemm = NULL, *other = NULL;
  mk_pending* pending = NULL;
  const mk_session_options here = {SIZE(here), socket, "c test", -1, 1, 30000};
  const mk_group_options options = {SIZE(options), "grouped", 1, 0, 8, 16, 30000};
  const mk_grouped_gemm_shape shape = {SIZE(shape), 4, 2, 1, 3, MK_BF16, MK_ROW_MAJOR};
  const mk_grouped_gemm_shape none = {SIZE(none), 4, 2, 1, 0, MK_BF16, MK_ROW_MAJOR};
  const mk_gemm_shape plain = {SIZE(plain), 2, 1, 2, MK_BF16, MK_ROW_MAJOR};
  const mk_operation_options gpu = {SIZE(gpu), MK_CUDA, 0, 0, 0, NULL};
  const mk_operation_options pushing = {SIZE(pushing), MK_CPU, 4, 0, 0, NULL};
  const uint16_t a[8] = {0x3f80, 0x4000, 0x4040, 0x4080, 0x3f80, 0x3f80, 0, 0}; /* 1 2, 3 4, 1 1 */
  const uint16_t b[6] = {0x3f80, 0x4000, 0x7fc0, 0x7fc0, 0x4040, 0x4080};       /* 1, 2; NaN; 3, 4 */
  int32_t ends[3] = {1, 1, 3};                                                  /* the second has no rows */
  uint16_t c[4] = {0xffff, 0xffff, 0xffff, 0xffff};
  const mk_grouped_gemm_arguments rows = {SIZE(rows), a, ends, b, c};

  EXPECT(mk_connect(&here, &session) == MK_OK);
  EXPECT(mk_join(session, &options, &group) == MK_OK);
  EXPECT(mk_grouped_gemm_create(group, &none, NULL, &gemm) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "grouped_gemm: groups = 0, but it must be 1..1024") != NULL);
  EXPECT(mk_grouped_gemm_create(group, &shape, &pushing, &gemm) == MK_INVALID_ARGUMENT);
  EXPECT(mk_grouped_gemm_create(group, &shape, &gpu, &gemm) == MK_FAILED_PRECONDITION); /* there is no GPU */
  EXPECT(mk_grouped_gemm_create(group, &shape, NULL, &gemm) == MK_OK);
  EXPECT(mk_ag_gemm_create(group, &plain, NULL, &other) == MK_OK);
  EXPECT(mk_grouped_gemm_launch(other, &rows, NULL, &pending) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "mk_grouped_gemm_launch: the operation is another one: ag_gemm") != NULL);

  EXPECT(mk_grouped_gemm_launch(gemm, &rows, NULL, &pending) == MK_OK);
  EXPECT(mk_pending_wait(pending, 0) == MK_OK);
  EXPECT(c[0] == 0x40a0 && c[1] == 0x41c8 && c[2] == 0x40e0 && c[3] == 0xffff); /* 5, 25, 7 */
  mk_pending_destroy(pending);
  ends[1] = 0;
  EXPECT(mk_grouped_gemm_launch(gemm, &rows, NULL, &pending) == MK_OK);
  EXPECT(mk_pending_wait(pending, 0) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "grouped_gemm: ends[1] = 0, but it must be 1..4") != NULL);
  EXPECT(mk_group_status(group) == MK_OK && mk_operation_status(gemm) == MK_OK);
  mk_pending_destroy(pending);
  EXPECT(mk_grouped_gemm_enqueue(gemm, &rows, NULL, NULL) == MK_UNIMPLEMENTED);

  mk_operation_destroy(other);
  mk_operation_destroy(gemm);
  mk_group_destroy(group);
  mk_session_destroy(session);
  return "";
}

/* Two sequences of one position each, packed; the second sees itself alone. */
const char* mk_test_varlen(const char* socket) {
  mk_session* session = NULL;
  mk_group* group = NULL;
  mk_operation* operation = NULL;
  mk_pending* pending = NULL;
  const mk_session_options here = {SIZE(here), socket, "c test", -1, 1, 30000};
  const mk_group_options options = {SIZE(options), "varlen", 1, 0, 8, 16, 30000};
  mk_attention_shape shape = {SIZE(shape), 1, 2, 1, 1, 2, 0, 0, MK_BF16, 0, 2, 2, -1, -1};
  const uint16_t x[4] = {0x3f80, 0x4000, 0x3f80, 0x4000}, v[4] = {0x4040, 0x4080, 0x3f80, 0x4000};
  int32_t lengths[3] = {0, 1, 2};
  uint16_t out[4] = {0, 0, 0, 0};
  const mk_attention_arguments rows = {SIZE(rows), x, x, v, out, NULL, lengths, lengths};

  EXPECT(mk_connect(&here, &session) == MK_OK);
  EXPECT(mk_join(session, &options, &group) == MK_OK);
  EXPECT(mk_attention_create(group, &shape, NULL, &operation) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "mk_attention_shape: has_window = 2, but it must be 0 or 1") != NULL);
  shape.has_window = 1;
  shape.causal = 7;
  EXPECT(mk_attention_create(group, &shape, NULL, &operation) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "mk_attention_shape: causal = 7, but it must be 0 or 1") != NULL);
  shape.causal = 0;
  EXPECT(mk_attention_create(group, &shape, NULL, &operation) == MK_OK);
  EXPECT(mk_ring_attention_launch(operation, &rows, NULL, &pending) == MK_OK);
  EXPECT(mk_pending_wait(pending, 0) == MK_OK);
  EXPECT(memcmp(out, v, sizeof(out)) == 0);
  mk_pending_destroy(pending);
  lengths[1] = 3; /* is refused, and the group goes on */
  EXPECT(mk_ring_attention_launch(operation, &rows, NULL, &pending) == MK_OK);
  EXPECT(mk_pending_wait(pending, 0) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "attention: cu_seqlens_q[1] = 3, but it must be 0..2") != NULL);
  EXPECT(mk_group_status(group) == MK_OK);
  mk_pending_destroy(pending);

  mk_operation_destroy(operation);
  mk_group_destroy(group);
  mk_session_destroy(session);
  return "";
}

/* One position sees itself with weight 1: all of the gradient goes to its value. */
const char* mk_test_backward(const char* socket) {
  mk_session* session = NULL;
  mk_group* group = NULL;
  mk_operation *alone = NULL, *ring = NULL, *forward = NULL;
  mk_pending* pending = NULL;
  const mk_session_options here = {SIZE(here), socket, "c test", -1, 1, 30000};
  const mk_group_options options = {SIZE(options), "backward", 1, 0, 8, 16, 30000};
  mk_attention_shape shape = {SIZE(shape), 1, 1, 1, 1, 2, 0, 0, MK_BF16, 0, 0, 0, 0, 0};
  const mk_operation_options pushing = {SIZE(pushing), MK_CPU, 4, 0, 0, NULL};
  const uint16_t x[2] = {0x3f80, 0x4000}, v[2] = {0x4040, 0x4080},
                 d_out[2] = {0x4000, 0x3f80}; /* 1 2; 3 4; 2 1 */
  const float lse[1] = {3.53553391f};         /* (1 * 1 + 2 * 2) / sqrt(2) */
  uint16_t d_q[2], d_k[2], d_v[2];
  mk_attention_backward_arguments rows = {SIZE(rows), x, x, v, v, d_out, lse, d_q, d_k, d_v, NULL, NULL};
  mk_operation* each[2];
  int i;

  EXPECT(mk_connect(&here, &session) == MK_OK);
  EXPECT(mk_join(session, &options, &group) == MK_OK);
  EXPECT(mk_ring_attention_backward_create(group, &shape, &pushing, &ring) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "ring_attention_backward: the cpu executor has no GemmPlanOptions") != NULL);
  shape.heads = 0;
  EXPECT(mk_ring_attention_backward_create(group, &shape, NULL, &ring) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "ring_attention_backward: heads = 0, but it must be 1..") != NULL);
  shape.heads = 1;
  EXPECT(mk_attention_backward_create(group, &shape, NULL, &alone) == MK_OK);
  EXPECT(mk_ring_attention_backward_create(group, &shape, NULL, &ring) == MK_OK);
  EXPECT(mk_ring_attention_create(group, &shape, NULL, &forward) == MK_OK);
  EXPECT(mk_attention_backward_launch(forward, &rows, NULL, &pending) == MK_INVALID_ARGUMENT);
  EXPECT(strstr(mk_last_error(), "the operation is another one: ring_attention batch=1") != NULL);
  each[0] = alone;
  each[1] = ring;
  for (i = 0; i < 2; ++i) {
    memset(d_q, 0xff, sizeof(d_q));
    memset(d_k, 0xff, sizeof(d_k));
    memset(d_v, 0xff, sizeof(d_v));
    EXPECT(mk_attention_backward_launch(each[i], &rows, NULL, &pending) == MK_OK);
    EXPECT(mk_pending_wait(pending, 0) == MK_OK);
    EXPECT(d_q[0] == 0 && d_q[1] == 0 && d_k[0] == 0 && d_k[1] == 0);
    EXPECT(d_v[0] == d_out[0] && d_v[1] == d_out[1]);
    mk_pending_destroy(pending);
  }
  EXPECT(mk_attention_backward_enqueue(ring, &rows, NULL, NULL) == MK_UNIMPLEMENTED);

  mk_operation_destroy(forward);
  mk_operation_destroy(ring);
  mk_operation_destroy(alone);
  mk_group_destroy(group);
  mk_session_destroy(session);
  return "";
}
