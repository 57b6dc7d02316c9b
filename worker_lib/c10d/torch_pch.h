// What every source that includes Torch begins with, precompiled once for all targets (each parse
// of it takes ten seconds and more). Only headers of LibTorch and the standard library belong here.
#pragma once

#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <vector>
