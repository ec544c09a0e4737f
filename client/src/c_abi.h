// What the functions of the C ABI share: each unwraps its handles, calls the C++ API and keeps the text of an
// error for the calling thread. No exception leaves: what the C++ API has not turned into a status is one
// here.
#pragma once

#include <string>
#include <utility>

#include "client/src/guard.h"
#include "mkernel/client.h"
#include "mkernel/mkernel.h"

namespace mkernel::c_abi {

/// The text of the thread's last error. Per thread, because a code without its text is of little use to a
/// caller.
inline std::string& last_error() {
  thread_local std::string text;
  return text;
}

inline mk_status report(const Status& status) noexcept {
  try {
    last_error() = status.text();
  } catch (...) {  // no memory for the text: the code says that there is an error
    last_error().clear();
  }
  return static_cast<mk_status>(status.code());
}

/// Runs `body`, which returns a Status.
template <typename Body>
mk_status guarded(Body body) {
  return report(client::without_exceptions([&]() -> Status { return body(); }));
}

/// An opaque C handle is a pointer to the C++ object, under another name.
template <typename Object, typename Handle>
Object* unwrap(Handle* handle) {
  return reinterpret_cast<Object*>(handle);
}
template <typename Object, typename Handle>
const Object& unwrap(const Handle* handle) {
  return *reinterpret_cast<const Object*>(handle);
}

/// Moves a result's value to the heap, for the handle to own.
template <typename Handle, typename Object>
Status give(Result<Object> result, Handle** handle) {
  if (!result.ok()) return result.status();
  *handle = reinterpret_cast<Handle*>(new Object(std::move(*result)));
  return {};
}

template <typename... Pointers>
Status require(const char* what, Pointers... pointers) {
  if ((... && (pointers != nullptr))) return {};
  return {StatusCode::kInvalidArgument, std::string(what) + ": a required pointer is NULL"};
}

/// Copies the caller's struct of `given_bytes` (its struct_size) to `ours`, of `known` bytes: what the
/// caller's header does not have yet is 0, and what this library does not know yet must be 0.
/// kUnimplemented otherwise; kInvalidArgument below `least`, the size of the struct's first version, and for
/// a size that no struct has.
Status read_struct(const char* name, const void* given, std::size_t given_bytes, void* ours,
                   std::size_t known, std::size_t least);

/// The caller's struct as this library knows it; `name` is that of its type. A null pointer is a struct of
/// zeroes.
template <typename Struct>
Result<Struct> read(const char* name, const Struct* given) {
  Struct ours{};
  if (given == nullptr) return ours;
  MK_RETURN_IF_ERROR(read_struct(name, given, given->struct_size, &ours, sizeof(Struct), sizeof(Struct)));
  return ours;
}

/// What a getter says of a handle; without one nothing (0, NULL) and an error for mk_last_error().
template <typename Object, typename Handle, typename Get>
auto get(const char* what, const Handle* handle, Get get) {
  decltype(get(unwrap<Object>(handle))) value{};
  (void)guarded([&]() -> Status {
    MK_RETURN_IF_ERROR(require(what, handle));
    value = get(unwrap<Object>(handle));
    return {};
  });
  return value;
}

}  // namespace mkernel::c_abi
