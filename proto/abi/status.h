// Status: what every fallible call returns and what crosses borders as (code, text).
// The codes are those of gRPC, one to one. NOTES: plain C++, no exceptions, usable on the data path (an OK
// status does not allocate).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace mkernel {

enum class StatusCode : std::uint32_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
};

/// "INVALID_ARGUMENT" and so on; "UNKNOWN" for a number that is no code.
constexpr std::string_view to_string(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "OK";
    case StatusCode::kCancelled: return "CANCELLED";
    case StatusCode::kUnknown: return "UNKNOWN";
    case StatusCode::kInvalidArgument: return "INVALID_ARGUMENT";
    case StatusCode::kDeadlineExceeded: return "DEADLINE_EXCEEDED";
    case StatusCode::kNotFound: return "NOT_FOUND";
    case StatusCode::kAlreadyExists: return "ALREADY_EXISTS";
    case StatusCode::kPermissionDenied: return "PERMISSION_DENIED";
    case StatusCode::kResourceExhausted: return "RESOURCE_EXHAUSTED";
    case StatusCode::kFailedPrecondition: return "FAILED_PRECONDITION";
    case StatusCode::kAborted: return "ABORTED";
    case StatusCode::kOutOfRange: return "OUT_OF_RANGE";
    case StatusCode::kUnimplemented: return "UNIMPLEMENTED";
    case StatusCode::kInternal: return "INTERNAL";
    case StatusCode::kUnavailable: return "UNAVAILABLE";
    case StatusCode::kDataLoss: return "DATA_LOSS";
  }
  return "UNKNOWN";
}

/// The outcome of a call: a code, and for anything but OK a text that says who, what, which peer.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string text) : code_(code), text_(std::move(text)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& text() const { return text_; }

  /// "DEADLINE_EXCEEDED: rank 3 ..." for people.
  std::string to_string() const {
    std::string line(mkernel::to_string(code_));
    if (!text_.empty()) line.append(": ").append(text_);
    return line;
  }

  /// The same code with `what: ` before the text; an OK status stays OK.
  Status with_context(std::string_view what) const {
    if (ok()) return *this;
    return {code_, std::string(what).append(": ").append(text_)};
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string text_;
};

/// A value or the status that says why there is none. Reading value() of a failed result is a caller's bug.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit on purpose, `return value;`
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit on purpose, `return status;`

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return value_.value(); }
  const T& value() const& { return value_.value(); }
  T&& value() && { return std::move(value_).value(); }
  T* operator->() { return &value_.value(); }
  const T* operator->() const { return &value_.value(); }
  T& operator*() & { return value_.value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace mkernel

/// Returns from the enclosing function when `expression` is a status that is not OK.
#define MK_RETURN_IF_ERROR(expression)                                       \
  do {                                                                       \
    if (auto mk_status_ = (expression); !mk_status_.ok()) return mk_status_; \
  } while (false)
