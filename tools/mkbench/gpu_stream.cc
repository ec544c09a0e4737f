#include "tools/mkbench/gpu_stream.h"

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "kernels/cuda/memory/error.h"

namespace mkernel::bench {
namespace {

using kernels::cuda_status;

struct DestroyEvent {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<CUevent_st, DestroyEvent>;

}  // namespace

Status use_gpu(int device) {
  return cuda_status(cudaSetDevice(device), "GPU " + std::to_string(device));
}

void GpuStream::Destroy::operator()(CUstream_st* stream) const {
  cudaStreamDestroy(stream);
}

Result<GpuStream> GpuStream::create() {
  cudaStream_t made = nullptr;
  MK_RETURN_IF_ERROR(cuda_status(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "stream"));
  GpuStream stream;
  stream.stream_.reset(made);
  return Result<GpuStream>(std::move(stream));
}

Status GpuStream::synchronize() const {
  return cuda_status(cudaStreamSynchronize(get()), "what was queued on the GPU");
}

Result<std::vector<double>> GpuStream::time(int count, const std::function<Status(int)>& launch) const {
  std::vector<Event> events;
  for (int i = 0; i <= count; ++i) {
    cudaEvent_t event = nullptr;
    MK_RETURN_IF_ERROR(cuda_status(cudaEventCreate(&event), "event"));
    events.emplace_back(event);
  }
  MK_RETURN_IF_ERROR(cuda_status(cudaEventRecord(events[0].get(), get()), "event"));
  for (int i = 0; i < count; ++i) {
    MK_RETURN_IF_ERROR(launch(i));
    MK_RETURN_IF_ERROR(cuda_status(cudaEventRecord(events[i + 1].get(), get()), "event"));
  }
  MK_RETURN_IF_ERROR(synchronize());
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    float ms = 0;
    MK_RETURN_IF_ERROR(cuda_status(cudaEventElapsedTime(&ms, events[i].get(), events[i + 1].get()), "time"));
    times.push_back(ms);
  }
  return times;
}

void GpuGraph::Destroy::operator()(CUgraphExec_st* graph) const {
  cudaGraphExecDestroy(graph);
}

Result<GpuGraph> GpuGraph::capture(const GpuStream& stream, const std::function<Status()>& queue) {
  MK_RETURN_IF_ERROR(
      cuda_status(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capture"));
  const Status queued = queue();
  cudaGraph_t graph = nullptr;
  const Status ended = cuda_status(cudaStreamEndCapture(stream.get(), &graph), "capture");
  if (!queued.ok()) return queued;
  MK_RETURN_IF_ERROR(ended);
  cudaGraphExec_t made = nullptr;
  const Status instantiated = cuda_status(cudaGraphInstantiate(&made, graph, 0), "graph");
  cudaGraphDestroy(graph);
  MK_RETURN_IF_ERROR(instantiated);
  GpuGraph executable;
  executable.graph_.reset(made);
  return Result<GpuGraph>(std::move(executable));
}

Status GpuGraph::launch(const GpuStream& stream) const {
  return cuda_status(cudaGraphLaunch(graph_.get(), stream.get()), "graph launch");
}

}  // namespace mkernel::bench
