// The C ABI of the operations and of their launches.
#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>

#include "client/src/c_abi.h"

using namespace mkernel;         // NOLINT: this file is the C face of that namespace
using namespace mkernel::c_abi;  // NOLINT

namespace {

/// What an mk_operation points to.
using AnyOperation = std::variant<Gemm, Moe, RingAttention, AttentionBackward, GroupedGemm>;

// ---- the structs of the caller, as C++ has them

struct OperationOptions {
  Executor executor = Executor::kCpu;
  GemmPlanOptions plan;
};

Result<OperationOptions> options_of(const mk_operation_options* options) {
  const auto given = read("mk_operation_options", options);
  if (!given.ok()) return given.status();
  OperationOptions converted{
      .executor = static_cast<Executor>(given->executor),
      .plan = {.comm_ctas = given->comm_ctas, .sms = given->sms, .nic_gbytes = given->nic_gbytes}};
  if (given->machine != nullptr) converted.plan.machine = given->machine;
  return converted;
}

Result<ExecutorOptions> options_of(const mk_launch_options* options) {
  const auto given = read("mk_launch_options", options);
  if (!given.ok()) return given.status();
  ExecutorOptions converted;
  if (given->deadline_ms != 0) converted.deadline = std::chrono::milliseconds(given->deadline_ms);
  converted.compute_threads = given->compute_threads;
  return converted;
}

/// A field that stands for a bool.
Status check_flag(const char* field, std::uint32_t value) {
  if (value <= 1) return {};
  return {StatusCode::kInvalidArgument,
          std::string(field) + " = " + std::to_string(value) + ", but it must be 0 or 1"};
}

Result<GemmShape> shape_of(const mk_gemm_shape* shape) {
  const auto given = read("mk_gemm_shape", shape);
  if (!given.ok()) return given.status();
  GemmShape converted{given->m, given->n, given->k, static_cast<DataType>(given->dtype),
                      static_cast<Layout>(given->b_layout)};
  std::copy(std::begin(given->more_n), std::end(given->more_n), converted.more_n);
  return converted;
}
Result<MoeShape> shape_of(const mk_moe_shape* shape) {
  const auto given = read("mk_moe_shape", shape);
  if (!given.ok()) return given.status();
  MK_RETURN_IF_ERROR(check_flag("mk_moe_shape: weights_on_input", given->weights_on_input));
  return MoeShape{given->max_tokens,
                  given->hidden,
                  given->n,
                  given->intermediate,
                  given->experts,
                  given->topk,
                  static_cast<DataType>(given->dtype),
                  given->capacity,
                  static_cast<Layout>(given->w_layout),
                  given->weights_on_input == 1,
                  given->shared_intermediate};
}
Result<AttentionShape> shape_of(const mk_attention_shape* shape) {
  const auto given = read("mk_attention_shape", shape);
  if (!given.ok()) return given.status();
  MK_RETURN_IF_ERROR(check_flag("mk_attention_shape: causal", given->causal));
  MK_RETURN_IF_ERROR(check_flag("mk_attention_shape: has_window", given->has_window));
  AttentionShape converted{
      given->batch,    given->sequence,     given->heads, given->kv_heads,
      given->head_dim, given->causal == 1,  given->scale, static_cast<DataType>(given->dtype),
      given->keys,     given->max_sequences};
  if (given->has_window == 0) return converted;
  converted.window_left = given->window_left;
  converted.window_right = given->window_right;
  return converted;
}

Result<GroupedGemmShape> shape_of(const mk_grouped_gemm_shape* shape) {
  const auto given = read("mk_grouped_gemm_shape", shape);
  if (!given.ok()) return given.status();
  return GroupedGemmShape{given->max_rows,
                          given->k,
                          given->n,
                          given->groups,
                          static_cast<DataType>(given->dtype),
                          static_cast<Layout>(given->b_layout)};
}

Result<GemmArguments> operands_of(const mk_gemm_arguments* arguments) {
  const auto given = read("mk_gemm_arguments", arguments);
  if (!given.ok()) return given.status();
  GemmArguments converted{given->a, given->b, given->c, given->gathered};
  std::copy(std::begin(given->more_b), std::end(given->more_b), converted.more_b);
  std::copy(std::begin(given->more_c), std::end(given->more_c), converted.more_c);
  return converted;
}
Result<MoeArguments> operands_of(const mk_moe_arguments* arguments) {
  const auto given = read("mk_moe_arguments", arguments);
  if (!given.ok()) return given.status();
  return MoeArguments{given->tokens,    given->x,
                      given->topk,      given->weights,
                      given->w1,        given->w2,
                      given->y,         given->w1_up,
                      given->shared_w1, given->shared_w1_up,
                      given->shared_w2, given->shared_weights};
}
Result<AttentionArguments> operands_of(const mk_attention_arguments* arguments) {
  const auto given = read("mk_attention_arguments", arguments);
  if (!given.ok()) return given.status();
  return AttentionArguments{
      given->q, given->k, given->v, given->out, given->lse, given->cu_seqlens_q, given->cu_seqlens_k};
}
Result<AttentionBackwardArguments> operands_of(const mk_attention_backward_arguments* arguments) {
  const auto given = read("mk_attention_backward_arguments", arguments);
  if (!given.ok()) return given.status();
  return AttentionBackwardArguments{
      given->q,   given->k,   given->v,   given->out,          given->d_out,       given->lse,
      given->d_q, given->d_k, given->d_v, given->cu_seqlens_q, given->cu_seqlens_k};
}
Result<GroupedGemmArguments> operands_of(const mk_grouped_gemm_arguments* arguments) {
  const auto given = read("mk_grouped_gemm_arguments", arguments);
  if (!given.ok()) return given.status();
  return GroupedGemmArguments{given->a, given->ends, given->b, given->c};
}

// ---- what the functions of all kinds have in common

/// `make` makes the operation of a shape, C++'s, with the options.
template <typename Shape, typename Make>
mk_status create(const char* what, mk_group* group, const Shape* shape, const mk_operation_options* options,
                 mk_operation** operation, const Make& make) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require(what, group, shape, operation));
    const auto wanted = shape_of(shape);
    if (!wanted.ok()) return wanted.status();
    const auto with = options_of(options);
    if (!with.ok()) return with.status();
    auto made = make(*unwrap<Group>(group), wanted.value(), with.value());
    if (!made.ok()) return made.status();
    return give(Result<AnyOperation>(AnyOperation(std::move(*made))), operation);
  });
}

using GemmFactory = Result<Gemm> (Group::*)(const GemmShape&, Executor, const GemmPlanOptions&);

mk_status create_gemm(const char* what, GemmFactory factory, mk_group* group, const mk_gemm_shape* shape,
                      const mk_operation_options* options, mk_operation** operation) {
  return create(what, group, shape, options, operation,
                [factory](Group& in, const GemmShape& wanted, const OperationOptions& with) {
                  return (in.*factory)(wanted, with.executor, with.plan);
                });
}

/// The operation behind a handle, which must be a `Kind`.
template <typename Kind>
Result<Kind*> operation_of(const char* what, mk_operation* operation) {
  auto& any = *unwrap<AnyOperation>(operation);
  if (Kind* found = std::get_if<Kind>(&any)) return found;
  const std::string is = std::visit([](const auto& other) { return other.signature(); }, any);
  return Status(StatusCode::kInvalidArgument, std::string(what) + ": the operation is another one: " + is);
}

/// Calls `use` with the operation behind a handle, which must be a `Kind`, and with operands and options as
/// C++ has them.
template <typename Kind, typename Arguments, typename Use>
Status with_operands(const char* what, mk_operation* operation, const Arguments* arguments,
                     const mk_launch_options* options, const Use& use) {
  const auto found = operation_of<Kind>(what, operation);
  if (!found.ok()) return found.status();
  const auto operands = operands_of(arguments);
  if (!operands.ok()) return operands.status();
  const auto with = options_of(options);
  if (!with.ok()) return with.status();
  return use(*found.value(), operands.value(), with.value());
}

template <typename Kind, typename Arguments>
mk_status launch(const char* what, mk_operation* operation, const Arguments* arguments,
                 const mk_launch_options* options, mk_pending** pending) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require(what, operation, arguments, pending));
    return with_operands<Kind>(what, operation, arguments, options,
                               [&](Kind& found, const auto& operands, const ExecutorOptions& with) {
                                 return give(found.launch(operands, with), pending);
                               });
  });
}

template <typename Kind, typename Arguments>
mk_status enqueue(const char* what, mk_operation* operation, const Arguments* arguments, CUstream_st* stream,
                  const mk_launch_options* options) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require(what, operation, arguments));
    return with_operands<Kind>(what, operation, arguments, options,
                               [&](Kind& found, const auto& operands, const ExecutorOptions& with) {
                                 return found.enqueue(operands, stream, with);
                               });
  });
}

}  // namespace

extern "C" {

mk_status mk_ag_gemm_create(mk_group* group, const mk_gemm_shape* shape, const mk_operation_options* options,
                            mk_operation** operation) {
  return create_gemm("mk_ag_gemm_create", &Group::ag_gemm, group, shape, options, operation);
}
mk_status mk_gemm_rs_create(mk_group* group, const mk_gemm_shape* shape, const mk_operation_options* options,
                            mk_operation** operation) {
  return create_gemm("mk_gemm_rs_create", &Group::gemm_rs, group, shape, options, operation);
}
mk_status mk_gemm_ar_create(mk_group* group, const mk_gemm_shape* shape, const mk_operation_options* options,
                            mk_operation** operation) {
  return create_gemm("mk_gemm_ar_create", &Group::gemm_ar, group, shape, options, operation);
}
mk_status mk_moe_create(mk_group* group, const mk_moe_shape* shape, const mk_operation_options* options,
                        mk_operation** operation) {
  return create("mk_moe_create", group, shape, options, operation,
                [](Group& in, const MoeShape& wanted, const OperationOptions& with) {
                  return in.moe(wanted, with.executor, with.plan);
                });
}
mk_status mk_ring_attention_create(mk_group* group, const mk_attention_shape* shape,
                                   const mk_operation_options* options, mk_operation** operation) {
  return create("mk_ring_attention_create", group, shape, options, operation,
                [](Group& in, const AttentionShape& wanted, const OperationOptions& with) {
                  return in.ring_attention(wanted, with.executor, with.plan);
                });
}
mk_status mk_attention_create(mk_group* group, const mk_attention_shape* shape,
                              const mk_operation_options* options, mk_operation** operation) {
  return create("mk_attention_create", group, shape, options, operation,
                [](Group& in, const AttentionShape& wanted, const OperationOptions& with) {
                  return in.attention(wanted, with.executor, with.plan);
                });
}
mk_status mk_attention_backward_create(mk_group* group, const mk_attention_shape* shape,
                                       const mk_operation_options* options, mk_operation** operation) {
  return create("mk_attention_backward_create", group, shape, options, operation,
                [](Group& in, const AttentionShape& wanted, const OperationOptions& with) {
                  return in.attention_backward(wanted, with.executor, with.plan);
                });
}
mk_status mk_ring_attention_backward_create(mk_group* group, const mk_attention_shape* shape,
                                            const mk_operation_options* options, mk_operation** operation) {
  return create("mk_ring_attention_backward_create", group, shape, options, operation,
                [](Group& in, const AttentionShape& wanted, const OperationOptions& with) {
                  return in.ring_attention_backward(wanted, with.executor, with.plan);
                });
}
mk_status mk_grouped_gemm_create(mk_group* group, const mk_grouped_gemm_shape* shape,
                                 const mk_operation_options* options, mk_operation** operation) {
  return create("mk_grouped_gemm_create", group, shape, options, operation,
                [](Group& in, const GroupedGemmShape& wanted, const OperationOptions& with) {
                  return in.grouped_gemm(wanted, with.executor, with.plan);
                });
}

mk_status mk_gemm_launch(mk_operation* operation, const mk_gemm_arguments* arguments,
                         const mk_launch_options* options, mk_pending** pending) {
  return launch<Gemm>("mk_gemm_launch", operation, arguments, options, pending);
}
mk_status mk_moe_launch(mk_operation* operation, const mk_moe_arguments* arguments,
                        const mk_launch_options* options, mk_pending** pending) {
  return launch<Moe>("mk_moe_launch", operation, arguments, options, pending);
}
mk_status mk_ring_attention_launch(mk_operation* operation, const mk_attention_arguments* arguments,
                                   const mk_launch_options* options, mk_pending** pending) {
  return launch<RingAttention>("mk_ring_attention_launch", operation, arguments, options, pending);
}
mk_status mk_attention_backward_launch(mk_operation* operation,
                                       const mk_attention_backward_arguments* arguments,
                                       const mk_launch_options* options, mk_pending** pending) {
  return launch<AttentionBackward>("mk_attention_backward_launch", operation, arguments, options, pending);
}
mk_status mk_grouped_gemm_launch(mk_operation* operation, const mk_grouped_gemm_arguments* arguments,
                                 const mk_launch_options* options, mk_pending** pending) {
  return launch<GroupedGemm>("mk_grouped_gemm_launch", operation, arguments, options, pending);
}
mk_status mk_gemm_enqueue(mk_operation* operation, const mk_gemm_arguments* arguments, CUstream_st* stream,
                          const mk_launch_options* options) {
  return enqueue<Gemm>("mk_gemm_enqueue", operation, arguments, stream, options);
}
mk_status mk_moe_enqueue(mk_operation* operation, const mk_moe_arguments* arguments, CUstream_st* stream,
                         const mk_launch_options* options) {
  return enqueue<Moe>("mk_moe_enqueue", operation, arguments, stream, options);
}
mk_status mk_ring_attention_enqueue(mk_operation* operation, const mk_attention_arguments* arguments,
                                    CUstream_st* stream, const mk_launch_options* options) {
  return enqueue<RingAttention>("mk_ring_attention_enqueue", operation, arguments, stream, options);
}
mk_status mk_attention_backward_enqueue(mk_operation* operation,
                                        const mk_attention_backward_arguments* arguments, CUstream_st* stream,
                                        const mk_launch_options* options) {
  return enqueue<AttentionBackward>("mk_attention_backward_enqueue", operation, arguments, stream, options);
}
mk_status mk_grouped_gemm_enqueue(mk_operation* operation, const mk_grouped_gemm_arguments* arguments,
                                  CUstream_st* stream, const mk_launch_options* options) {
  return enqueue<GroupedGemm>("mk_grouped_gemm_enqueue", operation, arguments, stream, options);
}

mk_status mk_operation_status(mk_operation* operation) {
  return guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require("mk_operation_status", operation));
    return std::visit([](Planned& any) { return any.status(); }, *unwrap<AnyOperation>(operation));
  });
}
double mk_operation_expected_seconds(const mk_operation* operation) {
  return get<AnyOperation>("mk_operation_expected_seconds", operation, [](const AnyOperation& found) {
    return std::visit([](const Planned& any) { return any.expected_seconds(); }, found);
  });
}
void mk_operation_destroy(mk_operation* operation) {
  delete unwrap<AnyOperation>(operation);
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
