// The C ABI of the operations and of their launches.
#include "client/src/c_abi.h"

using namespace mkernel;         // NOLINT: this file is the C face of that namespace
using namespace mkernel::c_abi;  // NOLINT

namespace {

ExecutorOptions options_of(const mk_launch_options* options) {
  ExecutorOptions converted;
  if (options == nullptr) return converted;
  if (options->deadline_ms != 0) converted.deadline = std::chrono::milliseconds(options->deadline_ms);
  converted.compute_threads = options->compute_threads;
  return converted;
}

GemmShape shape_of(const mk_gemm_shape& shape) {
  return {shape.m, shape.n, shape.k, static_cast<DataType>(shape.dtype), static_cast<Layout>(shape.b_layout)};
}

GemmArguments operands_of(const mk_gemm_arguments& arguments) {
  return {arguments.a, arguments.b, arguments.c};
}

GemmPlanOptions plan_of(const mk_gemm_plan* plan) {
  if (plan == nullptr) return {};
  return {.comm_ctas = plan->comm_ctas, .sms = plan->sms, .nic_gbytes = plan->nic_gbytes};
}

using GemmFactory = Result<Gemm> (Group::*)(const GemmShape&, Executor, const GemmPlanOptions&);

mk_status create_gemm(GemmFactory factory, mk_group* group, const mk_gemm_shape* shape, uint32_t executor,
                      const mk_gemm_plan* plan, mk_gemm** operation) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("gemm create", group, shape, operation));
    return give(
        (unwrap<Group>(group)->*factory)(shape_of(*shape), static_cast<Executor>(executor), plan_of(plan)),
        operation);
  });
}

}  // namespace

extern "C" {

mk_status mk_ag_gemm_create(mk_group* group, const mk_gemm_shape* shape, uint32_t executor,
                            const mk_gemm_plan* plan, mk_gemm** operation) {
  return create_gemm(&Group::ag_gemm, group, shape, executor, plan, operation);
}
mk_status mk_gemm_rs_create(mk_group* group, const mk_gemm_shape* shape, uint32_t executor,
                            const mk_gemm_plan* plan, mk_gemm** operation) {
  return create_gemm(&Group::gemm_rs, group, shape, executor, plan, operation);
}
mk_status mk_gemm_ar_create(mk_group* group, const mk_gemm_shape* shape, uint32_t executor,
                            const mk_gemm_plan* plan, mk_gemm** operation) {
  return create_gemm(&Group::gemm_ar, group, shape, executor, plan, operation);
}
mk_status mk_gemm_launch(mk_gemm* operation, const mk_gemm_arguments* arguments,
                         const mk_launch_options* options, mk_pending** pending) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_gemm_launch", operation, arguments, pending));
    return give(unwrap<Gemm>(operation)->launch(operands_of(*arguments), options_of(options)), pending);
  });
}
mk_status mk_gemm_enqueue(mk_gemm* operation, const mk_gemm_arguments* arguments, CUstream_st* stream,
                          const mk_launch_options* options) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_gemm_enqueue", operation, arguments));
    return unwrap<Gemm>(operation)->enqueue(operands_of(*arguments), stream, options_of(options));
  });
}
mk_status mk_gemm_status(mk_gemm* operation) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_gemm_status", operation));
    return unwrap<Gemm>(operation)->status();
  });
}
void mk_gemm_destroy(mk_gemm* operation) {
  delete unwrap<Gemm>(operation);
}

mk_status mk_moe_create(mk_group* group, const mk_moe_shape* shape, mk_moe** operation) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_moe_create", group, shape, operation));
    return give(unwrap<Group>(group)->moe({shape->max_tokens, shape->hidden, shape->n, shape->intermediate,
                                           shape->experts, shape->topk, static_cast<DataType>(shape->dtype)}),
                operation);
  });
}
mk_status mk_moe_launch(mk_moe* operation, const mk_moe_arguments* arguments,
                        const mk_launch_options* options, mk_pending** pending) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_moe_launch", operation, arguments, pending));
    const MoeArguments converted{arguments->tokens, arguments->x,  arguments->topk, arguments->weights,
                                 arguments->w1,     arguments->w2, arguments->y};
    return give(unwrap<Moe>(operation)->launch(converted, options_of(options)), pending);
  });
}
void mk_moe_destroy(mk_moe* operation) {
  delete unwrap<Moe>(operation);
}

mk_status mk_ring_attention_create(mk_group* group, const mk_attention_shape* shape,
                                   mk_attention** operation) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_ring_attention_create", group, shape, operation));
    const AttentionShape converted{
        shape->batch,    shape->sequence,    shape->heads, shape->kv_heads,
        shape->head_dim, shape->causal != 0, shape->scale, static_cast<DataType>(shape->dtype)};
    return give(unwrap<Group>(group)->ring_attention(converted), operation);
  });
}
mk_status mk_ring_attention_launch(mk_attention* operation, const mk_attention_arguments* arguments,
                                   const mk_launch_options* options, mk_pending** pending) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_ring_attention_launch", operation, arguments, pending));
    return give(unwrap<RingAttention>(operation)->launch(
                    {arguments->q, arguments->k, arguments->v, arguments->out}, options_of(options)),
                pending);
  });
}
void mk_ring_attention_destroy(mk_attention* operation) {
  delete unwrap<RingAttention>(operation);
}

mk_status mk_pending_wait(const mk_pending* pending, uint32_t timeout_ms) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_pending_wait", pending));
    const Pending& launch = unwrap<Pending>(pending);
    return timeout_ms == 0 ? launch.wait() : launch.wait_for(std::chrono::milliseconds(timeout_ms));
  });
}
int mk_pending_done(const mk_pending* pending) {
  return get<Pending>("mk_pending_done", pending, [](const Pending& p) { return p.done() ? 1 : 0; });
}
void mk_pending_destroy(mk_pending* pending) {
  delete unwrap<Pending>(pending);
}

}  // extern "C"
