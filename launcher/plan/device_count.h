// How many devices the job's own PyTorch computes on, which it alone knows for what is not NVIDIA's: its Python is asked, as
// torchrun, which is a program of that Python, asks itself.
#pragma once

#include <chrono>
#include <string>

#include "agent/job.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/result.h"

namespace ddprun::cli {

// `kind`: "gpu", "xpu", or "auto" for those of the accelerator that PyTorch chooses. 0: there are none. It takes an import of
// PyTorch, seconds. Errors are sentences that begin with the Python's path: kUnavailable if it did not answer within `limit`
// or could not tell.
Result<int> count_devices(const agent::Program& python_program, const std::string& kind,
                          const Environment& environment, std::chrono::seconds limit);

}  // namespace ddprun::cli
