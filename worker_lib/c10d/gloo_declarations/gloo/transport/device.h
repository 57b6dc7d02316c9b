// Part of the declarations of Gloo that LibTorch's ProcessGroupGloo.hpp asks for (../context.h says why).
#pragma once

namespace gloo::transport {

class Device;

class UnboundBuffer {
 public:
  UnboundBuffer() = delete;
  virtual ~UnboundBuffer() = 0;
};

}  // namespace gloo::transport
