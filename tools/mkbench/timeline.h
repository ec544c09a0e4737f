// The timeline of a launch on all ranks, as a file that Perfetto (ui.perfetto.dev) and chrome://tracing open.
#pragma once

#include <mkernel/client.h>
#include <mkernel/trace.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace mkernel::bench {

/// The events of one rank as an array in the trace event format: a process per rank, a thread per track,
/// named after its role, and one per warp of it.
nlohmann::json timeline_of(std::uint32_t rank, const std::string& node,
                           const std::vector<TraceEvent>& events);

/// **Collective**: rank 0 writes the events of all ranks to `path`.
/// Times of ranks on different machines do not compare. Errors: kInternal when the file cannot be written,
/// why the group failed.
Status write_timeline(Group& group, const std::vector<TraceEvent>& mine, const std::string& path);

}  // namespace mkernel::bench
