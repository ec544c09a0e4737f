#include "daemon/rpc/grpc_log.h"

#include <grpc/support/log.h>
#include <spdlog/spdlog.h>

#include "daemon/base/line_limit.h"
#include "daemon/base/printable.h"

namespace mkernel::rpc {
namespace {

/// Peers cause most of these lines: a certificate that has expired does with every attempt to connect.
constexpr base::LineLimit::Rates kLines{.each = 2, .all = 2};

void log_line(gpr_log_func_args* line) {
  static base::LineLimit limit(kLines);
  if (!limit.admit(0)) return;
  for (const base::LineLimit::LeftOut& missing : limit.take_left_out()) {
    spdlog::warn("gRPC: {} lines were left out before the next one", missing.lines);
  }
  const auto level = line->severity == GPR_LOG_SEVERITY_ERROR  ? spdlog::level::warn
                     : line->severity == GPR_LOG_SEVERITY_INFO ? spdlog::level::info
                                                               : spdlog::level::debug;
  spdlog::log(level, "gRPC: {}", base::one_line(line->message));
}

}  // namespace

GrpcLog::GrpcLog() {
  ::gpr_set_log_function(log_line);
}

GrpcLog::~GrpcLog() {
  ::gpr_set_log_function(nullptr);
}

}  // namespace mkernel::rpc
