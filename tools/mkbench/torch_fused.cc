#include "tools/mkbench/torch_fused.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>

namespace mkernel::bench {
namespace {

/// A port of loopback that is free now; 0 when there is none.
std::uint16_t free_loopback_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  const bool bound = fd >= 0 && ::bind(fd, any, size) == 0 && ::getsockname(fd, any, &size) == 0;
  if (fd >= 0) ::close(fd);
  return bound ? ntohs(address.sin_port) : 0;
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string command_of(const Group& group, const TorchOptions& options, std::uint16_t port,
                       const std::vector<Row>& rows) {
  std::string command = "python3 " + quoted(options.driver) + " --rank " + std::to_string(group.rank()) +
                        " --world " + std::to_string(group.world_size()) + " --port " + std::to_string(port) +
                        " --device " + std::to_string(options.device) + " --iterations " +
                        std::to_string(options.iterations);
  for (const Row& row : rows) {
    const auto number = [&](const char* name) { return std::to_string(row.shape[name].get<std::int64_t>()); };
    command += " " + row.shape["op"].get<std::string>() + ":" + number("m") + "x" + number("n") + "x" +
               number("k") + ":" + row.shape["dtype"].get<std::string>();
  }
  return command;
}

/// What the command printed; kUnavailable when it failed.
Result<std::string> output_of(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return Status(StatusCode::kUnavailable, "cannot start: " + command);
  std::string text;
  std::array<char, 4096> part{};
  while (const std::size_t got = std::fread(part.data(), 1, part.size(), pipe)) text.append(part.data(), got);
  const int status = ::pclose(pipe);
  if (status == 0) return text;
  return Status(StatusCode::kUnavailable,
                "failed with wait status " + std::to_string(status) + ": " + command);
}

}  // namespace

Status measure_torch_fused(Group& group, const TorchOptions& options, std::vector<Row>& rows) {
  if (group.node_count() != 1) {
    return {StatusCode::kUnimplemented,
            "torch's fused operations run on one node, the group has " + std::to_string(group.node_count())};
  }
  const std::uint16_t mine = group.rank() == 0 ? free_loopback_port() : 0;
  auto ports = group.exchange(std::as_bytes(std::span(&mine, 1)));
  if (!ports.ok()) return ports.status();
  std::uint16_t port = 0;
  std::memcpy(&port, (*ports)[0].data(), sizeof port);
  auto printed = output_of(command_of(group, options, port, rows));
  if (!printed.ok()) return printed.status();
  if (group.rank() != 0) return {};
  const auto values = nlohmann::json::parse(*printed, nullptr, false);
  if (!values.is_array() || values.size() != rows.size())
    return {StatusCode::kUnavailable, options.driver + " printed no list of results: " + *printed};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (values[i].is_number()) rows[i].torch_fused_ms = values[i].get<double>();
  }
  return {};
}

}  // namespace mkernel::bench
