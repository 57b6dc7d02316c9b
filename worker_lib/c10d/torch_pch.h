// The precompiled header of all sources that include Torch. Keep it short: each source that uses it
// compiles the templates that its inline functions need once more. With torch/nn.h, torch/optim.h and
// reducer.hpp in it this took 5 s per source, longer than parsing them where they are needed. Only
// headers of LibTorch and of the standard library belong here.
#pragma once

#include <torch/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>
