// The short way of a call like one before (see _short.py), as kernels of the operators in C++: it takes the
// place of Python's where a build for the PyTorch that runs is there (_build.py). A call that is not in the
// table, or that must not go this way, goes on in Python, through an operator of the same schema.
//
// It needs PyTorch alone, also one without CUDA, and is compiled on the machine that uses it. It calls
// libmkernel through addresses that Python hands over, and knows of its structs only what Python says
// (Description).
#include "mkernel/torch/short_way.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_ops.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <cstring>
#include <optional>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <tuple>

namespace mkernel_torch {
namespace {

// Neither is destroyed: a thread may be in a call when the process ends, and a child of fork() leaves its
// parent's behind.
std::atomic<Table*> table_of_process = new Table;
std::atomic<uint64_t> taken[kOperators];

const c10d::ProcessGroup* process_group_of(const std::string& name) {
  try {
    return c10d::resolve_process_group(name).get();
  } catch (const std::exception&) {  // there is none
    return nullptr;
  }
}

at::Tensor allocate(const std::vector<int64_t>& lead, int64_t columns, const at::Tensor& like) {
  c10::SmallVector<int64_t, 8> sizes;
  sizes.append(lead.begin(), lead.end());
  sizes.push_back(columns);
  const auto key = like.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  return at::_ops::empty_memory_format::redispatch(c10::DispatchKeySet(key),
                                                   c10::fromIntArrayRefUnchecked(sizes), like.scalar_type(),
                                                   at::kStrided, like.device(), false, std::nullopt);
}

// Operators whose kernels are Python: what a call goes on with.
template <class Function>
c10::TypedOperatorHandle<Function> in_python(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

// Raises the exception of a status; on the thread that has got it.
void check(int status) {
  static const auto raise = in_python<void(int64_t)>("mkernel::_raise_status");
  if (status != 0) raise.call(status);
}

struct Found {
  std::optional<at::Tensor> gathered;
  std::vector<at::Tensor> results;
};

// One launch of a call whose group's lock is held.
class Launching {
 public:
  Launching(Call& call, const Asked& asked) : call_(call), asked_(asked), arguments_(call.arguments) {}

  Found run() {
    const Description& what = call_.what;
    Found found;
    for (const at::Tensor& b : asked_.bs) found.results.push_back(allocate(call_.lead, b.size(1), asked_.a));
    if (call_.gathered) found.gathered = allocate(call_.lead, asked_.a.size(-1), asked_.a);
    set(what.a, 0, asked_.a.const_data_ptr());
    set(what.gathered, 0, call_.gathered ? found.gathered->data_ptr() : nullptr);
    for (size_t i = 0; i < asked_.bs.size(); ++i) {
      const auto index = static_cast<size_t>(what.fused[i]);
      set(i == 0 ? what.b : what.more_b, i == 0 ? 0 : i - 1, asked_.bs[index].const_data_ptr());
      set(i == 0 ? what.c : what.more_c, i == 0 ? 0 : i - 1, found.results[index].data_ptr());
    }
    *what.last_used = ++*what.uses;
    if (what.enqueue != nullptr) {
      check(what.enqueue(what.operation, arguments_.data(), call_.group->stream, call_.options.data()));
    } else {
      launch_and_wait(found);
    }
    return found;
  }

 private:
  void set(size_t offset, size_t index, const void* address) {
    std::memcpy(arguments_.data() + offset + index * sizeof(address), &address, sizeof(address));
  }

  // Python waits on after a slice, as only it hears of Ctrl-C, and keeps the operands of a launch that is
  // given up.
  void launch_and_wait(const Found& found) {
    static const auto go_on = in_python<void(int64_t, int64_t, at::TensorList)>("mkernel::_wait_for_launch");
    const Description& what = call_.what;
    void* pending = nullptr;
    check(what.launch(what.operation, arguments_.data(), call_.options.data(), &pending));
    if (what.wait(pending, static_cast<uint32_t>(kSlice.count())) == 0) return what.destroy(pending);
    std::vector<at::Tensor> operands = found.results;
    operands.push_back(asked_.a);
    operands.insert(operands.end(), asked_.bs.begin(), asked_.bs.end());
    if (found.gathered) operands.push_back(*found.gathered);
    go_on.call(reinterpret_cast<int64_t>(what.operation), reinterpret_cast<int64_t>(pending), operands);
  }

  Call& call_;
  const Asked& asked_;
  std::array<char, kMostArgumentBytes> arguments_;
};

bool is_aligned(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kAlignment == 0;
}

// Whether a launch can be queued on the current stream without asking PyTorch for more: it is that of the
// launch before, and no graph captures it. With the group's lock.
bool is_stream_known(const Call& call) {
  const Group& group = *call.group;
  const c10::Device device = call.a.device;
  if (!group.has_stream ||
      c10::impl::VirtualGuardImpl(device.type()).getStream(device).id() != group.stream_id)
    return false;
  int status = 0;
  const IsCapturing is_capturing = call.what.is_capturing;
  return is_capturing == nullptr || (is_capturing(group.stream, &status) == 0 && status == 0);
}

// The whole call, or nothing: it has to go on in Python.
std::optional<Found> call_like_before(const Asked& asked) {
  const std::shared_ptr<Call> call = table_of_process.load()->find(asked);
  if (call == nullptr || process_group_of(asked.group_name) != call->process_group) return std::nullopt;
  if (call->what.enqueue != nullptr) {
    if (!is_aligned(asked.a)) return std::nullopt;
    for (const at::Tensor& b : asked.bs) {
      if (!is_aligned(b)) return std::nullopt;
    }
  }
  const Held held(call->group->lock);
  if (!held || call->is_forgotten) return std::nullopt;
  if (call->what.enqueue != nullptr && !is_stream_known(*call)) return std::nullopt;
  const at::AutoDispatchBelowADInplaceOrView below;
  Found found = Launching(*call, asked).run();
  taken[asked.kind].fetch_add(1, std::memory_order_relaxed);
  return found;
}

// Dense memory of its own, and nothing that traces: keys that say no more than where tensors are.
bool are_plain(c10::DispatchKeySet keys) {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet kKnown({DispatchKey::CPU, DispatchKey::CUDA, DispatchKey::AutogradCPU,
                                        DispatchKey::AutogradCUDA, DispatchKey::ADInplaceOrView,
                                        DispatchKey::AutocastCPU, DispatchKey::AutocastCUDA});
  return (keys.raw_repr() & ~kKnown.raw_repr()) == 0;
}

bool asks_for_gradient(const at::Tensor& a, at::TensorList bs) {
  if (!c10::GradMode::is_enabled()) return false;
  return a.requires_grad() ||
         std::any_of(bs.begin(), bs.end(), [](const at::Tensor& b) { return b.requires_grad(); });
}

// Whether Python's kernel for autograd, which costs as much as the rest of a call, has nothing to do.
bool needs_no_autograd(c10::DispatchKeySet keys, const at::Tensor& a, at::TensorList bs) {
  return are_plain(keys) && !asks_for_gradient(a, bs);
}

// Each operator has one kernel for autograd (kAutograd) and one below it, whose keys are those of tensors
// alone.

using Gathered = std::tuple<std::optional<at::Tensor>, std::vector<at::Tensor>>;

template <bool kAutograd>
Gathered all_gather_matmul(c10::DispatchKeySet keys, const at::Tensor& a, at::TensorList bs,
                           int64_t gather_dim, std::string group_name, bool return_a) {
  if (gather_dim == 0 && (!kAutograd || needs_no_autograd(keys, a, bs))) {
    if (auto found = call_like_before({kGather, group_name, a, bs, return_a})) {
      return {std::move(found->gathered), std::move(found->results)};
    }
  }
  using Function = Gathered(const at::Tensor&, at::TensorList, int64_t, std::string, bool);
  static const auto go_on = in_python<Function>("mkernel::_fused_all_gather_matmul_in_python");
  return go_on.redispatch(keys, a, bs, gather_dim, std::move(group_name), return_a);
}

template <bool kAutograd>
at::Tensor matmul_reduce_scatter(c10::DispatchKeySet keys, const at::Tensor& a, const at::Tensor& b,
                                 std::string reduce_op, int64_t scatter_dim, std::string group_name) {
  if (scatter_dim == 0 && reduce_op == "sum" && (!kAutograd || needs_no_autograd(keys, a, b))) {
    if (auto found = call_like_before({kScatter, group_name, a, b, false}))
      return std::move(found->results[0]);
  }
  using Function = at::Tensor(const at::Tensor&, const at::Tensor&, std::string, int64_t, std::string);
  static const auto go_on = in_python<Function>("mkernel::_fused_matmul_reduce_scatter_in_python");
  return go_on.redispatch(keys, a, b, std::move(reduce_op), scatter_dim, std::move(group_name));
}

template <bool kAutograd>
at::Tensor matmul_all_reduce(c10::DispatchKeySet keys, const at::Tensor& a, const at::Tensor& b,
                             std::string reduce_op, std::string group_name) {
  if (reduce_op == "sum" && (!kAutograd || needs_no_autograd(keys, a, b))) {
    if (auto found = call_like_before({kReduce, group_name, a, b, false}))
      return std::move(found->results[0]);
  }
  using Function = at::Tensor(const at::Tensor&, const at::Tensor&, std::string, std::string);
  static const auto go_on = in_python<Function>("mkernel::_fused_matmul_all_reduce_in_python");
  return go_on.redispatch(keys, a, b, std::move(reduce_op), std::move(group_name));
}

// The operator with which Python hands over a call that it has made. `description`: the address of a
// Description.
void remember(const at::Tensor& a, at::TensorList bs, const std::string& group_name, int64_t kind,
              bool gathered, at::IntArrayRef lead, int64_t description) {
  const auto& what = *reinterpret_cast<const Description*>(description);
  TORCH_CHECK(what.struct_size == sizeof(Description), "mkernel: the extension is of another version");
  TORCH_CHECK(what.argument_bytes <= kMostArgumentBytes && bs.size() <= kMostB && kind >= 0 &&
              kind < kOperators);
  auto call = std::shared_ptr<Call>(new Call{static_cast<Operator>(kind),
                                             group_name,
                                             gathered,
                                             Layout(a),
                                             {},
                                             lead.vec(),
                                             *what.group,
                                             process_group_of(group_name),
                                             what,
                                             {},
                                             {}});
  for (const at::Tensor& b : bs) call->bs.emplace_back(b);
  const auto* options = static_cast<const char*>(what.options);
  call->options.assign(options, options + what.option_bytes);
  std::memcpy(call->arguments.data(), what.arguments, what.argument_bytes);
  if (call->process_group == nullptr) return;
  const Asked asked{call->kind, group_name, a, bs, gathered};
  table_of_process.load()->add(asked, std::move(call));
}

// Adds the kernels to the operators, for ever: a process may end while a thread is in one.
void add_kernels() {
  using c10::DispatchKey;
  using torch::Library;
  auto libraries = std::make_unique<std::vector<std::unique_ptr<Library>>>();
  const auto library = [&libraries](Library::Kind kind, std::optional<DispatchKey> key) -> Library& {
    return *libraries->emplace_back(std::make_unique<Library>(kind, "mkernel", key, __FILE__, __LINE__));
  };
  Library& autograd = library(Library::IMPL, DispatchKey::Autograd);
  autograd.impl("fused_all_gather_matmul", TORCH_FN(all_gather_matmul<true>));
  autograd.impl("fused_matmul_reduce_scatter", TORCH_FN(matmul_reduce_scatter<true>));
  autograd.impl("fused_matmul_all_reduce", TORCH_FN(matmul_all_reduce<true>));
  for (const DispatchKey key : {DispatchKey::CPU, DispatchKey::CUDA}) {
    Library& below = library(Library::IMPL, key);
    below.impl("fused_all_gather_matmul", TORCH_FN(all_gather_matmul<false>));
    below.impl("fused_matmul_reduce_scatter", TORCH_FN(matmul_reduce_scatter<false>));
    below.impl("fused_matmul_all_reduce", TORCH_FN(matmul_all_reduce<false>));
  }
  Library& own = library(Library::FRAGMENT, std::nullopt);
  own.def(
      "_remember(Tensor A, Tensor[] Bs, str group_name, int kind, bool gathered, int[] lead, int "
      "description) -> ()");
  own.impl("_remember", torch::dispatch(DispatchKey::CompositeExplicitAutograd, TORCH_FN(remember)));
  static_cast<void>(libraries.release());
}

}  // namespace

// What _extension.py calls, by ctypes. A group is a std::shared_ptr<Group>*, which the caller owns. Any
// thread.
extern "C" {

// What this file was compiled for, to be compared before anything else is called.
const char* mkernel_torch_built_for() {
  return MKERNEL_BUILT_FOR;
}

// Null, or why the kernels could not be added; then none was.
const char* mkernel_torch_add_kernels() {
  static std::string error;
  try {
    add_kernels();
    return nullptr;
  } catch (const std::exception& caught) {
    error = caught.what();
    return error.c_str();
  }
}

void* mkernel_torch_group_create() {
  return new std::shared_ptr<Group>(std::make_shared<Group>());
}
void mkernel_torch_group_destroy(std::shared_ptr<Group>* group) {
  delete group;
}

// 1: this thread holds the lock once more; 0: not within `milliseconds`.
int mkernel_torch_lock(std::shared_ptr<Group>* group, uint32_t milliseconds) {
  return (*group)->lock.acquire(std::chrono::milliseconds(milliseconds)) ? 1 : 0;
}
void mkernel_torch_unlock(std::shared_ptr<Group>* group) {
  (*group)->lock.release();
}
int mkernel_torch_depth(std::shared_ptr<Group>* group) {
  return (*group)->lock.depth();
}

// The stream of the launch before, by PyTorch's name and as a cudaStream_t. With the group's lock.
void mkernel_torch_set_stream(std::shared_ptr<Group>* group, int64_t stream_id, void* stream) {
  (*group)->has_stream = true;
  (*group)->stream_id = stream_id;
  (*group)->stream = stream;
}

// Of all calls. A launch that has begun goes on: what it uses is to be ended with the lock of its group.
void mkernel_torch_forget() {
  table_of_process.load()->forget();
}

// Not 0: until it is called with 0 no call goes this way.
void mkernel_torch_pause(int is_paused) {
  table_of_process.load()->pause(is_paused != 0);
}

// In a child of fork(), where another thread may have held the lock of the table.
void mkernel_torch_after_fork() {
  table_of_process = new Table;
}

// How many calls of an operator went this way since the last reset.
uint64_t mkernel_torch_taken(int kind) {
  return taken[kind].load(std::memory_order_relaxed);
}
void mkernel_torch_reset_taken() {
  for (auto& count : taken) count = 0;
}

}  // extern "C"

}  // namespace mkernel_torch
