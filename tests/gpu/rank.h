// What the programs that play a rank have in common.
#pragma once

#include <cuda_runtime.h>
#include <mkernel/client.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

/// A call of CUDA that must work: else says why and ends the program with status 1.
inline void need(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s (%s)\n", what, cudaGetErrorName(error), cudaGetErrorString(error));
  std::exit(1);
}

/// The exit status that says so; the error goes to stdout.
inline int refused(const mkernel::Status& status) {
  std::cout << status.to_string() << std::endl;
  return 3;
}
