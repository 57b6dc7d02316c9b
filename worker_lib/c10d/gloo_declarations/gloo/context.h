// The declarations of Gloo that LibTorch's ProcessGroupGloo.hpp and this folder use. Gloo's code is inside of libtorch_cpu;
// its headers are in no LibTorch, and those of a distribution belong to another version, with other layouts. So here is
// only what does not depend on a layout: names of types behind pointers, and functions that are neither inline nor
// virtual, whose symbols libtorch_cpu has. A function that a version of LibTorch no longer has is an error of the linker.
// Never construct or copy one of these types, or derive from one.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  Context() = delete;
  void closeConnections();
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
