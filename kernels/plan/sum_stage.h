// How far a wait of GEMM+RS and GEMM+AR is from the ranks that it waits for. The same for both executors.
#pragma once

#include <cstdint>

namespace mkernel::kernels {

/// Waits that come after other ranks' waits end later than these, so that a missing rank is named by those
/// who wait for it directly. Waits for tiles of the node's ranks are at stage 0; the others are for what is
/// made of these tiles, for what owners make of that, and for what is forwarded of that.
enum SumStage : std::uint32_t { kAfterNode = 1, kAfterOwner = 2, kAfterForward = 3 };

}  // namespace mkernel::kernels
