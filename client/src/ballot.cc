#include "client/src/ballot.h"

#include <algorithm>
#include <cstring>

#include "client/src/digest.h"
#include "proto/ipc/packet.h"

namespace mkernel::client {
namespace {

Ballot make(CallKind kind, StatusCode code, std::span<const std::byte> data) {
  Ballot ballot{};
  ballot.kind = static_cast<std::uint32_t>(kind);
  ballot.code = static_cast<std::uint32_t>(code);
  ballot.bytes = static_cast<std::uint32_t>(std::min(data.size(), sizeof(ballot.data)));
  if (ballot.bytes > 0) std::memcpy(ballot.data, data.data(), ballot.bytes);
  return ballot;
}

std::string text_of(const Ballot& ballot) {
  return std::string(
      ipc::text_of(std::span(ballot.data).first(std::min<std::size_t>(ballot.bytes, sizeof(ballot.data)))));
}

/// What is exchanged, where that is a text.
std::string printable_of(const Ballot& ballot) {
  std::string text = text_of(ballot);
  while (text.ends_with(' ')) text.pop_back();
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
  return plain && !text.empty() ? " of '" + text + "'" : "";
}

}  // namespace

std::string call_of(const Ballot& ballot) {
  switch (static_cast<CallKind>(ballot.kind)) {
    case CallKind::kBarrier: return "barrier";
    case CallKind::kExchange: return "exchange" + printable_of(ballot);
    case CallKind::kAgreement: return "'" + text_of(ballot) + "'";
  }
  return "a call that this version does not know";
}

Ballot barrier_ballot() {
  return make(CallKind::kBarrier, StatusCode::kOk, {});
}

Ballot exchange_ballot(std::span<const std::byte> payload) {
  return make(CallKind::kExchange, StatusCode::kOk, payload);
}

Ballot agreement_ballot(const std::string& text, const Status& mine) {
  Ballot ballot =
      make(CallKind::kAgreement, mine.code(), std::as_bytes(std::span(mine.ok() ? text : mine.text())));
  ballot.digest = digest_of(text);
  return ballot;
}

Status verdict(std::span<const Ballot> ballots, std::span<const std::string> nodes) {
  for (std::size_t rank = 0; rank < ballots.size(); ++rank) {
    const auto code = static_cast<StatusCode>(ballots[rank].code);
    if (code == StatusCode::kOk) continue;
    return {code, "rank " + std::to_string(rank) + " on node " + nodes[rank] + ": " + text_of(ballots[rank])};
  }
  for (std::size_t rank = 1; rank < ballots.size(); ++rank) {
    const Ballot& first = ballots[0];
    const Ballot& other = ballots[rank];
    if (first.kind == other.kind && first.digest == other.digest) continue;
    return {StatusCode::kInvalidArgument, "ranks differ in a collective call: rank 0 on node " + nodes[0] +
                                              " made " + call_of(first) + ", rank " + std::to_string(rank) +
                                              " on node " + nodes[rank] + " made " + call_of(other)};
  }
  return {};
}

}  // namespace mkernel::client
