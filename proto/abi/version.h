// The version of every fixed layout under proto/abi, and the limits that the layouts fix.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mkernel::abi {

/// First word of every message and of every shared segment: "MKNL", little endian.
inline constexpr std::uint32_t kMagic = 0x4c4e4b4dU;

/// Raised by every change of a layout. Client and daemon must agree exactly; there is no negotiation.
inline constexpr std::uint32_t kVersion = 9;

/// Bytes of a name (group, node, client), the terminating zero included.
inline constexpr std::size_t kNameBytes = 64;

/// Bytes of the text of a status that crosses a border, the terminating zero included. Longer texts are cut.
inline constexpr std::size_t kTextBytes = 448;

/// Bytes of the secret that the ranks of a group may share (session messages, `JoinGroup`).
inline constexpr std::size_t kSecretBytes = 32;

/// Bytes that one rank contributes to one exchange of its group (session messages, `Exchange`).
inline constexpr std::size_t kExchangeBytes = 512;

inline constexpr std::uint32_t kMaxWorldSize = 1024;  ///< ranks of one group
inline constexpr std::uint32_t kMaxRegions = 256;     ///< region indices of one group
inline constexpr std::uint32_t kMaxLanes = 64;        ///< channels from one rank to one other rank
inline constexpr std::uint32_t kMaxRings =
    32;  ///< work rings of each writer of a session: one per proxy thread
inline constexpr std::uint32_t kMaxPutBytes = 1U << 30;  ///< payload of one put

}  // namespace mkernel::abi
