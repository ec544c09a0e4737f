// Hellos of the peer links: what this node says of itself, and which ones of others it accepts. Free
// functions, without state and streams.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/cluster/peer_options.h"
#include "daemon/cluster/peer_wire.h"

namespace mkernel::cluster {

/// v1::Hello::groups_version of this daemon.
inline constexpr std::uint32_t kGroupsVersion = 1;

/// Random bytes that nobody guesses.
std::string random_token();

/// What this node answers to whoever dials it. `address` is where it is dialled.
v1::Hello answering_hello(const PeerLinksOptions& options, const std::string& address);
/// What it says at an address that it dials itself.
v1::Hello dialling_hello(const PeerLinksOptions& options, const std::string& address,
                         const std::string& token);

/// OK when a node that says this can be a peer of this one. `address` is where this node is dialled.
/// kInvalidArgument: no hello of a daemon; kFailedPrecondition: another ABI, another version of the
/// messages about groups, other rails or another version of their messages, both sides named; kAlreadyExists:
/// this node's own name; kPermissionDenied: a
/// name that every certificate carries.
Status check_hello(const v1::Hello& hello, const PeerLinksOptions& options, const std::string& address);

/// OK when the other end of the stream may speak for the node that the hello names: plain text from this
/// user's own processes on this host, or a certificate with the node's name. kPermissionDenied names both.
Status check_identity(const v1::Hello& hello, const RemoteEnd& end);

/// Where to dial a peer that says `address`: one that listens on every address of its host does not know
/// under which one it is seen.
std::string dialable(const std::string& address, const std::string& seen_host);

/// "2 x tcp", for people; "2 x tcp and verbs" where the rails are not of one kind.
std::string rails_of(const v1::Hello& hello);

}  // namespace mkernel::cluster
