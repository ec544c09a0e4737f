// The timeline of a launch on all ranks, as a file that Perfetto (ui.perfetto.dev) and chrome://tracing open.
#pragma once

#include <mkernel/client.h>
#include <mkernel/trace.h>

#include <string>
#include <vector>

namespace mkernel::bench {

/// **Collective**: rank 0 writes the events of all ranks to `path`, a process per rank, a track per thread.
/// Times of ranks on different machines do not compare. Errors: kInternal when the file cannot be written,
/// why the group failed.
Status write_timeline(Group& group, const std::vector<TraceEvent>& mine, const std::string& path);

}  // namespace mkernel::bench
