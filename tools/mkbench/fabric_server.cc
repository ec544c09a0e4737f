// The receiving end: does what the sending one asks for, and polls its transport meanwhile.
#include <poll.h>

#include <memory>

#include "tools/mkbench/fabric_end.h"
#include "tools/mkbench/perftest.h"

namespace mkernel::bench {
namespace {

/// A count that a NIC writes may be seen a little after the sender knows of it; on a machine that others keep
/// busy, more than a little.
constexpr std::chrono::seconds kVerifyPatience{10};

/// One thread.
class Server {
 public:
  Server(Pipe& pipe, const MakeTransport& make, const PerftestDevice* device)
      : pipe_(pipe), make_(make), device_(device) {}

  /// One turn of the end, or a wait for the next word where there is none.
  Status step() {
    auto word = end_ != nullptr ? end_->turn() : wait_for_word();
    if (!word.ok()) return word.status();
    return word->has_value() ? pipe_.send_word(carry_out(**word)) : Status();
  }

 private:
  Result<std::optional<nlohmann::json>> wait_for_word() {
    pollfd wanted{pipe_.fd(), POLLIN, 0};
    ::poll(&wanted, 1, 1000);
    auto received = pipe_.receive();
    if (!received.ok()) return received.status();
    return received->has_value() ? (*received)->word : std::nullopt;
  }

  nlohmann::json carry_out(const nlohmann::json& word) {
    const std::string what = word.value("do", "");
    if (what == "open") return open(word);
    if (what == "perftest") return start_program(word);
    if (end_ == nullptr) return {{"error", "\"" + what + "\" before \"open\""}};
    if (what == "answer") end_->answer(word.value("on", false));
    if (what == "verify") return verify(word);
    if (what == "close") end_.reset();
    return nlohmann::json::object();
  }

  nlohmann::json open(const nlohmann::json& word) {
    end_.reset();
    auto made = End::make(make_, pipe_, layout_for(word.value("bytes", 0U)), false);
    Status status = made.status();
    if (status.ok()) status = (*made)->connect(word.value("endpoint", ""));
    if (!status.ok()) return {{"error", status.to_string()}};
    end_ = std::move(*made);
    return {{"endpoint", end_->endpoint()}};
  }

  nlohmann::json verify(const nlohmann::json& word) {
    const auto arrived = word.value("arrived", std::uint64_t{0});
    if (!end_->wait_arrived(arrived, kVerifyPatience)) {
      return {{"error", std::to_string(end_->arrived_count()) + " puts have arrived, of " +
                            std::to_string(arrived) + " that are completed"}};
    }
    return {{"right", end_->holds(word.value("round", std::uint64_t{0}))}};
  }

  nlohmann::json start_program(const nlohmann::json& word) {
    program_.reset();
    if (device_ == nullptr) return {{"error", "this transport has no device"}};
    auto started = start_perftest_server(*device_, word.value("program", ""), word.value("bytes", 0U));
    if (!started.ok()) return {{"error", started.status().text()}};
    program_ = std::make_unique<PerftestServer>(std::move(*started));
    return {{"port", program_->port}};
  }

  Pipe& pipe_;
  const MakeTransport& make_;
  const PerftestDevice* const device_;
  std::unique_ptr<End> end_;
  std::unique_ptr<PerftestServer> program_;
};

}  // namespace

Status serve_fabric(Pipe& pipe, const MakeTransport& make, const PerftestDevice* device) {
  Server server(pipe, make, device);
  for (;;) {
    const Status status = server.step();
    if (status.code() == StatusCode::kCancelled) return {};  // the other end has hung up
    MK_RETURN_IF_ERROR(status);
  }
}

}  // namespace mkernel::bench
