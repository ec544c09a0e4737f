// What one rank says in a collective call, and the verdict that every rank draws from what all of them said.
// Every rank sees the same ballots, so every rank comes to the same verdict: a collective call succeeds
// everywhere or nowhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "proto/abi/status.h"
#include "proto/abi/version.h"

namespace mkernel::client {

enum class CallKind : std::uint32_t { kBarrier = 1, kExchange = 2, kAgreement = 3 };

/// One exchange contribution.
struct Ballot {
  std::uint32_t kind;    ///< CallKind
  std::uint32_t code;    ///< StatusCode of this rank's part so far
  std::uint64_t digest;  ///< of the whole text, which may be cut in `data`
  std::uint32_t bytes;   ///< of `data`
  std::uint32_t reserved;
  char data[488];  ///< an exchange's payload; an agreement's text; the text of a failed status
};
static_assert(sizeof(Ballot) == abi::kExchangeBytes);

Ballot barrier_ballot();
/// `payload` at most kMaxExchangeBytes.
Ballot exchange_ballot(std::span<const std::byte> payload);
/// "I am about to do `text`", or with `mine` not OK "I cannot, because".
Ballot agreement_ballot(const std::string& text, const Status& mine);

/// What the ballot's rank calls: "barrier", "exchange", or what it is about to do.
std::string call_of(const Ballot& ballot);

/// OK when all ballots (by rank) are of one kind, none carries an error, and all agreements are the same.
/// `nodes`: name of every rank's node. Errors name the rank that failed, or the two that differ and what each
/// said.
Status verdict(std::span<const Ballot> ballots, std::span<const std::string> nodes);

}  // namespace mkernel::client
