// Weights in a file: safetensors with the names of the module's parameters and buffers, as Python's
// `safetensors` writes and reads them (in Python: save_file(model.state_dict(), path) and
// model.load_state_dict(load_file(path))). For inference, and to carry weights between languages; a
// training that is to go on needs a Checkpointer (checkpoint.h). Not collective; any thread that
// may touch the module.
//
//   ddprun::save_weights(*model, "net.safetensors");
//   ddprun::load_weights("ckpt/best.safetensors", *net);   // a Checkpointer's file: its weights
#pragma once

#include <torch/nn/module.h>

#include <concepts>
#include <string>

namespace ddprun {

// The module whose state is meant: given itself, or something that holds it (a shared pointer, what
// TORCH_MODULE makes, a DistributedDataParallel). Names in files are always the bare module's.
class BareModule {
 public:
  BareModule(const torch::nn::Module& module) : module_(module) {}

  template <typename Holder>
  requires requires(const Holder& holder) {
    { *holder } -> std::convertible_to<const torch::nn::Module&>;
  }
  BareModule(const Holder& holder) : module_(*holder) {}

  const torch::nn::Module& get() const { return module_; }

 private:
  const torch::nn::Module& module_;
};

// Atomic and on the disk on return. Throws Failure when that failed.
void save_weights(const BareModule& model, const std::string& path);

// Puts a file's weights into the module, on whatever device it is (move it before, or after). Names,
// shapes and types must be the module's. The optimizer and so on of a checkpoint are passed over, and
// so is the "module." before the names of a wrapped Python module.
// Throws UsageError, which names the file and what is wrong, and changes nothing then.
void load_weights(const std::string& path, const BareModule& model);

}  // namespace ddprun
